"""
The nouns every protocol is translated into; they belong to none of them.

A publish is a ``Head`` (what messages of one address share, cached by the adapter and reused)
and a ``Message`` (one body). The pipeline caches its decision per head *object*, so an adapter
that reuses heads pays for ACL, routing and matching once. A delivery carries a ``StoredMessage``,
decoded once per gateway however many clients receive it.
"""

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from protocols.errors import Code
from protocols.stored_names import subject_of

Properties = tuple[tuple[str, str], ...]
"""Stored properties, in order, repeats kept; names as in the table of ARCHITECTURE.md."""


INTERNAL = "internal"
"""``Call.protocol`` of what the gateway sends for itself (dead letters): no ACL, names as stored.
No listener can have this protocol."""


# ── who asks ────────────────────────────────────────────────────────────────────────────


class Right(NamedTuple):
    """One rule that an identity brings along."""

    is_allow: bool
    operations: tuple[str, ...]
    topic: str
    """MQTT pattern, placeholders allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An authenticated principal."""

    name: str
    """User name, certificate name or ``anonymous``; what ACL rules match."""

    roles: tuple[str, ...] = ()
    is_anonymous: bool = False
    expires_at_ms: int = 0
    """Wall time at which the credentials end, and the connection with them; 0: never."""

    rights: "tuple[Right, ...] | None" = None
    """Rules that the credentials carry (a token's), judged before the ACL; None: none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """
    Who asks, from where: made once per connection and reused, so decisions are cached on it.
    """

    protocol: str
    """``mqtt``, ``amqp``, ``cloudevents``, ``grpc``, ``remoting`` or a plug-in's name."""

    listener: str
    identity: Identity
    tenant: str = ""
    client_id: str = ""
    peer: str = ""
    """``address:port`` of the client, for logs and ``client_ip`` rules."""

    certificate_name: str = ""
    """Common name of the client's verified certificate; empty: none."""

    is_patient: bool = True
    """What it sends may wait for a store that is away, rather than be refused at once."""


# ── queues ──────────────────────────────────────────────────────────────────────────────


class QueueKind(Enum):
    """What a light queue is for; part of its key."""

    FILTER = "filter"  # one per topic filter in use; spread over all stores
    PRIVATE = "private"  # one per durable session and store; spread
    AMQP = "amqp"  # one per AMQP queue; pinned
    SUBSCRIPTION = "subscription"  # one per webhook subscription; spread
    RETAINED = "retained"  # one per store, keyed by address
    DISPATCH = "dispatch"  # one per store: what became visible without a gateway
    DEAD_LETTER = "dead"  # per store and purpose: what a policy hands over to gateways

    __hash__ = object.__hash__  # in C: every QueueRef in a set or dictionary hashes its kind


class QueueRef(NamedTuple):
    """Names a light queue: data, not a handle. Equal refs are the same queue."""

    kind: QueueKind
    name: str
    tenant: str = ""
    incarnation: int = 0
    """Directory version of its creation; a queue made again under its name is another one."""

    store: str = ""
    """Pinned: the broker name that keeps it; empty: spread over all stores of the cluster."""

    cluster: str = ""
    """Broker cluster; empty: the one that the route of a publish or subscription names."""

    def key(self) -> bytes:
        """The 16 bytes that name this queue on the wire between gateway and store."""
        return queue_key(self.tenant, self.kind, self.name, self.incarnation)


def queue_key(tenant: str, kind: QueueKind, name: str, incarnation: int = 0) -> bytes:
    """
    128-bit hash of (tenant, kind, name, incarnation).

    The top bit is set for queues that exist only once created (AMQP): a send to one that a
    store does not know is refused as gone; the others come into being on first use.
    """
    text = "\x00".join((tenant, kind.value, name, str(incarnation)))
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    first = digest[0] | 0x80 if kind is QueueKind.AMQP else digest[0] & 0x7F
    return bytes((first,)) + digest[1:]


DISPATCH_NAME: Final = "$dispatch"
"""Light queue of each store, and the group that all gateways share on it."""

DISPATCH_KEY: Final = queue_key("", QueueKind.DISPATCH, DISPATCH_NAME)


def is_created_explicitly(key: bytes) -> bool:
    """Whether the queue of this key must have been created before it takes entries."""
    return bool(key[0] & 0x80)


