"""
What our gateway and our store say to each other beyond standard RocketMQ codes.

Codes 20000 to 20999 (they fit the binary header's 16 bits). Apache brokers answer HELLO with 3
(REQUEST_CODE_NOT_SUPPORTED): that, not the route, tells a broker is not ours. Rare requests
carry a msgpack ``Struct`` as body; the four that carry messages (SEND, DELIVER, POP's answer,
ACK) are packed binary. All integers big-endian. One result per item, in order. A request that
fails as a whole is answered with a standard response code and a remark.
"""

import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from protocols.errors import PeerError
from protocols.remoting.matrix import item_matrix

FRAME_BYTES_MAX: Final = 4 << 20
"""Largest private frame."""

FRAME_ITEMS_MAX: Final = 1024
"""Above this a frame's round trip costs more than it saves (measured: 1 to 5 ms)."""


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
    POP = 20020  # Pop → binary DELIVER body (long poll)
    ACK = 20021  # binary ACK items → binary results
    MARK = 20022  # binary MARK items → binary results (waits for the disk; oneway: does not)
    INDEX = 20023  # Index → binary results
    ADOPT = 20024  # Adopt → binary DELIVER body
    ONCE_RELEASE = 20026  # once-keys back to back → empty
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


# ── SEND ────────────────────────────────────────────────────────────────────────────────
#
#   head    | gateway epoch u64 | frame u64 | answered u64 | sets u16 | items u16 | table u32 |
#   sets    per set:  | flags u8 | topic length u8 | queue id u16 | keys u16 | topic | keys |
#   items   per item: | length u32 | set u16 | flags u16 | order u64 | expires u64 | once 16 B |
#   records back to back, RocketMQ's stored format
#
# A set is what the messages of one head share: which message queue, which light queues.

SEND_HEAD: Final = struct.Struct(">QQQHHI")
SET_HEAD: Final = struct.Struct(">BBHH")
ITEM: Final = struct.Struct(">IHHQQ16s")
NO_ONCE_KEY: Final = b"\x00" * 16


class SetFlag(IntFlag):
    IS_PRIMARY = 1  # goes to message queue (topic, queue id); else light queues only
    IS_RETAINED = 2  # the last key is the retained queue: remember as the value of its address


class ItemFlag(IntFlag):
    QOS = 0x3  # MQTT QoS of the publish
    RETAIN = 0x4
    CLEARS_RETAINED = 0x8  # empty body with retain: forget the address
    HAS_ONCE_KEY = 0x10
    DELAYED = 0x20  # held until TIMER_DELIVER_MS of its record
    HALF = 0x40  # held until its producer commits


class SendSet(NamedTuple):
    flags: int
    topic: str
    queue_id: int
    keys: tuple[bytes, ...]


class SendItem(NamedTuple):
    length: int
    """Bytes of its record."""

    set_index: int
    flags: int
    order_hash: int
    """64-bit hash of the order key; 0: none."""

    expires_at_ms: int
    once_key: bytes
    """16 bytes; ``NO_ONCE_KEY``: none."""


class SendColumns(NamedTuple):
    """The items of a frame by field: what a store works on, without an object per item."""

    lengths: Sequence[int]
    set_indexes: Sequence[int]
    flags: Sequence[int]
    order_hashes: Sequence[int]
    expires_at_ms: Sequence[int]
    once_keys: Sequence[bytes]


