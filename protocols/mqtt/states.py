"""What an MQTT connection may be in, what is read in it, and the bounds of both."""

from enum import Enum
from typing import Final, NamedTuple

from protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)


class State(Enum):
    AWAITING_CONNECT = 1
    OPENING = 2  # CONNECT is with the owner; what follows it waits unread
    PROVING = 3  # the peer's AUTH is waited for, CONNACK still to come
    CONNECTED = 4
    ENDING = 5  # nothing more is read, answers still go
    CLOSED = 6


# CONNECT first [MQTT-3.1.0-1] and only once [MQTT-3.1.0-2].
ALLOWED: Final[dict[State, tuple[type[Packet], ...]]] = {
    State.AWAITING_CONNECT: (Connect,),
    State.OPENING: (),
    State.PROVING: (Auth, Disconnect),  # [MQTT-3.1.2-30]
    State.CONNECTED: (
        Publish,
        Puback,
        Pubrec,
        Pubrel,
        Pubcomp,
        Subscribe,
        Unsubscribe,
        Pingreq,
        Disconnect,
        Auth,
    ),
    State.ENDING: (),
    State.CLOSED: (),
}

SERVER_ONLY: Final = frozenset(
    (PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP)
)

CLIENT_DISCONNECT_REASONS: Final = frozenset(
    # [MQTT 5, table 3-10, "sent by client"]
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
)


class Limits(NamedTuple):
    """What this server tells and enforces."""

    connect_s_max: float = 10.0
    connect_bytes_max: int = 256 * 1024
    packet_bytes_max: int = 2_000_000
    receive_max: int = 1024
    """Publishes above QoS 0 that may be unanswered; to 5.0 clients a contract."""

    topic_alias_max: int = 10
    qos_max: int = 2
    takes_retained: bool = True
    levels: frozenset[int] = frozenset((V31, V311, V5))  # protocol levels that are spoken


def run_firsts(limits: Limits) -> bytes:
    """First bytes of what is read in runs: PUBLISH that is taken, of QoS 0 or 1 and not DUP."""
    return bytes(
        0x30 | qos << 1 | retain
        for qos in range(min(limits.qos_max, 1) + 1)
        for retain in range(limits.takes_retained + 1)
    )
