"""From CONNECT to CONNACK: who it is, which session, what the two sides agree on."""

import uuid
from typing import Final, NamedTuple

from protocols import clock
from protocols.canonical import Call, Identity
from protocols.doors import client_certificate
from protocols.driver import Driver
from protocols.errors import Code, Refused
from protocols.exchanges import Proved
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.events import Event
from protocols.mqtt.fields import VARINT_MAX, PacketError
from protocols.mqtt.front import Front
from protocols.mqtt.lastwords import Owner
from protocols.mqtt.mapping import Heads
from protocols.mqtt.naming import Naming, mount_point_of
from protocols.mqtt.opened import Opened, terms
from protocols.mqtt.packets import (
    V5,
    V31,
    Connack,
    Connect,
    PacketProperties,
    PropertyValue,
    Reason,
    Will,
)
from protocols.mqtt.properties import Property, find_int, is_as_it_says
from protocols.mqtt.records import WillRecord
from protocols.mqtt.rendering import Renderings
from protocols.mqtt.sessions import Opening, is_read
from protocols.mqtt.settings import MqttSettings
from protocols.pipeline import Credentials
from protocols.tls import ClientCertificate

PACKET_BYTES_MAX: Final = VARINT_MAX + 5  # what a client accepts that names no maximum

CONNACK_BYTES_MAX: Final = 200_000
"""No CONNACK is larger: an assigned id, a little response information, numbers."""

ANONYMOUS: Final = Identity(name="anonymous", is_anonymous=True)

ADMISSION: Final[dict[Code, Reason]] = {
    Code.TOO_MANY_REQUESTS: Reason.CONNECTION_RATE_EXCEEDED,
    Code.LITE_TOPIC_QUOTA_EXCEEDED: Reason.QUOTA_EXCEEDED,
    Code.FORBIDDEN: Reason.BANNED,
}


class Caller(NamedTuple):
    """Who knocks, as far as CONNECT and TLS say."""

    connect: Connect
    certificate: ClientCertificate
    tenant: str
    credentials: Credentials


class Agreed(NamedTuple):
    """What CONNACK tells, and the session it opens."""

    opened: Opened
    connack: Connack
    keep_alive_s: int


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
    client_id = connect.client_id or f"auto-{uuid.uuid4()}"
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
    naming, renderings = front.named(mount_point)
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
    asked = connect._replace(will=will)
    own = connection.auth.properties(proved.data) if connection.auth is not None else ()
    return await _agree(front, owner, connection, driver, asked, call, naming, renderings, own)


def accept(front: Front, connection: MqttConnection, agreed: Agreed) -> None:
    """Queue CONNACK; packets are read from here on."""
    opened, now = agreed.opened, clock.monotonic()
    connection.open_qos2.update(opened.owned.received)
    heads = Heads(
        opened.call.client_id,
        opened.naming,
        writes_apache=front.settings.apache_properties,
        source=front.source_of(opened.call),
    )
    connection.accept(agreed.connack, heads, keep_alive_s=agreed.keep_alive_s, now=now)


def server_reference(front: Front) -> PacketProperties:
    """Where clients of this listener go while the gateway drains, if anywhere (4.11)."""
    elsewhere = front.services.draining.another(front.name)
    return ((Property.SERVER_REFERENCE, elsewhere),) if elsewhere else ()


def _why_not(front: Front, connect: Connect) -> Reason | None:
    """What is wrong with a CONNECT that is well formed."""
    if not connect.client_id and (
        connect.version == V31 or (connect.version != V5 and not connect.clean_start)
    ):
        return Reason.CLIENT_IDENTIFIER_NOT_VALID  # [MQTT-3.1.3-8]
    will = connect.will
    if will is None:
        return None
    settings = front.settings
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