# ── in ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """
    What all messages of one publisher to one address have in common.

    Compared by identity: adapters keep a bounded cache (MQTT: per connection and topic) and
    hand in the same object again, which makes the pipeline's work for it a dictionary hit.
    """

    subject: str
    """The address: ``/``-separated. Filters, ACL and routes of every protocol see this."""

    topic: str = ""
    """RocketMQ topic the publisher named; empty: derived from the subject (MQTT, amq.topic)."""

    tag: str = ""
    qos: int = 1
    """MQTT QoS of the publish; 1 for protocols without one. Kept in the entry flags."""

    retain: bool = False
    clears_retained: bool = False
    """With *retain* and an empty body: every store forgets its retained value of the address."""

    order_key: str = ""
    """Message group, partition key or MQTT client id: messages that share it keep their order."""

    is_fifo: bool = False
    """*order_key* is a RocketMQ message group (stored as ``__SHARDINGKEY``), not just a hint."""

    priority: int = -1
    """0 is lowest; -1: none."""

    properties: Properties = ()
    """Stored properties that all messages of this head carry."""

    queues: tuple[QueueRef, ...] | None = None
    """Exactly these light queues get the message (AMQP exchanges); None: match the subject."""

    without: tuple[QueueRef, ...] = ()
    """Light queues that get the message by another head, though they match the subject too."""

    is_late: bool = False
    """Its messages are visible later (a delay, a transaction) and matched then, not now. Set by
    the pipeline."""

    is_in_topic: bool = True
    """The primary copy goes to a message queue of the topic; False: light queues only."""

    is_apart: bool = False
    """
    Its messages have more properties than a record has room for. The light queues list a record of
    their own, with them behind the body; the one in the message queue goes without.
    """

    message_queue_id: int = -1
    """Queue id the publisher insists on (RocketMQ remoting); -1: ours to choose."""

    delay_ms: int = 0
    """How long after it came in a message is to be delivered; its ``deliver_at_ms`` says when."""

    due_ms: int = 0
    """In place of a delay: the wall time at which all are to be delivered."""

    broker: str = ""
    """Broker name the publisher insists on (RocketMQ remoting); empty: ours to choose."""


ONCE_BYTES: Final = 16

RELEASED_ONCE_PREFIX: Final = b"\xffq2"
"""How a once-key begins that counts until it is released; others count for some minutes. The
byte after it tells the copies of one message apart; 0: the primary's."""


def told_ms(wall_ms: int) -> int:
    """A wall time as a client told it; 0: none that any protocol or store could keep."""
    return wall_ms if 0 < wall_ms < 1 << 62 else 0


class Message(NamedTuple):
    """One message on its way in."""

    head: Head
    body: bytes
    properties: Properties = ()
    """Stored properties of this message alone, after those of the head."""

    message_id: str = ""
    """Stored as ``UNIQ_KEY``; empty: the gateway assigns one."""

    keys: str = ""
    """Business keys, space separated (``KEYS``)."""

    once_key: bytes = b""
    """Makes a repeat harmless; judged by each store; empty: none."""

    expires_at_ms: int = 0
    """Wall time after which nobody should get it; 0: never."""

    deliver_at_ms: int = 0
    """Wall time before which nobody shall see it; 0: at once."""

    born_ms: int = 0
    """Wall time at the producer; 0: now."""

    sys_flag: int = 0
    """RocketMQ sysFlag bits that describe the body (compression)."""

    producer_group: str = ""
    """Half message of this group: nobody shall see it before its transaction commits."""

    flag: int = 0
    """RocketMQ's 32 bits of the application's own (``Message.flag``)."""

    is_resend: bool = False
    """A store may have it under its once-key from an earlier connection: look for it first."""


class SendResult(NamedTuple):
    """What became of one message."""

    code: Code = Code.OK
    message_id: str = ""
    cluster: str = ""
    broker: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    log_position: int = -1
    matched_count: int = 0
    """Light queues that took it; 0 with ``mandatory`` means NO_ROUTE."""

    refused: tuple[QueueRef, ...] = ()
    """Light queues that did not (full, gone, down)."""

    hint: str = ""
    """With a code other than OK: what the client can do about it."""

    @property
    def is_stored(self) -> bool:
        return self.code == Code.OK


