"""
Client batches whose members are alike, turned into records as rows of a matrix (extra ``speed``).

The members of most batches have bodies of one size and texts that differ in their ids only, and so
have those of the next batch: one look at a first member, then a few comparisons and copies of
columns for each batch, while what was just read is near the processor, and no object a member.
What is the same in all of them is filled in when the tick has brought its batches.
"""

import re
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.checksum import crc_of_size
from protocols.remoting.matrix import Matrix, np
from protocols.remoting.plain_records import FRONT_BYTES, PlainRecords
from protocols.remoting.records import BODY_CRC_AT, BODY_CRC_MASK
from protocols.remoting.row_sums import ROWS_BYTES_MIN, BuiltSums, RowSums

MEMBERS_MIN: Final = 8
"""From here on columns are faster (measured)."""

SHAPES_MAX: Final = 256
"""Shapes that are remembered."""

_HEAD: Final = struct.Struct(">IIIiI")
"""Of a member: size, magic, CRC, flag, size of the body (``MessageDecoder.encodeMessage``)."""

_HEAD_BYTES: Final = _HEAD.size
_U16: Final = struct.Struct(">H")
_SIZE: Final = slice(0, 4)
_FACTS: Final = slice(12, 20)
"""Flag and size of the body."""

COUNTS_MAX: Final = 16
"""Of a shape: sizes of batches that are remembered."""

_no_id: Final = re.compile(rb"[\0-\x1f]").search


class Batch(NamedTuple):
    """A client batch as it came, and what its request says of all its members."""

    records: PlainRecords
    body: bytes | memoryview
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_count: int


class Built(NamedTuple):
    """Records back to back."""

    records: memoryview
    sums: BuiltSums | None
    """None: their CRCs are to be made one by one."""


class Shape:
    """What members have in common: everything but their ids and what is in their bodies."""

    __slots__ = (
        "_alike", "_layout", "_sums", "behind", "body_size", "crc", "flag", "ids", "kind",
        "record_size", "row_count", "size", "suffix", "text", "text_at", "topic_end",
    )  # fmt: skip

    def __init__(self, records: PlainRecords, member: bytes, text_at: int) -> None:
        """*member*: a plain one; *text_at*: where its properties begin."""
        _, _, _, self.flag, self.body_size = _HEAD.unpack_from(member)
        self.size = len(member)
        self.kind = np.dtype(f"V{self.body_size}")
        """Of numpy, for a body."""

        self.crc = crc_of_size(self.body_size)
        self.text_at = text_at
        self.text = member[text_at:]
        """Properties of the first member."""

        start, end = records.id_span(self.text)
        self.ids = slice(text_at + start, text_at + end)
        self._alike: dict[int, Alike] = {}
        self._layout = records.layout
        self.record_size = records.record_size(self.body_size, self.text)
        self.behind = FRONT_BYTES + self.body_size
        """Where topics stand in a record."""

        _, self.suffix = records.around(self.text)
        self.topic_end = self.behind + len(records.topic_field)
        self._sums: RowSums | None = None
        self.row_count = 0
        """Members that came in a tick."""

    def fits(self, records: PlainRecords, body: bytes | memoryview) -> Matrix | None:
        """The members in *body* as rows, if all of them are alike; None: they are not."""
        size, text_at = self.size, self.text_at
        if len(body) % size or records.layout != self._layout:
            return None
        count = len(body) // size
        rows = np.frombuffer(body, np.uint8).reshape(count, size)
        known = self._alike.get(count)
        if known is None:
            if len(self._alike) >= COUNTS_MAX:
                self._alike.clear()
            known = self._alike[count] = Alike(self, count)
        is_alike = (
            rows[:, : _SIZE.stop].tobytes() == known.sizes
            and rows[:, _FACTS].tobytes() == known.facts
        )
        if not is_alike:
            return None
        ids = rows[:, self.ids].tobytes()
        if not ids.isalnum() and _no_id(ids):  # what looks like an id there is more than one
            return None
        known.ids[:] = np.frombuffer(ids, np.uint8).reshape(count, -1)
        return rows if rows[:, text_at - _U16.size :].tobytes() == known.texts.tobytes() else None

    def sums(self) -> RowSums:
        """Tables for records whose topics are the same."""
        if self._sums is None:
            shift = self.topic_end + _U16.size - self.text_at
            ids = slice(self.ids.start + shift, self.ids.stop + shift)
            self._sums = RowSums(self.record_size, self.body_size, ids)
        return self._sums


class Alike:
    """What some columns hold of so many members, if they are alike."""

    def __init__(self, shape: Shape, count: int) -> None:
        size = len(shape.text)
        self.sizes = shape.size.to_bytes(4, "big") * count
        self.facts = struct.pack(">iI", shape.flag, shape.body_size) * count
        text = _U16.pack(size) + shape.text
        self.texts = np.tile(np.frombuffer(text, np.uint8), (count, 1))
        """All of it; the ids are filled in."""

        start = shape.text_at - _U16.size
        self.ids = self.texts[:, shape.ids.start - start : shape.ids.stop - start]


