"""
SEND between our gateway and our store: many messages in one frame, one result for each.

::

    head    | gateway epoch u64 | frame u64 | answered u64 | sets u16 | items u16 | table u32 |
    sets    per set:  | flags u8 | topic length u8 | queue id u16 | keys u16 | topic | keys |
    items   per item: | length u32 | set u16 | flags u16 | order u64 | expires u64 | once 16 B |
    records back to back, RocketMQ's stored format

A set is what the messages of one head share: which message queue, which light queues. All
integers big-endian.
"""

import struct
from array import array
from collections.abc import Sequence
from enum import IntFlag
from hashlib import blake2b
from typing import Final, NamedTuple

from protocols.errors import PeerError
from protocols.remoting.matrix import Matrix, item_matrix, run_starts

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


Row = tuple[int, int, int, int, int, bytes]
"""A ``SendItem`` without its name."""


class ItemRun(NamedTuple):
    """Items next to one another that say the same."""

    first: int
    stop: int
    length: int
    """Bytes of each record."""

    set_index: int
    flags: int
    order_hash: int
    expires_at_ms: int


class SendFrame:
    """A decoded SEND body, checked: its tables fit, its lengths add up."""

    __slots__ = (
        "_columns",
        "_matrix",
        "_table",
        "answered",
        "frame",
        "gateway_epoch",
        "lone",
        "records",
        "runs",
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
        """All records back to back."""

        self._table = table
        self._columns: SendColumns | None = None
        is_lone = len(table) == ITEM.size
        self.lone: Row | None = ITEM.unpack(table) if is_lone else None
        """The item of a frame that has but one: (length, set index, flags, …) as in a column."""

        self._matrix: Matrix | None = None
        self.runs: list[ItemRun] | None = _runs_of(table)
        """The items of a big frame that consists of few runs, if numpy is installed."""

    @property
    def matrix(self) -> Matrix | None:
        """The items as numpy columns, in a big frame where numpy is installed; else None."""
        if self._matrix is None:
            self._matrix = item_matrix(self._table, self.item_count)
        return self._matrix

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
    def own_records(self) -> bytearray | memoryview:
        """The records for the store to patch: in place, or in its one copy of what must not be."""
        return bytearray(self.records) if self.records.readonly else self.records

    @property
    def length_min(self) -> int:
        """Bytes of the shortest record; 0: there is none."""
        if self.lone is not None:
            return self.lone[0]
        if self.runs is not None:
            return min([run.length for run in self.runs])
        if self.matrix is not None:
            return int(self.matrix["length"].min())
        return min(self.columns.lengths, default=0)

    def check(self) -> None:
        """Raises PeerError if a length or a set index leads outside."""
        if self.lone is not None:
            total, last = self.lone[:2]
        elif self.runs is not None:
            total = sum([(run.stop - run.first) * run.length for run in self.runs])
            last = max([run.set_index for run in self.runs])
        elif self.matrix is not None:
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


def _runs_of(table: memoryview) -> list[ItemRun] | None:
    count = len(table) // ITEM.size
    starts = run_starts(table, count, ITEM.size)
    if starts is None:
        return None
    return [
        ItemRun(first, stop, *ITEM.unpack_from(table, first * ITEM.size)[:5])
        for first, stop in zip(starts, [*starts[1:], count], strict=True)
    ]


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

KNOWN_SETS_MAX: Final = 1 << 17
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


def order_hash(key: str) -> int:
    """64 bits of an order key; never 0, which means none."""
    if not key:
        return 0
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1
