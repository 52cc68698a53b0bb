"""From CONNECT to a session: who it is, and whether it is let in."""

import uuid
from typing import Final, NamedTuple

from protocols import clock
from protocols.canonical import Call, Identity
from protocols.doors import client_certificate
from protocols.driver import Driver
from protocols.errors import Code
from protocols.exchanges import Proved
from protocols.mqtt.agreeing import Admitted, Agreed, agree
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.events import Event
from protocols.mqtt.fields import PacketError
from protocols.mqtt.front import Front
from protocols.mqtt.lastwords import Owner
from protocols.mqtt.mapping import Heads
from protocols.mqtt.naming import Naming, mount_point_of
from protocols.mqtt.packets import (
    V5,
    V31,
    Connect,
    PacketProperties,
    Reason,
    Will,
)
from protocols.mqtt.properties import Property, is_as_it_says
from protocols.mqtt.settings import MqttSettings
from protocols.pipeline import Credentials
from protocols.tls import ClientCertificate

ANONYMOUS: Final = Identity(name="anonymous", is_anonymous=True)

ADMISSION: Final[dict[Code, Reason]] = {
    Code.TOO_MANY_REQUESTS: Reason.CONNECTION_RATE_EXCEEDED,
    Code.LITE_TOPIC_QUOTA_EXCEEDED: Reason.QUOTA_EXCEEDED,
    Code.FORBIDDEN: Reason.BANNED,
}

UNOPENED: Final[dict[Code, Reason]] = {Code.FORBIDDEN: Reason.NOT_AUTHORIZED}
"""Of a session that is another identity's; else the stores or the directory are away."""


class Caller(NamedTuple):
    """Who knocks, as far as CONNECT and TLS say."""

    connect: Connect
    certificate: ClientCertificate
    tenant: str
    credentials: Credentials


# ── CONNECT ─────────────────────────────────────────────────────────────────────────────


def hear(
    front: Front, connection: MqttConnection, driver: Driver[Event], connect: Connect
) -> Caller | None:
    """What is judged before anybody is asked who it is; None: refused, the refusal is queued."""
    if connect.will is not None and connect.will.topic.startswith("$CONTROL/"):
        connection.fail(Reason.NOT_AUTHORIZED, "a will to an administrative topic")
        return None
    if (reason := _why_not(front, connect)) is not None:
        connection.refuse(reason)
        return None
    client_id = connect.client_id or f"{front.settings.assigned_ids}{uuid.uuid4()}"
    certificate = client_certificate(driver)
    tenant = certificate.tenant(front.settings.tenant)
    if front.services.is_banned(peer=driver.peer, tenant=tenant, client_id=client_id):
        connection.refuse(Reason.BANNED)
        return None
    source = front.settings.tls.identity if front.settings.tls is not None else "cn"
    certificate_name = certificate.identity(source)
    credentials = Credentials(
        protocol="mqtt",
        listener=front.name,
        user=connect.user or "",
        password=connect.password or b"",
        certificate_name=certificate_name,
        client_id=client_id,
        peer=driver.peer,
        has_credentials=_has_credentials(connect, certificate_name),
    )
    return Caller(connect, certificate, tenant, credentials)


async def open_session(
    front: Front,
    owner: Owner,
    connection: MqttConnection,
    driver: Driver[Event],
    caller: Caller,
    proved: Proved,
) -> Agreed | None:
    """
    Everything up to CONNACK; None: refused, the refusal is queued.

    Raises Refused if the directory or all stores are away.
    """
    connect, client_id = caller.connect, caller.credentials.client_id
    certificate, tenant, identity = caller.certificate, caller.tenant, proved.identity
    call = Call(
        protocol="mqtt",
        listener=front.name,
        identity=identity,
        tenant=tenant,
        client_id=client_id,
        peer=driver.peer,
        certificate_name=certificate.common_name,
    )
    mount_point = mount_point_of(front.settings.mount_point, call)
    if mount_point is None:
        connection.refuse(Reason.CLIENT_IDENTIFIER_NOT_VALID)
        return None
    shared, renderings = front.named(mount_point)
    naming = shared.of(call)
    will = _named_will(connect, naming)
    if connect.will is not None and will is None:
        connection.refuse(Reason.TOPIC_NAME_INVALID)
        return None
    if not _may_have_will(front, will, call):
        connection.refuse(Reason.NOT_AUTHORIZED)
        return None
    if front.services.draining.is_on:
        connection.refuse(Reason.SERVER_MOVED, server_reference(front))
        return None
    code = front.services.admit(call)
    if code != Code.OK:
        connection.refuse(ADMISSION.get(code, Reason.SERVER_BUSY))
        return None
    own = connection.auth.properties(proved.data) if connection.auth is not None else ()
    asked = connect if will is None else connect._replace(will=will)
    admitted = Admitted(connection, driver, asked, call, naming, renderings, own)
    return await agree(front, owner, admitted)