class SendFrame:
    """A decoded SEND body, checked: its tables fit, its lengths add up."""

    __slots__ = (
        "_columns",
        "_table",
        "answered",
        "frame",
        "gateway_epoch",
        "matrix",
        "records",
        "sets",
    )

    def __init__(
        self,
        gateway_epoch: int,
        frame: int,
        answered: int,
        sets: tuple[SendSet, ...],
        table: memoryview,
        records: memoryview,
    ) -> None:
        self.gateway_epoch = gateway_epoch
        self.frame = frame
        self.answered = answered
        """Highest frame number up to which the gateway has all answers: results may go."""

        self.sets = sets
        self.records = records
        """All records back to back; the store copies them once."""

        self._table = table
        self._columns: SendColumns | None = None
        self.matrix = item_matrix(table, len(table) // ITEM.size)
        """The items as numpy columns, in a big frame where numpy is installed; else None."""

    @property
    def columns(self) -> SendColumns:
        """The items by field."""
        if self._columns is None:
            rows = ITEM.iter_unpack(self._table)
            self._columns = SendColumns._make(list(zip(*rows, strict=True)) or [()] * 6)
        return self._columns

    @property
    def item_count(self) -> int:
        return len(self._table) // ITEM.size

    @property
    def length_min(self) -> int:
        """Bytes of the shortest record; 0: there is none."""
        if self.matrix is not None:
            return int(self.matrix["length"].min())
        return min(self.columns.lengths, default=0)

    def check(self) -> None:
        """Raises PeerError if a length or a set index leads outside."""
        if self.matrix is not None:
            total, last = int(self.matrix["length"].sum()), int(self.matrix["set"].max())
        else:
            total = sum(self.columns.lengths)
            last = max(self.columns.set_indexes, default=-1)
        if total != len(self.records):
            raise PeerError("SEND frame: record lengths do not add up to the body")
        if last >= len(self.sets):
            raise PeerError("SEND frame: item names a set that is not there")

    @property
    def items(self) -> list[SendItem]:
        """Row by row, for those who are in no hurry."""
        return [SendItem._make(item) for item in zip(*self.columns, strict=True)]


def encode_set(send_set: SendSet) -> bytes:
    """The set's bytes; cache them beside the head."""
    topic = send_set.topic.encode()
    head = SET_HEAD.pack(send_set.flags, len(topic), send_set.queue_id, len(send_set.keys))
    return b"".join((head, topic, *send_set.keys))


def encode_send(
    gateway_epoch: int,
    frame: int,
    answered: int,
    sets: Sequence[bytes],
    items: Sequence[bytes],
    records: Sequence[bytes | memoryview],
    *,
    item_count: int = -1,
) -> bytes:
    """
    A SEND body from encoded sets, packed ``ITEM``s and record pieces.

    *item_count*: needed where one piece of *items* holds several.
    """
    sets_bytes = b"".join(sets)
    count = item_count if item_count >= 0 else len(items)
    head = SEND_HEAD.pack(gateway_epoch, frame, answered, len(sets), count, len(sets_bytes))
    return b"".join((head, sets_bytes, *items, *records))


_known_sets: dict[bytes, SendSet] = {}
"""By their bytes: a head's set is the same in each of its frames."""

KNOWN_SETS_MAX: Final = 1 << 15
"""Some 300 bytes each; when full, all are forgotten."""


def _learn_set(data: bytes) -> SendSet:
    flags, topic_size, queue_id, key_count = SET_HEAD.unpack_from(data)
    keys_at = SET_HEAD.size + topic_size
    topic = data[SET_HEAD.size : keys_at].decode()
    keys = [data[at : at + 16] for at in range(keys_at, len(data), 16)]
    found = SendSet(flags, topic, queue_id, tuple(keys))
    if len(data) == keys_at + 16 * key_count:  # else the frame is refused
        if len(_known_sets) >= KNOWN_SETS_MAX:
            _known_sets.clear()
        _known_sets[data] = found
    return found


def decode_send(body: bytes | memoryview) -> SendFrame:
    """Raises PeerError if a length lies outside the body."""
    view = memoryview(body)
    try:
        epoch, frame, answered, set_count, item_count, sets_size = SEND_HEAD.unpack_from(view)
        start = SEND_HEAD.size
        items_start = start + sets_size
        sets: list[SendSet] = []
        for _ in range(set_count):
            _, topic_size, _, key_count = SET_HEAD.unpack_from(view, start)
            stop = start + SET_HEAD.size + topic_size + 16 * key_count
            data = bytes(view[start:stop])
            sets.append(_known_sets.get(data) or _learn_set(data))
            start = stop
        records_start = items_start + item_count * ITEM.size
        if start != items_start or records_start > len(view):
            raise PeerError("SEND frame: tables do not fit the body")
    except (struct.error, UnicodeDecodeError) as error:
        raise PeerError(f"SEND frame: {error}") from error
    table, records = view[items_start:records_start], view[records_start:]
    decoded = SendFrame(epoch, frame, answered, tuple(sets), table, records)
    decoded.check()
    return decoded


#   SEND answer
#   | frame u64 | count u16 | refused u16 | partial u16 |
#   | positions u64 x count | offsets i64 x count |
#   refused: | index u16 | code u32 | length u16 | remark |
#   partial: | index u16 | key 16 B | code u32 |      one light queue did not take a stored item
#
# A refused item has position 0 and offset -1. An item without a message queue has offset -1.

ANSWER_HEAD: Final = struct.Struct(">QHHH")
PARTIAL: Final = struct.Struct(">H16sI")
REFUSAL: Final = struct.Struct(">HIH")


class SendAnswer(NamedTuple):
    frame: int
    positions: "array[int]"
    offsets: "array[int]"
    refused: dict[int, tuple[int, str]]
    """Item index → (``protocols.errors.Code``, remark)."""

    partial: Sequence[tuple[int, bytes, int]] = ()
    """(item index, light queue key, code): gone (NOT_FOUND) or full (LITE_TOPIC_QUOTA_EXCEEDED)."""


def encode_send_answer(answer: SendAnswer) -> bytes:
    positions, offsets = answer.positions[:], answer.offsets[:]
    positions.byteswap()  # arrays are little-endian on every machine we run on
    offsets.byteswap()
    pieces = [
        ANSWER_HEAD.pack(answer.frame, len(positions), len(answer.refused), len(answer.partial)),
        positions.tobytes(),
        offsets.tobytes(),
    ]
    for index, (code, remark) in answer.refused.items():
        text = remark.encode()[:1000]
        pieces += (REFUSAL.pack(index, code, len(text)), text)
    pieces += [PARTIAL.pack(*item) for item in answer.partial]
    return b"".join(pieces)


def decode_send_answer(body: bytes | memoryview) -> SendAnswer:
    """Raises PeerError on a body that is none."""
    view = memoryview(body)
    try:
        frame, count, refused_count, partial_count = ANSWER_HEAD.unpack_from(view)
        start, middle = ANSWER_HEAD.size, ANSWER_HEAD.size + 8 * count
        end = middle + 8 * count
        positions, offsets = array("Q"), array("q")
        positions.frombytes(view[start:middle])
        offsets.frombytes(view[middle:end])
        refused: dict[int, tuple[int, str]] = {}
        for _ in range(refused_count):
            index, code, size = REFUSAL.unpack_from(view, end)
            end += REFUSAL.size
            refused[index] = (code, str(view[end : end + size], "utf-8", "replace"))
            end += size
        partial = list(PARTIAL.iter_unpack(view[end : end + partial_count * PARTIAL.size]))
    except (struct.error, ValueError) as error:
        raise PeerError(f"SEND answer: {error}") from error
    positions.byteswap()
    offsets.byteswap()
    return SendAnswer(frame, positions, offsets, refused, partial)


# ── ACK, MARK, STREAM_CREDIT ────────────────────────────────────────────────────────────
#
#   ACK:   | store epoch u64 | item*: group u32, position u64, grant u32, action u8, delay ms u64 |
#   MARK:  | store epoch u64 | item*: group u32, position u64, grant u32, packet id u16, stage u8 |
#   answer of both: | grant u32 | code u32 | per item; grant is the new one after a change


class AckAction(IntEnum):
    ACK = 0
    CHANGE = 1  # visible again after delay ms (0: now, in place); counts as an attempt
    RELEASE = 2  # as CHANGE with 0, and the attempt does not count: the client never saw it
    REJECT = 3  # done, and handed over as a dead letter where the queue's policy says so
    RENEW = 4  # hidden for delay ms from now on; the grant stays, and so do handles of it


IF_ABSENT: Final = "tgIfAbsent"
"""Of UPDATE_AND_CREATE_TOPIC (17): a topic that is there stays as it is; the answer says how
many queues it has (``writeQueueNums``)."""

RELEASE_FIELD: Final = "tgRelease"
"""Of a standard change of the invisible time (200053): RELEASE it, nobody saw it."""

ACK_ITEM: Final = struct.Struct(">IQIBQ")
MARK_ITEM: Final = struct.Struct(">IQIHB")
ACK_RESULT: Final = struct.Struct(">II")
CREDIT_ITEM: Final = struct.Struct(">IQ")
EPOCH: Final = struct.Struct(">Q")


class AckItem(NamedTuple):
    group: int
    position: int
    grant: int
    action: int = AckAction.ACK
    delay_ms: int = 0


AckRow = tuple[int, int, int, int, int]
"""An ``AckItem``, or its fields as they came off the wire."""


class MarkItem(NamedTuple):
    group: int
    position: int
    grant: int
    packet_id: int
    stage: int


def encode_acks(store_epoch: int, items: Sequence[AckItem]) -> bytes:
    return EPOCH.pack(store_epoch) + b"".join([ACK_ITEM.pack(*item) for item in items])


def encode_marks(store_epoch: int, items: Sequence[MarkItem]) -> bytes:
    return EPOCH.pack(store_epoch) + b"".join([MARK_ITEM.pack(*item) for item in items])


def decode_acks(body: bytes | memoryview) -> tuple[int, list[AckRow]]:
    """(store epoch, items). Raises PeerError."""
    try:
        (epoch,) = EPOCH.unpack_from(body)
        return epoch, list(ACK_ITEM.iter_unpack(memoryview(body)[EPOCH.size :]))
    except struct.error as error:
        raise PeerError(f"ACK body: {error}") from error


def decode_marks(body: bytes | memoryview) -> tuple[int, list[MarkItem]]:
    """(store epoch, items). Raises PeerError."""
    try:
        (epoch,) = EPOCH.unpack_from(body)
        items = MARK_ITEM.iter_unpack(memoryview(body)[EPOCH.size :])
        return epoch, [tuple.__new__(MarkItem, item) for item in items]
    except struct.error as error:
        raise PeerError(f"MARK body: {error}") from error


def encode_ack_results(results: Sequence[tuple[int, int]]) -> bytes:
    """(grant, code) each."""
    if results and results.count(results[0]) == len(results):
        return ACK_RESULT.pack(*results[0]) * len(results)
    return b"".join([ACK_RESULT.pack(*result) for result in results])


def decode_ack_results(body: bytes | memoryview) -> list[tuple[int, int]]:
    """(grant, code) each. Raises PeerError."""
    try:
        return list(ACK_RESULT.iter_unpack(body))
    except struct.error as error:
        raise PeerError(f"ACK answer: {error}") from error


def encode_credits(items: Sequence[tuple[int, int]]) -> bytes:
    """(stream, total allowed) each."""
    return b"".join([CREDIT_ITEM.pack(*item) for item in items])


def decode_credits(body: bytes | memoryview) -> list[tuple[int, int]]:
    """(stream, total allowed) each. Raises PeerError."""
    try:
        return list(CREDIT_ITEM.iter_unpack(body))
    except struct.error as error:
        raise PeerError(f"STREAM_CREDIT body: {error}") from error


def order_hash(key: str) -> int:
    """64 bits of an order key; never 0, which means none."""
    if not key:
        return 0
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1