async def _agree(
    front: Front,
    owner: Owner,
    connection: MqttConnection,
    driver: Driver[Event],
    connect: Connect,
    call: Call,
    naming: Naming,
    renderings: Renderings,
    own: PacketProperties,
) -> Agreed | None:
    """
    Take the session, open its streams, write CONNACK's properties.

    Args:
        own: properties of CONNACK that this login brings.
    """
    settings, properties = front.settings, connect.properties
    expiry_s = _expiry_s(front, connect)
    keep_alive_s, is_bounded = connect.keep_alive_s, False
    limit_s = settings.server_keep_alive_s_max
    if limit_s and connect.version == V5 and not 0 < keep_alive_s <= limit_s:
        keep_alive_s, is_bounded = limit_s, True
    will = None
    if connect.will is not None:
        source = front.source_of(call) if connect.will.retain else ()
        will = WillRecord.from_packet(connect.will, source)
    packet_bytes_max = find_int(properties, Property.MAXIMUM_PACKET_SIZE, PACKET_BYTES_MAX)
    opening = Opening(call, connect.clean_start, expiry_s, will, settings.guards_sessions)
    owned = await front.sessions.open(opening, owner)
    connack = Connack(
        Reason.SUCCESS,
        owned.is_present,
        _connack_properties(front, connect, call.client_id, expiry_s, limit_s if is_bounded else 0)
        + own
        if connect.version == V5
        else (),
    )
    receive_max = find_int(properties, Property.RECEIVE_MAXIMUM, 65_535)
    opened = Opened(
        front,
        call,
        owned,
        connection,
        driver,
        terms=terms(
            min(settings.inflight_max, receive_max),
            packet_bytes_max,
            find_int(properties, Property.TOPIC_ALIAS_MAXIMUM, 0),
        ),
        renderings=renderings,
        naming=naming,
    )
    try:
        if (
            packet_bytes_max < CONNACK_BYTES_MAX
            and len(encode_packet(connack, connect.version)) > packet_bytes_max
        ):
            raise Refused(Code.PAYLOAD_TOO_LARGE, call.client_id, "CONNACK over its packet limit")
        await _reopen(opened)
    except Refused as error:
        await opened.close_feeds()
        front.sessions.let_go(owned, owner)
        await front.sessions.disconnected(owned, owned.record, sends_will=False)
        if error.code == Code.PAYLOAD_TOO_LARGE:
            connection.fail(Reason.PACKET_TOO_LARGE, str(error))
            return None
        raise
    front.accepted_count += 1
    return Agreed(opened, connack, keep_alive_s)


async def _reopen(opened: Opened) -> None:
    """The streams of a session that was there before."""
    has_group = opened.owned.record.has_group
    if not opened.subscription_count and not has_group:
        return
    items = list(opened.subscriptions)
    if has_group or any(is_read(item) for item in items):
        await opened.open_feed()
    for item in items:
        if item.share:
            await opened.open_share(item)


def _expiry_s(front: Front, connect: Connect) -> int:
    limit = front.settings.session_expiry_s_max
    if connect.version == V5:
        return min(limit, find_int(connect.properties, Property.SESSION_EXPIRY, 0))
    return 0 if connect.clean_start else limit


def _connack_properties(
    front: Front, connect: Connect, client_id: str, expiry_s: int, keep_alive_s: int
) -> tuple[tuple[int, PropertyValue], ...]:
    """What the server insists on; absent means the specification's default."""
    settings = front.settings
    pairs: list[tuple[int, PropertyValue]] = []
    if keep_alive_s:
        pairs.append((Property.SERVER_KEEP_ALIVE, keep_alive_s))
    if settings.topic_alias_max:
        pairs.append((Property.TOPIC_ALIAS_MAXIMUM, settings.topic_alias_max))
    if not connect.client_id:
        pairs.append((Property.ASSIGNED_CLIENT_IDENTIFIER, client_id))
    if not settings.retained:
        pairs.append((Property.RETAIN_AVAILABLE, 0))
    pairs.append((Property.MAXIMUM_PACKET_SIZE, settings.packet_bytes_max))
    pairs.append((Property.RECEIVE_MAXIMUM, settings.receive_max))
    if settings.qos_max < 2:
        pairs.append((Property.MAXIMUM_QOS, settings.qos_max))
    if expiry_s != find_int(connect.properties, Property.SESSION_EXPIRY, 0):
        pairs.append((Property.SESSION_EXPIRY, expiry_s))
    wants_information = find_int(connect.properties, Property.REQUEST_RESPONSE_INFORMATION, 0)
    if settings.response_information and wants_information:
        text = settings.response_information.replace("{client_id}", client_id)
        pairs.append((Property.RESPONSE_INFORMATION, text))
    if not settings.wildcard_subscriptions:
        pairs.append((Property.WILDCARD_SUBSCRIPTION_AVAILABLE, 0))
    if not settings.shared_subscriptions:
        pairs.append((Property.SHARED_SUBSCRIPTION_AVAILABLE, 0))
    return tuple(pairs)
