"""
What the gateway implements and every protocol is translated into.

``Pipeline`` has the four verbs; ``DeliveryStreams`` is the standing form of pop; ``Services`` is
what an adapter is handed. Nothing here knows a protocol.
Implemented in ``gateway/``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from protocols.canonical import (
    Call,
    Delivery,
    Identity,
    Message,
    QueueRef,
    ReceiptHandle,
    SendResult,
    SendResults,
    StoredMessage,
)
from protocols.directory import Directory
from protocols.errors import Code
from protocols.exchanges import Exchange
from protocols.groups import AckResult, GroupSpec, InvisibleTimeChange, PopRequest, QueueStat
from protocols.observing import Clients, Draining, Metrics, Observer
from protocols.rocketmq import Brokers, HeldMessages, Replies


class Pipeline(Protocol):
    """The four verbs; one item is a batch of one. Results come one per item, in order."""

    def post(
        self, call: Call, messages: Sequence[Message], done: Callable[[SendResults], None]
    ) -> None:
        """
        Send without a task: *done* is called once, later, from the event loop.

        The results of one *call* come in the order of its posts, after the durability promise
        of the store. Refusals (ACL, throttle, no store) are results, never raised.
        """
        ...

    async def send(self, call: Call, messages: Sequence[Message]) -> Sequence[SendResult]:
        """``post`` for those who can wait."""
        ...

    def withdraw(self, call: Call, *, is_taken: bool) -> None:
        """
        The publisher is gone: what it posted under once-keys and is on no way to a store yet is
        not stored. It sends that again elsewhere, and may have ended the exchange by then.

        Args:
            is_taken: it is elsewhere already, so what was posted in this tick is not stored either;
                otherwise that was its last word, and counts.
        """
        ...

    def may_store_late(self, call: Call) -> bool:
        """Whether something that it posted under a once-key is not answered and not withdrawn."""
        ...

    def forget(self, call: Call) -> None:
        """The connection of *call* has ended: what was remembered for it may go. Idempotent."""
        ...

    @property
    def loss_count(self) -> int:
        """Stores lost so far: what is posted while it stays the same is at none that is away."""
        ...

    def release_once(
        self, call: Call, key: bytes, done: Callable[[bool], None], *, since: int
    ) -> None:
        """
        The exchange of a once-key is over; it may name another message afterwards.

        *since*: the ``loss_count`` when it was posted; negative: nobody knows. *done* is called
        later: True when every store that may have it has that on disk. False: one that may have
        it is away and will take what comes under this key for a repeat.
        """
        ...

    async def pop(self, call: Call, request: PopRequest) -> list[Delivery]:
        """Take messages and hide them; long-polls. Raises Refused."""
        ...

    async def adopt(
        self, call: Call, spec: GroupSpec, taker: str, invisible_ms: int
    ) -> list[Delivery]:
        """
        What *taker* popped and has not settled, at whichever gateway: hidden anew, under new
        handles, in the order of each store. What a store that is away has comes again by time.
        """
        ...

    def mark(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> None:
        """
        (packet id, stage) of popped deliveries, for who adopts them: 16 and 8 bits that mean what
        their gateways make of them. Not awaited; gone when they come back.
        """
        ...

    async def ack(self, call: Call, handles: Sequence[ReceiptHandle]) -> list[AckResult]:
        """Done for good; idempotent; durable when answered."""
        ...

    async def change_invisible_time(
        self, call: Call, changes: Sequence[InvisibleTimeChange]
    ) -> list[AckResult]:
        """Sooner or later visible again; counts only with the current grant; 0 = return now."""
        ...

    def is_congested(self, call: Call) -> bool:
        """The stores are behind: stop reading this client's socket until ``when_clear``."""
        ...

    def when_clear(self, resume: Callable[[], None], call: Call | None = None) -> None:
        """Call *resume* once, when sends (of *call*, whom a throttle may hold) flow again."""
        ...


# ── standing streams ────────────────────────────────────────────────────────────────────


