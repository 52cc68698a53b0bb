"""
What our gateway and our store say to each other beyond standard RocketMQ codes.

Codes 20000 to 20999 (they fit the binary header's 16 bits). Apache brokers answer HELLO with 3
(REQUEST_CODE_NOT_SUPPORTED): that, not the route, tells a broker is not ours. Rare requests
carry a msgpack ``Struct`` as body; those that carry messages are packed binary: ``sending``
(SEND), ``delivering`` (DELIVER, POP's answer), ``settling`` (ACK, MARK, STREAM_CREDIT). All
integers big-endian. One result per item, in order. A request that fails as a whole is answered
with a standard response code and a remark.
"""

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

FRAME_BYTES_MAX: Final = 4 << 20
"""Largest private frame."""

FRAME_ITEMS_MAX: Final = 1024
"""Above this a frame's round trip costs more than it saves (measured: 1 to 5 ms)."""


IF_ABSENT: Final = "tgIfAbsent"
"""Of UPDATE_AND_CREATE_TOPIC (17): a topic that is there stays as it is; the answer says how
many queues it has (``writeQueueNums``)."""

GROUP_IS_KNOWN: Final = "tgGroupIsKnown"
"""
Of INVOKE_BROKER_TO_RESET_OFFSET (222): a gateway knows the group, whoever else does not. Of
UPDATE_CONSUMER_OFFSET (15): and nobody of it is there, so what pops goes on at that offset.
"""

RELEASE_FIELD: Final = "tgRelease"
"""Of a standard change of the invisible time (200053): RELEASE it, nobody saw it."""

READY_COUNT: Final = "tgReadyCount"
"""Of the answer to a POP that is to be counted: how many more are ready."""


class PrivateCode(IntEnum):
    """Request codes. Direction is gateway to store unless said."""

    HELLO = 20000  # Hello → HelloAnswer
    SEND = 20001  # SEND frame → SEND answer (binary)
    SETTLE = 20002  # Settle → SettleAnswer, or the SEND answer of that frame
    GROUP_OPEN = 20010  # GroupOpen → GroupOpened
    GROUP_DROP = 20011  # GroupDrop → empty
    STREAM_OPEN = 20012  # StreamOpen → StreamOpened
    STREAM_CLOSE = 20013  # StreamClose → empty
    STREAM_CREDIT = 20014  # oneway, binary: (stream u32, total u64)*
    DELIVER = 20015  # store → gateway, oneway, binary DELIVER body
    STREAM_ENDED = 20016  # store → gateway, oneway: StreamEnded
    CLOSING = 20017  # store → gateway, oneway: Closing
    POP = 20020  # Pop → binary DELIVER body (long poll)
    ACK = 20021  # binary ACK items → binary results
    MARK = 20022  # binary MARK items → binary results (waits for the disk; oneway: does not)
    INDEX = 20023  # Index → binary results
    ADOPT = 20024  # Adopt → binary DELIVER body
    ONCE_RELEASE = 20026  # once-keys back to back → empty
    ONCE_FIND = 20027  # once-keys back to back → one byte each: 1 if it is known, on disk
    QUEUE_CREATE = 20030  # QueueCreate → empty
    QUEUE_DROP = 20031  # QueueDrop → QueueCounts
    QUEUE_PURGE = 20032  # QueuePurge → QueueCounts (ready_count = purged)
    QUEUE_STAT = 20033  # QueueStatRequest → QueueCounts
    RETAINED = 20034  # Retained → records back to back
    FENCE = 20040  # Fence → empty
    JOIN = 20050  # Join → Joined (directory store only, as all below)
    RENEW = 20051  # Renew → Renewed
    LEAVE = 20052  # Leave → empty
    DIRECTORY_PUT = 20053  # DirectoryPut → DirectoryPutAnswer
    DIRECTORY_READ = 20054  # DirectoryRead → DirectoryRecords (long poll)
    DIRECTORY_WAIT = 20055  # DirectoryWait → DirectoryWaited
    GATEWAY_REGISTER = 20060  # gateway → name server: GatewayRegister → empty
    GATEWAY_LIST = 20061  # anyone → name server: fields protocol, zone, topic → GatewayList
    ROUTE_WATCH = 20062  # gateway → name server: RouteWatch → RouteChanges (long poll)


