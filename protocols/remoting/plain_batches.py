"""
Client batches whose members are alike, turned into records as rows of a matrix (extra ``speed``).

The members of most batches have bodies of one size and texts that differ in their ids only, and so
have those of the next batch: one look at a first member, then a few comparisons and copies of
columns for each batch, and no object a member. It is memory that takes the time, so a batch becomes
records in a form, which has all that is the same in them already and stays near the processor, and
these are copied to their block in one piece.
"""

import re
import struct
from array import array
from typing import Final, NamedTuple

from protocols.checksum import crc_of_size
from protocols.remoting.matrix import Matrix, np
from protocols.remoting.plain_records import FRONT_BYTES, PlainRecords
from protocols.remoting.records import BODY_CRC_AT, BODY_CRC_MASK
from protocols.remoting.row_sums import ROWS_BYTES_MIN, BuiltSums, RowSums

MEMBERS_MIN: Final = 8
"""From here on columns are faster (measured)."""

SHAPES_MAX: Final = 64
"""Shapes that are remembered."""

_HEAD: Final = struct.Struct(">IIIiI")
"""Of a member: size, magic, CRC, flag, size of the body (``MessageDecoder.encodeMessage``)."""

_HEAD_BYTES: Final = _HEAD.size
_HEAD_AT: Final = FRONT_BYTES - _HEAD_BYTES
"""Where it lies in a record, before the body, until the members are known to be alike."""

_U16: Final = struct.Struct(">H")

PIECE_BYTES: Final = 64 << 10
"""Of records that are made at a time: as much stays near a processor. Of a larger message it is the
body that costs, and each shape would keep one."""