class DeliverySink(Protocol):
    """The receiving end of a stream, in the adapter. Called from the event loop; never blocks."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """New deliveries of one store and tick, in entry order per store; never over credit."""
        ...

    def ended(self, code: Code, hint: str) -> None:
        """The stream is over (fenced, taken over, queue gone): nothing more comes."""
        ...


class DeliveryStream(Protocol):
    """
    A standing pop of one group at all its stores, with absolute credit.

    Deliveries have no deadline: they return in place when the stream closes or the gateway's
    presence at that store ends (inherited groups: they stay for the next owner). A store that
    goes away and comes back is opened again behind this interface.
    """

    def allow(self, total: int) -> None:
        """May have received up to *total* deliveries since the stream opened (rises only)."""
        ...

    def ack(self, handles: Sequence[ReceiptHandle]) -> None:
        """Done for good; coalesced per tick; not awaited."""
        ...

    def reject(self, handles: Sequence[ReceiptHandle]) -> None:
        """Done, and a dead letter where the queue's policy wants that; as ``ack``."""
        ...

    def release(self, handles: Sequence[ReceiptHandle], *, is_sent: bool = True) -> None:
        """Back to its place. Not *is_sent*: the client never saw it, so no attempt counts."""
        ...

    def mark(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> None:
        """Write (handle, packet id, stage) into the in-flight entry; not awaited."""
        ...

    async def mark_durably(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> bool:
        """``mark``, answered when it is on disk (QoS 2)."""
        ...

    async def mark_or_forget(self, handle: ReceiptHandle, packet_id: int, stage: int) -> bool:
        """
        ``mark_durably`` of what the client has not seen.

        False: it is not on disk; the delivery is forgotten here, and its store hands it out anew.
        """
        ...

    def when_unmarked(self, listener: Callable[[Sequence[ReceiptHandle]], None]) -> None:
        """
        Tell *listener* of deliveries in hand that their store has, after a lost connection, no
        packet id of: ``mark`` is not awaited, and goes with it.
        """
        ...

    async def change_reads(self, spec: GroupSpec) -> None:
        """Give the group another read set; added queues start at the spec's start."""
        ...

    async def retire(self) -> None:
        """
        Take nothing more, and be no consumer of the group any longer; what is out may still be
        settled. When this returns, nothing new is on its way.
        """
        ...

    async def close(self, *, drop_group: bool = False) -> None:
        """End the stream; *drop_group* also forgets the group (clean session, queue delete)."""
        ...


class DeliveryStreams(Protocol):
    """Opens groups and streams, and looks after light queues."""

    async def open_group(self, call: Call, spec: GroupSpec) -> None:
        """Make the group known to every reachable store (start positions fixed); no stream."""
        ...

    async def open(
        self, call: Call, spec: GroupSpec, sink: DeliverySink, *, credit: int
    ) -> DeliveryStream:
        """
        Open the group (adopting an existing cursor) and a stream on it at every store.

        Of an inherited group the sink first gets the in-flight entries, with packet ids, before
        this returns. Raises Refused (no store reachable, owner epoch stale).
        """
        ...

    async def drop_group(self, call: Call, spec: GroupSpec) -> None:
        """Forget the group at every store."""
        ...

    async def create_queue(self, ref: QueueRef, policy: Mapping[str, int | str]) -> QueueRef:
        """
        Make a pinned queue known to its store (rendezvous chooses it if ``ref.store`` is empty).

        The store enforces the *policy*; every decision of it is durable. Its keys, all optional:

        - ``max_length`` ready messages, ``max_bytes`` of their bodies; ``overflow``:
          ``drop-head`` (default), ``reject`` (the send says so), ``reject-dead-letter``;
        - ``expire_ms``: how long a message may wait (its own expiry counts too), at the head;
        - ``max_priority``: one sub-queue for each ``TG_PRIORITY`` up to it, highest first;
        - ``delivery_limit``: how often a message may return; ``order``: ``key`` hands out one
          message of each order key at a time;
        - ``single_active``: 1: the stream that was opened first gets everything;
        - ``idle_ms``: without streams, pops, declarations and questions the queue ends;
        - ``dead_letter``: name of the hand-over queue (``QueueKind.DEAD_LETTER``) that gets what
          was not delivered, with ``TG_DEAD_QUEUE``, ``_REASON`` (``expired``, ``maxlen``,
          ``rejected``, ``delivery_limit``), ``_AT`` and ``_NOTE``, the ``dead_letter_note``;
        - ``notices``: name of the hand-over queue that is told (``queue-ended``) of its idle end;
        - ``volatile``: 1: forgotten at a restart, visible before the sync.

        Returns the ref with its store. Raises Refused.
        """
        ...

    async def delete_queue(self, ref: QueueRef) -> QueueStat:
        """Drop the queue and its group; the counts it had."""
        ...

    async def reject(self, call: Call, handles: Sequence[ReceiptHandle]) -> None:
        """``DeliveryStream.reject`` for deliveries of ``pop``; durable when it returns."""
        ...

    async def purge_queue(self, ref: QueueRef, spec: GroupSpec) -> int:
        """Make all ready entries done; how many."""
        ...

    async def stat_queue(self, ref: QueueRef, spec: GroupSpec) -> QueueStat:
        """Counts of a pinned queue and its one group. Raises Refused if its store is down."""
        ...

    async def retained(self, tenant: str, subject_filters: Sequence[str]) -> list[StoredMessage]:
        """The last retained message of each address that any of these matches, from all stores."""
        ...


# ── identity, topics, services ──────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client showed at its door."""

    protocol: str
    listener: str
    user: str = ""
    password: bytes = b""
    certificate_name: str = ""
    client_id: str = ""
    peer: str = ""
    signed: bytes = b""
    """For signed protocols: the bytes the signature covers; *password* is then the signature."""

    digest: str = ""
    """``hmac-sha1`` when *signed*; empty: plain password."""

    has_credentials: bool = False
    """False: the client showed none (anonymous)."""


class Authenticator(Protocol):
    """
    Names the client. Plug-ins: entry-point group ``gateway.authenticators``; one that also is a
    ``protocols.exchanges.BringsMethods`` has logins of several steps.
    """

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        """The identity, or None: refuse the connection."""
        ...


class Doorkeeper(Authenticator, Protocol):
    """All authenticators behind one."""

    def recall(self, credentials: Credentials) -> Identity | None:
        """Who it is, if that is known without asking or computing; None: ``authenticate``."""
        ...

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        """A login by a SASL *method*; None: nobody here has it."""
        ...


class Permission(Protocol):
    """The ACL, for what does not pass the four verbs (subscribe, bind, declare)."""

    @property
    def checks_receive(self) -> bool:
        """Some rule tells ``receive`` from ``subscribe``: ask for each topic that is delivered."""
        ...

    def is_allowed(
        self,
        call: Call,
        operation: str,
        *,
        subject: str = "",
        topic: str = "",
        group: str = "",
        qos: int = -1,
    ) -> bool:
        """*operation*: ``publish`` or ``consume`` (MQTT: ``subscribe``, ``receive``), ``admin``."""
        ...

    def sees_all(self, call: Call, subject_filter: str) -> bool:
        """False: some of what the filter matches is denied, so each delivery is to be asked."""
        ...

    @property
    def version(self) -> int:
        """Rises when the rules change."""
        ...


class TopicInfo(NamedTuple):
    """A topic as the name servers know it."""

    name: str
    cluster: str
    queues: tuple[tuple[str, int, int], ...]
    """(broker, queue id, permission bits) of each message queue."""

    message_type: str = ""
    """Attribute ``message.type``: NORMAL, FIFO, DELAY, TRANSACTION, MIXED; empty: unset."""

    keeps_batches: bool = False
    """Attribute ``queue.type`` is BatchCQ, at a store of ours: a batch has an id of its own."""


class GroupPolicy(NamedTuple):
    """How a consumer group is configured at its brokers."""

    attempts_max: int
    """Deliveries of a message before it is dead: ``retryMaxTimes`` + 1."""

    is_orderly: bool = False
    """``consumeMessageOrderly``: what has one message group comes one after the other."""

    may_consume: bool = True
    waits_ms: tuple[int, ...] = ()
    """Between two attempts, where it has its own."""

    exponential: tuple[int, int, int] | None = None
    """(first wait in ms, longest, factor), where waits are to grow so."""


class Topics(Protocol):
    """Topics and their message queues, from the route cache."""

    async def find(self, topic: str, *, with_type: bool = True) -> TopicInfo | None:
        """
        None: no such topic in the cluster that the routes name for it.

        Without *with_type* its attributes are left out: a store need not be asked for them.
        """
        ...

    async def create(self, topic: str, *, queue_count: int = 4) -> TopicInfo:
        """Create it on every store of its cluster. Raises Refused."""
        ...

    def names(self) -> list[str]:
        """All topics known now, system topics apart."""
        ...

    async def group(self, group: str, topic: str) -> GroupPolicy | None:
        """A consumer group as the brokers of a topic have it; None: they do not know it."""
        ...

    async def read(
        self, topic: str, broker: str, queue_id: int, offset: int, count: int, wait_ms: int
    ) -> tuple[list[StoredMessage], int, int]:
        """Read a message queue by offset: (messages, smallest offset, end offset)."""
        ...

    async def offset(self, topic: str, broker: str, queue_id: int, *, at_ms: int) -> int:
        """Offset of the first message stored at or after *at_ms*; -1: the end; 0: smallest."""
        ...


class Services(Protocol):
    """What an adapter is handed when it serves."""

    @property
    def pipeline(self) -> Pipeline: ...

    @property
    def streams(self) -> DeliveryStreams: ...

    @property
    def directory(self) -> Directory: ...

    @property
    def held(self) -> HeldMessages: ...

    @property
    def replies(self) -> Replies: ...

    @property
    def brokers(self) -> Brokers: ...

    @property
    def authenticator(self) -> Doorkeeper: ...

    @property
    def permission(self) -> Permission: ...

    @property
    def topics(self) -> Topics: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def clients(self) -> Clients: ...

    @property
    def draining(self) -> Draining: ...

    @property
    def observer(self) -> Observer: ...

    def admit(self, call: Call) -> Code:
        """
        Bans and connection limits, asked once per connection.

        OK; FORBIDDEN: banned; TOO_MANY_REQUESTS: they come too fast; LITE_TOPIC_QUOTA_EXCEEDED:
        too many are open; HA_NOT_AVAILABLE: the gateway is full, or drains.
        """
        ...

    def is_banned(self, *, peer: str, tenant: str = "", client_id: str = "") -> bool:
        """Before credentials are looked at, which may cost."""
        ...

    def listening(self, listener: str, host: str, port: int) -> None:
        """The adapter's socket is open; the ready line says so."""
        ...