class _Body(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Unknown fields are ignored and missing ones default: both ends may be upgraded alone."""


def encode_body(body: _Body) -> bytes:
    return msgspec.msgpack.encode(body)


# ── hello, lease, fence ─────────────────────────────────────────────────────────────────


class Hello(_Body, frozen=True, kw_only=True):
    """First request on each connection of a gateway to a store."""

    gateway: str
    gateway_epoch: int
    """From Joined; 0 on the connection that has yet to join."""

    is_control: bool = False
    """The connection of leases, fences and directory: served before sends."""

    lease_renewed_ms_ago: int = 0
    """Age of the last renewal: a store that has ended this gateway's presence asks for one
    renewed since the connect began."""

    protocol_version: int = 1


class HelloAnswer(_Body, frozen=True, kw_only=True):
    cluster: str
    broker: str
    advertise: str
    """``ip:port`` to write as storeHost in records."""

    log_id: str
    store_epoch: int
    is_directory_store: bool
    last_frame: int
    """Highest frame number of this gateway epoch that ran."""

    format_version: int = 1
    features: tuple[str, ...] = ()
    now_ms: int = 0


class Closing(_Body, frozen=True, kw_only=True):
    """The store stops in order; what it has run of this gateway's frames is answered before."""

    exchange_count: int = 0
    """QoS 2 publishes in it whose exchange has not ended: they may be sent again."""


class Join(_Body, frozen=True, kw_only=True):
    """Ask for a lease. A live gateway of the same name with another *instance* is refused."""

    gateway: str
    instance: str
    """Random per process."""

    address: str = ""
    protocols: dict[str, str] = {}
    """listener → host:port."""


class Joined(_Body, frozen=True, kw_only=True):
    gateway_epoch: int
    lease_ms: int
    version: int
    """Directory version of the join record: read past it before opening listeners."""


class Renew(_Body, frozen=True, kw_only=True):
    gateway: str
    gateway_epoch: int
    applied: int
    """Highest directory version that this gateway has applied."""


class Renewed(_Body, frozen=True, kw_only=True):
    is_live: bool
    """False: the lease has ended; close all clients and join again."""

    lease_ms: int = 0


class Leave(_Body, frozen=True, kw_only=True):
    """Graceful end of a lease."""

    gateway: str
    gateway_epoch: int


class Fence(_Body, frozen=True, kw_only=True):
    """Refuse frames and end streams of this and earlier epochs of *gateway*. Durable."""

    gateway: str
    gateway_epoch: int


# ── directory ───────────────────────────────────────────────────────────────────────────


class DirectoryRecord(_Body, frozen=True, kw_only=True):
    key: str
    value: bytes | None = None
    version: int = 0
    gateway: str = ""
    gateway_epoch: int = 0


class DirectoryWrite(_Body, frozen=True, kw_only=True):
    key: str
    value: bytes | None = None
    if_version: int | None = None
    is_bound: bool = False


class DirectoryPut(_Body, frozen=True, kw_only=True):
    gateway: str
    gateway_epoch: int
    writes: list[DirectoryWrite]


class DirectoryPutAnswer(_Body, frozen=True, kw_only=True):
    """Per write: whether it won, and the record that now stands."""

    results: list[tuple[bool, DirectoryRecord]]


class DirectoryRead(_Body, frozen=True, kw_only=True):
    """Live records with version > *after*, in version order; waits up to *wait_ms* for one."""

    after: int
    count_max: int = 10_000
    wait_ms: int = 0


class DirectoryRecords(_Body, frozen=True, kw_only=True):
    records: list[DirectoryRecord]
    """Latest per key; deletions (value None) are kept for readers that saw the key."""

    head: int
    """Highest version that this answer covers: apply the records, then report *head*."""

    is_more: bool = False


class DirectoryWait(_Body, frozen=True, kw_only=True):
    """Wait until every gateway with a lease has applied *version*."""

    version: int
    timeout_ms: int


class DirectoryWaited(_Body, frozen=True, kw_only=True):
    is_applied: bool
    ended: list[tuple[str, int]] = []
    """(gateway, epoch) whose leases ended since the version was written: fence them at every
    store before relying on *is_applied*."""


# ── groups, streams, queues ─────────────────────────────────────────────────────────────


class ReadItem(_Body, frozen=True, kw_only=True):
    """One queue of a read set: a light queue by *key*, or all message queues of *topic*."""

    tag: int
    key: bytes = b""
    topic: str = ""
    name: str = ""
    """Readable name of a light queue, kept with its number."""


class GroupOpen(_Body, frozen=True, kw_only=True):
    """Fields as in ``protocols.canonical.GroupSpec``."""

    name: str
    reads: list[ReadItem]
    incarnation: int = 0
    owner_epoch: int = 0
    is_volatile: bool = False
    is_auto_ack: bool = False
    is_inherited: bool = False
    is_fifo: bool = False
    is_priority: bool = False
    attempts_max: int = 0
    dead_letter_topic: str = ""
    skips_qos0_on_resume: bool = False
    start: str = "end"
    policy: dict[str, int | str] = {}
    """Of the group itself, at each store: ``max_length`` with ``overflow``."""


class GroupOpened(_Body, frozen=True, kw_only=True):
    group: int
    """Number of the group at this store, used by all later requests."""

    cursor: int
    """Log position below which everything is done."""

    is_new: bool


class GroupDrop(_Body, frozen=True, kw_only=True):
    name: str
    owner_epoch: int = 0


class StreamOpen(_Body, frozen=True, kw_only=True):
    group: int
    stream: int
    """Chosen by the gateway, unique on this connection (u32)."""

    credit: int
    """Total deliveries allowed since open."""

    holds: list[tuple[int, int]] = []
    """(position, grant) that the client still holds, on reopening: the rest returns in place."""

    is_exclusive: bool = False
    """Refused while others are open; others are refused while it is."""

    priority: int = 0
    """Others with a higher one are served first while they have credit."""

    is_resuming: bool = False
    """Inherited group: first deliver what is in flight, with packet id and stage."""

    strategy: int = 0
    """``protocols.canonical.ShareStrategy`` of the group from now on."""

    member: str = ""
    """Name of the stream to the hashing strategies."""


class StreamOpened(_Body, frozen=True, kw_only=True):
    in_flight_count: int = 0
    """Deliveries that come first because they were in flight (inherited groups)."""


class StreamClose(_Body, frozen=True, kw_only=True):
    stream: int
    is_retired: bool = False
    """Only nothing new: what is out may still be acked, and the stream is closed later."""


class StreamEnded(_Body, frozen=True, kw_only=True):
    stream: int
    code: int
    """``protocols.errors.Code``."""

    remark: str = ""


class Pop(_Body, frozen=True, kw_only=True):
    group: int
    count: int
    invisible_ms: int
    wait_ms: int = 0
    topic: str = ""
    queue_id: int = -1
    tags: list[str] = []
    sql: str = ""
    attempt_id: str = ""
    taker: str = ""
    """Client for which it is taken: by this name any gateway may ask for it (``ADOPT``)."""

    is_counted: bool = False
    """The answer is to have ``READY_COUNT``."""


class Adopt(_Body, frozen=True, kw_only=True):
    """What *taker* holds beyond the position *above*, once more and under new handles."""

    group: int
    taker: str
    invisible_ms: int
    above: int = -1


class IndexItem(NamedTuple):
    """The message at *target* enters light queues late; with a *group*, the delivery is done."""

    target: int
    keys: list[bytes]
    group: int = 0
    position: int = 0
    grant: int = 0


class Index(_Body, frozen=True, kw_only=True):
    """Late entries: what became visible without a gateway. Item and ack stand in one block."""

    store_epoch: int
    """In which the deliveries were granted."""

    items: list[IndexItem]


class QueueCreate(_Body, frozen=True, kw_only=True):
    key: bytes
    name: str
    policy: dict[str, int | str] = {}


class QueueDrop(_Body, frozen=True, kw_only=True):
    key: bytes
    group: str = ""


class QueuePurge(_Body, frozen=True, kw_only=True):
    key: bytes
    group: str


class QueueStatRequest(_Body, frozen=True, kw_only=True):
    key: bytes
    group: str


class QueueCounts(_Body, frozen=True, kw_only=True):
    ready_count: int = 0
    in_flight_count: int = 0
    stored_count: int = 0
    consumer_count: int = 0
    """Streams that may still get something."""


class Retained(_Body, frozen=True, kw_only=True):
    tenant: str
    subject_filters: list[str]


class Settle(_Body, frozen=True, kw_only=True):
    """What became of a frame whose answer was lost; a frame that never ran is spent."""

    gateway: str
    gateway_epoch: int
    frame: int


class SettleAnswer(_Body, frozen=True, kw_only=True):
    did_run: bool
    answer: bytes = b""
    """The SEND answer, if it ran."""