class Rows:
    """Members of one shape in the order they came, on their way to become records."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.count = 0
        self.counts: list[int] = []
        """Members of each batch."""

        self._made = np.empty((shape.row_count, shape.record_size), np.uint8)
        self._crcs: list[int] = []
        self._fronts: list[bytes] = []
        self._records: list[PlainRecords] = []

    def add(self, batch: Batch, rows: Matrix) -> None:
        """Those of *batch*, which are *rows*; they are copied."""
        shape, count = self.shape, len(rows)
        body_size, at = shape.body_size, self.count
        self.count = end = at + count
        if end > len(self._made):
            self._made.resize((2 * end, shape.record_size), refcheck=False)
        made = self._made[at:end]
        if body_size:
            made[:, FRONT_BYTES : shape.behind] = rows[:, _HEAD_BYTES : _HEAD_BYTES + body_size]
            bodies = np.ndarray((count,), shape.kind, batch.body, _HEAD_BYTES, (shape.size,))
            self._crcs += map(shape.crc, bodies.tolist())
        text_at = shape.topic_end + _U16.size
        made[:, text_at : text_at + len(shape.text)] = rows[:, shape.text_at :]
        self.counts.append(count)
        self._records.append(batch.records)
        self._fronts.append(
            batch.records.front(
                shape.record_size, 0, shape.flag, batch.sys_flag, batch.born_ms, batch.born_host,
                batch.reconsume_count, body_size,
            )
        )  # fmt: skip

    def build(self) -> Built:
        """The records of all of them; nothing may be added any more."""
        shape, made, count, size = self.shape, self._made, self.count, self.shape.record_size
        made.resize((count, size), refcheck=False)  # in place: what was too much is free again
        shape.row_count = count + count // 4
        self._spread(made, slice(0, FRONT_BYTES), self._fronts)
        crcs = np.array(self._crcs or [0] * count, np.uint32)
        if shape.body_size:
            np.ndarray((count,), ">u4", made.data, BODY_CRC_AT, (size,))[:] = crcs & BODY_CRC_MASK
        topics = [records.topic_field for records in self._records]
        text_at = shape.topic_end + _U16.size
        is_one_topic = topics.count(topics[0]) == len(topics)
        self._spread(
            made, slice(shape.behind, shape.topic_end), topics[:1] if is_one_topic else topics
        )
        suffix = shape.suffix
        made[:, shape.topic_end : text_at] = np.frombuffer(
            _U16.pack(len(shape.text) + len(suffix)), np.uint8
        )
        made[:, text_at + len(shape.text) :] = np.frombuffer(suffix, np.uint8)
        sums = None
        if is_one_topic and count * size >= ROWS_BYTES_MIN:
            sums = BuiltSums(shape.sums(), self.counts, crcs)
        return Built(made.reshape(-1).data, sums)

    def _spread(self, made: Matrix, columns: slice, pieces: Sequence[bytes]) -> None:
        """A piece for each batch, or one for all, to all of its rows."""
        values = np.frombuffer(b"".join(pieces), np.uint8).reshape(len(pieces), -1)
        counts = self.counts
        if len(pieces) > 1 and counts.count(counts[0]) < len(counts):
            made[:, columns] = np.repeat(values, counts, axis=0)
            return
        parts = made.reshape(len(pieces), -1, made.shape[1])
        parts[:, :, columns] = values[:, None]


class Shapes:
    """Those of the batches that came before: the next ones are like them, mostly."""

    def __init__(self) -> None:
        self._known: dict[bytes, Shape] = {}

    def find(self, records: PlainRecords, body: bytes | memoryview) -> tuple[Shape, Matrix] | None:
        """
        The shape of a batch whose members are alike, and they as rows.

        None: it is not plain, or they differ, or columns do not pay.
        """
        if np is None or len(body) < _HEAD_BYTES:
            return None
        size, _, _, _, body_size = _HEAD.unpack_from(body)
        if not MEMBERS_MIN * size <= len(body) or not size:
            return None
        key = bytes(body[_SIZE]) + bytes(body[_FACTS])
        shape = self._known.get(key)
        if shape is not None and (rows := shape.fits(records, body)) is not None:
            return shape, rows
        text_at = _HEAD_BYTES + body_size + _U16.size
        if not text_at < size or len(body) % size:
            return None
        member = bytes(body[:size])
        text = member[text_at:]
        (text_size,) = _U16.unpack_from(member, text_at - _U16.size)
        if len(text) != text_size or not records.message_id(text):
            return None
        shape = Shape(records, member, text_at)
        rows = shape.fits(records, body)
        if rows is None:
            return None
        if len(self._known) >= SHAPES_MAX:
            self._known.clear()
        self._known[key] = shape
        return shape, rows
