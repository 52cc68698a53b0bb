"""The second half of an opening: what the two sides agree on, the session, CONNACK."""

from typing import Final, NamedTuple

from protocols.canonical import Call
from protocols.driver import Driver
from protocols.errors import Refused
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.events import Event
from protocols.mqtt.fields import VARINT_MAX
from protocols.mqtt.front import Front
from protocols.mqtt.groups import is_read
from protocols.mqtt.lastwords import Owner
from protocols.mqtt.naming import Naming
from protocols.mqtt.opened import Opened, terms
from protocols.mqtt.packets import V5, Connack, Connect, PacketProperties, PropertyValue, Reason
from protocols.mqtt.properties import Property, find_int
from protocols.mqtt.records import WillRecord
from protocols.mqtt.rendering import Renderings
from protocols.mqtt.sessions import Opening

PACKET_BYTES_MAX: Final = VARINT_MAX + 5  # what a client accepts that names no maximum

CONNACK_BYTES_MAX: Final = 200_000
"""No CONNACK is larger: an assigned id, a little response information, numbers."""


class Admitted(NamedTuple):
    """A login that is let in, and what it brings."""

    connection: MqttConnection
    driver: Driver[Event]
    connect: Connect
    """Its will under the address that it is published to."""

    call: Call
    naming: Naming
    renderings: Renderings
    own: PacketProperties
    """Properties of CONNACK that this login brings."""


class Agreed(NamedTuple):
    """What CONNACK tells, and the session it opens."""

    opened: Opened
    connack: Connack
    keep_alive_s: int


async def agree(front: Front, owner: Owner, admitted: Admitted) -> Agreed | None:
    """
    Take the session, open its streams, write CONNACK; None: refused, and the session untouched.

    Raises Refused if the directory or all stores are away.
    """
    connect, call = admitted.connect, admitted.call
    expiry_s = _expiry_s(front, connect)
    keep_alive_s = _keep_alive_s(front, connect)
    connack = _connack(front, admitted, expiry_s, keep_alive_s)
    packet_bytes_max = find_int(connect.properties, Property.MAXIMUM_PACKET_SIZE, PACKET_BYTES_MAX)
    if not _fits(connack, connect.version, packet_bytes_max):
        admitted.connection.fail(Reason.PACKET_TOO_LARGE, "CONNACK over the client's packet limit")
        return None
    will = _will_record(front, connect, call)
    receive_max = find_int(connect.properties, Property.RECEIVE_MAXIMUM, 65_535)
    inflight_max = min(front.settings.inflight_max, receive_max)
    guards = front.settings.guards_sessions
    owned = await front.sessions.open(
        Opening(call, connect.clean_start, expiry_s, will, guards, inflight_max), owner
    )
    opened = Opened(
        front,
        call,
        owned,
        admitted.connection,
        admitted.driver,
        terms=terms(
            inflight_max,
            packet_bytes_max,
            find_int(connect.properties, Property.TOPIC_ALIAS_MAXIMUM, 0),
        ),
        renderings=admitted.renderings,
        naming=admitted.naming,
    )
    try:
        await _reopen(opened)
    except Refused:
        await opened.close_feeds()
        front.sessions.let_go(owned, owner, call)
        await front.sessions.disconnected(owned, owned.record, sends_will=False)
        raise
    front.accepted_count += 1
    return Agreed(opened, connack._replace(session_present=owned.is_present), keep_alive_s)


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


def _will_record(front: Front, connect: Connect, call: Call) -> WillRecord | None:
    if connect.will is None:
        return None
    return WillRecord.from_packet(
        connect.will, front.source_of(call) if connect.will.retain else ()
    )


def _expiry_s(front: Front, connect: Connect) -> int:
    limit = front.settings.session_expiry_s_max
    if connect.version == V5:
        return min(limit, find_int(connect.properties, Property.SESSION_EXPIRY, 0))
    return 0 if connect.clean_start else limit


def _keep_alive_s(front: Front, connect: Connect) -> int:
    """The client's own, unless this listener bounds it and the client can be told so."""
    limit_s = front.settings.server_keep_alive_s_max
    if limit_s and connect.version == V5 and not 0 < connect.keep_alive_s <= limit_s:
        return limit_s
    return connect.keep_alive_s


# ── CONNACK ─────────────────────────────────────────────────────────────────────────────


def _fits(connack: Connack, version: int, packet_bytes_max: int) -> bool:
    """Whether the client takes so large a packet [MQTT-3.1.2-24]."""
    return (
        packet_bytes_max >= CONNACK_BYTES_MAX
        or len(encode_packet(connack, version)) <= packet_bytes_max
    )


def _connack(front: Front, admitted: Admitted, expiry_s: int, keep_alive_s: int) -> Connack:
    """Of a session that is new; whether there was one is known once it is taken."""
    if admitted.connect.version != V5:
        return Connack(Reason.SUCCESS)
    properties = _connack_properties(front, admitted, expiry_s, keep_alive_s)
    return Connack(Reason.SUCCESS, properties=properties + admitted.own)


def _connack_properties(
    front: Front, admitted: Admitted, expiry_s: int, keep_alive_s: int
) -> PacketProperties:
    """What the server insists on; absent means the specification's default."""
    settings, connect, client_id = front.settings, admitted.connect, admitted.call.client_id
    pairs: list[tuple[int, PropertyValue]] = []
    if keep_alive_s != connect.keep_alive_s:
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
