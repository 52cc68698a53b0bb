"""
Route and assignment answers.

All queues are at the endpoints that the client dialled (or that the listener advertises), so
its traffic stays on the gateways behind whatever balancer it came through.
"""

import ipaddress
from itertools import takewhile
from typing import Final

from protocols.addresses import split_bind
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.pipeline import TopicInfo

READ_BIT: Final = 4
WRITE_BIT: Final = 2
"""RocketMQ ``PermName``."""

ANY_QUEUE: Final = -1
"""Queue id of an assignment that leaves the choice of queues to the server."""

TYPES: Final = {
    "NORMAL": (v2.NORMAL,),
    "FIFO": (v2.FIFO,),
    "DELAY": (v2.DELAY,),
    "TRANSACTION": (v2.TRANSACTION,),
    "LITE": (v2.LITE,),
    "PRIORITY": (v2.PRIORITY,),
}
"""Attribute ``message.type`` of a topic → what clients may send."""

ANY_TYPE: Final = (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION, v2.PRIORITY)
"""Of a topic without the attribute, and of MIXED ones: SDKs refuse every send on UNSPECIFIED."""

FIRST_WITH_PRIORITY: Final = {"JAVA": (5, 2), "DOTNET": (5, 2)}
"""
SDKs whose earlier versions throw at a type that they do not know, and with it the whole route:
``MessageType.fromProtobuf`` of rocketmq-clients (RIP-80, December 2025). Others pass it over.
"""

VERSION_DIGITS_MAX: Final = 9
"""Of one number of a version."""

OLD_TYPES: Final = frozenset((v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION))

PERMISSIONS: Final = {
    READ_BIT | WRITE_BIT: v2.READ_WRITE,
    READ_BIT: v2.READ,
    WRITE_BIT: v2.WRITE,
    0: v2.NONE,
}


def endpoints_of(address: str) -> v2.Endpoints:
    """``host:port`` as endpoints with the scheme set: clients refuse UNSPECIFIED."""
    host, port = split_bind(address)
    try:
        is_v6 = ipaddress.ip_address(host).version == 6
        scheme = v2.IPv6 if is_v6 else v2.IPv4
    except ValueError:
        scheme = v2.DOMAIN_NAME
    return v2.Endpoints(scheme=scheme, addresses=[v2.Address(host=host, port=port)])


def accepted_types(info: TopicInfo) -> tuple[v2.MessageType, ...]:
    return TYPES.get(info.message_type.upper(), ANY_TYPE)


def reads_all_types(language: str, version: str) -> bool:
    """Whether an SDK survives every message type in a route; one that says nothing does."""
    first = FIRST_WITH_PRIORITY.get(language)
    return first is None or _numbers(version) >= first


def _numbers(version: str) -> tuple[int, ...]:
    parts = takewhile(lambda part: part.isascii() and part.isdecimal(), version.split("."))
    return tuple(int(part[:VERSION_DIGITS_MAX]) for part in parts)


def _listed_types(info: TopicInfo, *, reads_all: bool) -> tuple[v2.MessageType, ...]:
    """
    What the route says of the topic.

    An SDK that cannot read a type gets the others; of a topic that takes nothing else NORMAL, so
    that it can consume. What it then sends there is refused by its type.
    """
    types = accepted_types(info)
    if reads_all:
        return types
    return tuple(one for one in types if one in OLD_TYPES) or (v2.NORMAL,)


def _queue(
    topic: v2.Resource,
    types: tuple[v2.MessageType, ...],
    place: tuple[str, int, int],
    endpoints: v2.Endpoints,
) -> v2.MessageQueue:
    broker, queue_id, permission = place
    return v2.MessageQueue(
        topic=topic,
        id=queue_id,
        permission=PERMISSIONS[permission & (READ_BIT | WRITE_BIT)],
        broker=v2.Broker(name=broker, id=0, endpoints=endpoints),
        accept_message_types=types,
    )


def message_queues(
    topic: v2.Resource, info: TopicInfo, endpoints: v2.Endpoints, *, reads_all: bool
) -> list[v2.MessageQueue]:
    """All message queues of a topic."""
    types = _listed_types(info, reads_all=reads_all)
    return [_queue(topic, types, place, endpoints) for place in info.queues]


def assignments(
    topic: v2.Resource,
    info: TopicInfo,
    endpoints: v2.Endpoints,
    *,
    is_fifo: bool,
    reads_all: bool,
) -> list[v2.Assignment]:
    """
    What a push consumer polls: one assignment per broker, or per queue for ordered groups.

    Every member of a group gets the same; popping shares out the messages.
    """
    readable = [place for place in info.queues if place[2] & READ_BIT]
    if not is_fifo:
        brokers = dict.fromkeys(broker for broker, _, _ in readable)
        readable = [(broker, ANY_QUEUE, READ_BIT | WRITE_BIT) for broker in brokers]
    types = _listed_types(info, reads_all=reads_all)
    return [
        v2.Assignment(message_queue=_queue(topic, types, place, endpoints)) for place in readable
    ]