class SendResults(Protocol):
    """
    One result per message, in order; cheap when all went well.

    ``SendResult`` objects are made only when asked for: an MQTT front asks ``is_all_stored``
    and writes its PUBACKs.
    """

    @property
    def is_all_stored(self) -> bool:
        """Every message is in every queue that it was meant for."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> SendResult: ...


class SendResultList(list[SendResult]):
    """The plain form of ``SendResults``."""

    @property
    def is_all_stored(self) -> bool:
        return all(result.code == Code.OK and not result.refused for result in self)


# ── out ─────────────────────────────────────────────────────────────────────────────────


class StoredMessage:
    """
    One record as a store keeps it, with its properties parsed on first use.

    Shared by all deliveries of a gateway: treat as immutable. ``protocols/remoting/records``
    makes it from the stored bytes, which stay available in ``record``.
    """

    __slots__ = (
        "_properties",
        "body",
        "born_host",
        "born_ms",
        "broker",
        "cluster",
        "flag",
        "log_position",
        "more",
        "prepared_offset",
        "properties_text",
        "queue_id",
        "queue_offset",
        "reconsume_count",
        "record",
        "store_ms",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        *,
        record: bytes,
        topic: str,
        body: bytes,
        properties_text: bytes,
        queue_id: int,
        queue_offset: int,
        log_position: int,
        born_ms: int,
        store_ms: int,
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_count: int = 0,
        prepared_offset: int = 0,
        born_host: str = "",
        cluster: str = "",
        broker: str = "",
    ) -> None:
        self.record = record
        self.topic = topic
        self.body = body
        self.properties_text = properties_text
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.log_position = log_position
        self.born_ms = born_ms
        self.store_ms = store_ms
        self.sys_flag = sys_flag
        self.flag = flag
        self.reconsume_count = reconsume_count
        self.prepared_offset = prepared_offset
        self.born_host = born_host
        self.cluster = cluster
        self.broker = broker
        self.more = b""
        """Text of further properties, which no record has room for: MQTT subscribers are told."""

        self._properties: dict[str, str] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """Stored properties; of a repeated name the last value (see ``property_pairs``)."""
        if self._properties is None:
            self._properties = dict(self.property_pairs())
        return self._properties

    def property_pairs(self) -> Properties:
        """Stored properties in order, repeats kept."""
        text = self.properties_text.decode("utf-8", "replace")
        pairs = (item.partition("\x01") for item in text.split("\x02") if item)
        return tuple((name, value) for name, _, value in pairs)

    @property
    def subject(self) -> str:
        """The address it was published to: ``TG_SUBJECT``, or the topic without one."""
        found = self.properties.get
        return subject_of(found("TG_SUBJECT", ""), found("originMqttTopic", ""), self.topic)

    @property
    def message_id(self) -> str:
        return self.properties.get("UNIQ_KEY", "")


_HANDLE = struct.Struct(">BQIQIiqQI")


class ReceiptHandle(NamedTuple):
    """
    Proof of one delivery; ack and change need it.

    Equality of (store epoch, group, position, grant) is what the store checks.
    """

    cluster: str
    broker: str
    store_epoch: int
    group: int
    """Number of the group at its store."""

    position: int
    """Log position of the entry."""

    grant: int
    queue_id: int = -1
    queue_offset: int = -1
    popped_ms: int = 0
    invisible_ms: int = 0
    group_name: str = ""
    topic: str = ""

    def encode(self) -> str:
        """An opaque, URL-safe text for clients that hold handles (gRPC, HTTP)."""
        numbers = _HANDLE.pack(
            1,
            self.store_epoch,
            self.group,
            self.position,
            self.grant,
            self.queue_id,
            self.queue_offset,
            self.popped_ms,
            self.invisible_ms,
        )
        names = "\x00".join((self.cluster, self.broker, self.group_name, self.topic))
        return base64.urlsafe_b64encode(numbers + names.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> "ReceiptHandle | None":
        """The handle that ``encode`` wrote; None if *text* is none of ours."""
        try:
            raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            numbers = _HANDLE.unpack_from(raw)
            cluster, broker, group_name, topic = raw[_HANDLE.size :].decode().split("\x00")
        except (ValueError, struct.error):
            return None
        version, epoch, group, position, grant, queue_id, offset, popped, invisible = numbers
        if version != 1:
            return None
        return cls(
            cluster,
            broker,
            epoch,
            group,
            position,
            grant,
            queue_id,
            offset,
            popped,
            invisible,
            group_name,
            topic,
        )


class Delivery(NamedTuple):
    """One handing-over of one message to one group."""

    message: StoredMessage
    handle: ReceiptHandle
    attempt: int = 1
    """1 for the first; in RocketMQ reconsume times + 1."""

    reads: tuple[int, ...] = (0,)
    """Which queues of the group's read set it was found in, by ``Read.tag`` (ascending)."""

    qos: int = 1
    """QoS of the publish, from the entry flags."""

    retain: bool = False
    """Retain flag of the publish, from the entry flags."""

    packet_id: int = 0
    """On resume: the packet id an earlier owner had given it; 0: none."""

    stage: int = 0
    """On resume: 0 not sent, 1 sent, 2 received (PUBREC), as last marked."""

    left_count: int = -1
    """Popped with ``is_counted``: how many more were ready then; -1: not known."""


Deliveries = Sequence[Delivery]