def accept(front: Front, connection: MqttConnection, agreed: Agreed) -> None:
    """Queue CONNACK; packets are read from here on."""
    opened, now = agreed.opened, clock.monotonic()
    connection.incoming.open_qos2.update(opened.owned.received)
    heads = Heads(
        opened.call.client_id,
        opened.naming,
        writes_apache=front.settings.apache_properties,
        source=front.source_of(opened.call),
    )
    connection.accept(agreed.connack, heads, keep_alive_s=agreed.keep_alive_s, now=now)
    if opened.owned.record.owed:
        front.tasks.start(opened.settle_wills(), name="wills")


def server_reference(front: Front) -> PacketProperties:
    """Where clients of this listener go while the gateway drains, if anywhere (4.11)."""
    elsewhere = front.services.draining.another(front.name)
    return ((Property.SERVER_REFERENCE, elsewhere),) if elsewhere else ()


def _why_not(front: Front, connect: Connect) -> Reason | None:
    """What is wrong with a CONNECT that is well formed."""
    settings = front.settings
    if not connect.client_id and (
        not settings.assigned_ids
        or connect.version == V31
        or (connect.version != V5 and not connect.clean_start)
    ):
        return Reason.CLIENT_IDENTIFIER_NOT_VALID  # [MQTT-3.1.3-8]
    will = connect.will
    if will is None:
        return None
    if len(will.payload) > settings.will_bytes_max:
        return Reason.PACKET_TOO_LARGE
    if settings.checks_payload_format and not is_as_it_says(will.properties, will.payload):
        return Reason.PAYLOAD_FORMAT_INVALID
    if will.qos > settings.qos_max:
        return Reason.QOS_NOT_SUPPORTED  # [MQTT-3.2.2-12]
    if will.retain and not settings.retained:
        return Reason.RETAIN_NOT_SUPPORTED  # [MQTT-3.2.2-13]
    return None


async def identify(front: Front, connection: MqttConnection, caller: Caller) -> Proved | None:
    """
    Who it is, by CONNECT alone; None: refused, the refusal is queued.

    Whom a cache knows waits for nobody: others may be in line for a service that is down.
    """
    authenticator, credentials = front.services.authenticator, caller.credentials
    found = authenticator.recall(credentials)
    if found is None:
        if not await front.logins.take(front.settings.opening_s_max):
            front.busy.inc()
            connection.refuse(Reason.SERVER_BUSY)
            return None
        try:
            found = await authenticator.authenticate(credentials)
        finally:
            front.logins.give()
    connect = caller.connect
    identity = _admitted(front.settings, connect, credentials.certificate_name, found)
    if identity is None:
        has_shown = connect.user is not None
        connection.refuse(Reason.BAD_USER_NAME_OR_PASSWORD if has_shown else Reason.NOT_AUTHORIZED)
        return None
    return Proved(identity)


def _admitted(
    settings: MqttSettings, connect: Connect, certificate_name: str, found: Identity | None
) -> Identity | None:
    """A listener may let the nameless in where others want users, or keep them out."""
    if settings.anonymous is False and found is not None and found.is_anonymous:
        return None
    is_nameless = connect.user is None and connect.password is None and not certificate_name
    if found is None and settings.anonymous and is_nameless:
        return ANONYMOUS
    return found


def _named_will(connect: Connect, naming: Naming) -> Will | None:
    """The will under the address it is published to; None: it has none that is taken."""
    if connect.will is None:
        return None
    try:
        name = naming.publish(connect.will.topic)
    except PacketError:
        return None
    return None if name.delay_s else connect.will._replace(topic=name.subject)


def _may_have_will(front: Front, will: Will | None, call: Call) -> bool:
    """Asked here for a token's rights alone: once the client is gone nobody knows them."""
    if will is None or call.identity.rights is None:
        return True
    permission = front.services.permission
    return permission.is_allowed(call, "publish", subject=will.topic, qos=will.qos)


def _has_credentials(connect: Connect, certificate_name: str) -> bool:
    """A user name alone says nothing beside a certificate."""
    return connect.password is not None or (connect.user is not None and not certificate_name)