FORMS_MAX: Final = 8
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
        "_forms", "_layout", "_sums", "behind", "behind_id", "body_size", "crc", "flag", "ids",
        "piece_count", "record_size", "row_count", "size", "suffix", "tail_at", "tail_end", "text",
        "to_id", "topic_end",
    )  # fmt: skip

    def __init__(self, records: PlainRecords, member: bytes, text_at: int) -> None:
        """*member*: a plain one; *text_at*: where its properties begin."""
        _, _, _, self.flag, self.body_size = _HEAD.unpack_from(member)
        self.size = len(member)
        self.crc = crc_of_size(self.body_size)
        self.text = member[text_at:]
        """Properties of the first member."""

        self.tail_at = text_at - _U16.size
        """Where in a member the size of its properties stands, and they behind it: its tail."""

        start, end = records.id_span(self.text)
        self.ids = slice(_U16.size + start, _U16.size + end)
        """Of a tail."""

        self.to_id = member[self.tail_at : text_at + start]
        self.behind_id = member[text_at + end :]
        self._layout = records.layout
        self.record_size = records.record_size(self.body_size, self.text)
        self.piece_count = max(1, PIECE_BYTES // self.record_size)
        self.behind = FRONT_BYTES + self.body_size
        """Where topics stand in a record."""

        _, self.suffix = records.around(self.text)
        self.topic_end = self.behind + len(records.topic_field)
        self.tail_end = self.topic_end + _U16.size + len(self.text)
        self._forms: dict[int, Form] = {}
        self._sums: RowSums | None = None
        self.row_count = 0
        """Members that came in a tick."""

    def begins(self, records: PlainRecords, body: bytes | memoryview) -> bool:
        """Whether the first of the members in *body* has it, if it has these sizes."""
        tail_at, ids, size = self.tail_at, self.ids, self.size
        return (
            records.layout == self._layout
            and not len(body) % size
            and body[tail_at : tail_at + ids.start] == self.to_id
            and body[tail_at + ids.stop : size] == self.behind_id
        )

    def form(self, count: int) -> "Form":
        """For *count* members."""
        form = self._forms.get(count)
        if form is None:
            if len(self._forms) >= FORMS_MAX:
                self._forms.clear()
            form = self._forms[count] = Form(self, count)
        return form

    def sums(self) -> RowSums:
        """Tables for records whose topics are the same."""
        if self._sums is None:
            ids = slice(self.topic_end + self.ids.start, self.topic_end + self.ids.stop)
            self._sums = RowSums(self.record_size, self.body_size, ids)
        return self._sums


class Form:
    """So many records of one shape, filled in anew by each batch."""

    def __init__(self, shape: Shape, count: int) -> None:
        size, ids = shape.record_size, shape.ids
        self.made = made = np.zeros((count, size), np.uint8)
        self._crc = shape.crc
        self._fronts = made[:, :FRONT_BYTES]
        self._starts = made[:, _HEAD_AT : shape.behind]
        """Head and body as they came."""

        self._sizes = made[:, _HEAD_AT : _HEAD_AT + 4]
        self._facts = made[:, FRONT_BYTES - 8 : FRONT_BYTES]
        """Flag and size of the body."""

        self._tails = tails = made[:, shape.topic_end : shape.tail_end]
        self._ids = tails[:, ids]
        self._behind_id = tails[:, ids.stop :]
        self._to_id = tails[:, : ids.start]
        self._text_sizes = tails[:, : _U16.size]
        self._topics = made[:, shape.behind : shape.topic_end]
        self._topic = b""
        made[:, shape.tail_end :] = _column(shape.suffix)
        self._body_crcs = np.ndarray((count,), ">u4", made, BODY_CRC_AT, (size,))
        whole = memoryview(made.reshape(-1))
        self._bodies = [
            whole[at + FRONT_BYTES : at + shape.behind] for at in range(0, count * size, size)
        ]
        self._tail_at = shape.tail_at
        self._text_size = _column(_U16.pack(len(shape.text) + len(shape.suffix)))
        self._alike = (
            shape.size.to_bytes(4, "big") * count,
            struct.pack(">iI", shape.flag, shape.body_size) * count,
            shape.to_id * count,
            shape.behind_id * count,
        )

    def fill(self, members: Matrix) -> bytes:
        """With what *members*, a row each, have of their own; their ids; none: they differ."""
        self._starts[...] = members[:, : self._tail_at]
        self._tails[...] = members[:, self._tail_at :]
        sizes, facts, to_id, behind_id = self._alike
        is_alike = (
            self._sizes.tobytes() == sizes
            and self._facts.tobytes() == facts
            and self._to_id.tobytes() == to_id
            and self._behind_id.tobytes() == behind_id
        )
        ids: bytes = self._ids.tobytes() if is_alike else b""
        # what looks like an id there may be more than one
        return ids if ids.isalnum() or not _no_id(ids) else b""

    def finish(self, front: Matrix, topic: bytes) -> "array[int]":
        """*front*: what stands before the bodies, but for their CRCs; these CRCs."""
        self._fronts[...] = front
        self._text_sizes[...] = self._text_size
        if topic != self._topic:
            self._topics[...] = _column(topic)
            self._topic = topic
        crcs = array("I", map(self._crc, self._bodies))
        self._body_crcs[...] = np.frombuffer(crcs, np.uint32) & BODY_CRC_MASK
        return crcs


def _column(value: bytes) -> Matrix:
    return np.frombuffer(value, np.uint8)


def _enlarged(made: Matrix, count: int) -> Matrix:
    """With room for *count* rows (``resize`` would clear it first)."""
    larger = np.empty((count, made.shape[1]), np.uint8)
    larger[: len(made)] = made
    return larger


class Rows:
    """Records of members of one shape, in the order they came."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.count = 0
        self.counts: list[int] = []
        """Members of each batch."""

        self._made = np.empty((shape.row_count, shape.record_size), np.uint8)
        self._crcs = array("I")
        self._ids: list[bytes] = []
        self._topics: set[bytes] = set()

    def add(self, batch: Batch) -> int:
        """Those of *batch*; how many they are, 0: they are not alike, and it is left out."""
        records, body, sys_flag, born_ms, born_host, reconsume_count = batch
        shape, start, piece_count = self.shape, self.count, self.shape.piece_count
        count = len(body) // shape.size
        end = start + count
        if end > len(self._made):
            self._made = _enlarged(self._made[:start], 2 * end)
        members = np.ndarray((count, shape.size), np.uint8, body)
        front = _column(
            records.front(
                shape.record_size, 0, shape.flag, sys_flag, born_ms, born_host, reconsume_count,
                shape.body_size,
            )
        )  # fmt: skip
        crcs = array("I")
        found: list[bytes] = []
        for at in range(0, count, piece_count):
            piece = members[at : at + piece_count]
            form = shape.form(len(piece))
            ids = form.fill(piece)
            if not ids:
                return 0
            crcs += form.finish(front, records.topic_field)
            found.append(ids)
            self._made[start + at : start + at + len(piece)] = form.made
        self.count = end
        self.counts.append(count)
        self._crcs += crcs
        self._ids += found
        self._topics.add(records.topic_field)
        return count

    def build(self) -> Built:
        """All of them; nothing may be added any more."""
        shape, made, count = self.shape, self._made, self.count
        made.resize((count, shape.record_size), refcheck=False)  # what was too much is free again
        shape.row_count = max(count + count // 4, shape.row_count * 15 // 16)
        sums = None
        if len(self._topics) == 1 and made.size >= ROWS_BYTES_MIN:
            ids = _column(b"".join(self._ids)).reshape(count, -1)
            sums = BuiltSums(shape.sums(), self.counts, np.frombuffer(self._crcs, np.uint32), ids)
        return Built(made.reshape(-1).data, sums)


class Shapes:
    """Those of the batches that came before: the next ones are like them, mostly."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int, int], Shape] = {}
        """By size, flag and size of the body."""

        self.known: dict[tuple[object, ...], Shape] = {}
        """By all that members must have in common."""

    def find(self, records: PlainRecords, body: bytes | memoryview) -> Shape | None:
        """
        The shape that a batch has if its members are alike (``Rows.add`` knows).

        None: they differ, or are not plain, or columns do not pay.
        """
        if np is None or len(body) < _HEAD_BYTES:
            return None
        size, _, _, flag, body_size = _HEAD.unpack_from(body)
        if not MEMBERS_MIN * size <= len(body) or not size:
            return None
        shape = self._latest.get((size, flag, body_size))
        if shape is None or not shape.begins(records, body):
            shape = self._other(records, body)
            if shape is not None:
                self._latest[size, flag, body_size] = shape
        return shape

    def _other(self, records: PlainRecords, body: bytes | memoryview) -> Shape | None:
        """One that is not that of the last batch with these sizes."""
        size, _, _, flag, body_size = _HEAD.unpack_from(body)
        text_at = _HEAD_BYTES + body_size + _U16.size
        if not text_at < size <= PIECE_BYTES or len(body) % size:
            return None
        member = bytes(body[:size])
        text = member[text_at:]
        (text_size,) = _U16.unpack_from(member, text_at - _U16.size)
        if len(text) != text_size or not records.message_id(text):
            return None
        start, end = records.id_span(text)
        before, behind = text[:start], text[end:]
        last = bytes(body[len(body) - text_size :])
        if last[:start] != before or last[end:] != behind:
            return None  # keys or tags of their own, say: no next batch is like this one either
        key = (size, flag, body_size, before, behind, records.layout)
        shape = self.known.get(key)
        if shape is None:
            if len(self.known) >= SHAPES_MAX:
                self.known.clear()
                self._latest.clear()
            shape = self.known[key] = Shape(records, member, text_at)
        return shape
