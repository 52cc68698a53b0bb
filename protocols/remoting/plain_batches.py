"""
Client batches whose members are alike, turned into records as rows of a matrix (extra ``speed``).

The members of most batches have bodies of one size and texts that differ in their ids only, and so
have those of the next batch: one look at a first member, then a few comparisons of columns and
copies of them for all batches of a tick together, and no object a member.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.checksum import crc_of_size
from protocols.remoting.matrix import Matrix, np
from protocols.remoting.plain_records import FRONT_BYTES, ID_CHARACTER_MIN, PlainRecords
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
_FACTS: Final = slice(12, 20)
"""Flag and size of the body."""


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
        "_after", "_before", "_facts", "_flag", "_id_at", "_id_end", "_layout", "_size_bytes",
        "_sums", "body_size", "record_size", "size", "text", "text_at",
    )  # fmt: skip

    def __init__(self, records: PlainRecords, member: bytes, text_at: int) -> None:
        """*member*: a plain one; *text_at*: where its properties begin."""
        _, _, _, self._flag, self.body_size = _HEAD.unpack_from(member)
        self.size = len(member)
        self.text_at = text_at
        self.text = member[text_at:]
        """Properties of the first member."""

        start, end = records.id_span(self.text)
        self._id_at, self._id_end = text_at + start, text_at + end
        self._size_bytes, self._facts = member[:4], member[_FACTS]
        self._before = member[text_at - _U16.size : self._id_at]
        self._after = member[self._id_end :]
        self._layout = records.layout
        self.record_size = records.record_size(self.body_size, self.text)
        self._sums: RowSums | None = None

    def fits(self, records: PlainRecords, body: bytes | memoryview) -> bool:
        """Whether the first member of a batch is alike, and the others can be."""
        size = self.size
        return (
            len(body) % size == 0
            and body[:4] == self._size_bytes
            and body[_FACTS] == self._facts
            and body[self.text_at - _U16.size : self._id_at] == self._before
            and body[self._id_end : size] == self._after
            and records.layout == self._layout
        )

    def alike(self, joined: bytes, count: int) -> Matrix:
        """Which of the *count* members in *joined* are alike."""
        rows = np.frombuffer(joined, np.uint8).reshape(count, self.size)
        is_alike = np.ones(count, np.bool_)
        for at, wanted in (
            (0, self._size_bytes),
            (_FACTS.start, self._facts),
            (self.text_at - _U16.size, self._before),
            (self._id_end, self._after),
        ):
            if wanted:
                kind = f"V{len(wanted)}"
                column = np.ndarray((count,), kind, joined, at, (self.size,))
                is_alike &= column == np.frombuffer(wanted, kind)[0]
        is_no_id = rows[:, self._id_at : self._id_end] < ID_CHARACTER_MIN
        if is_no_id.any():  # what looks like an id there is more than one
            is_alike &= ~is_no_id.any(axis=1)
        return is_alike

    def build(self, batches: Sequence[Batch], joined: bytes, counts: Sequence[int]) -> Built:
        """The records of *joined*, the bodies of *batches* back to back, all alike."""
        count, body_size, size = len(joined) // self.size, self.body_size, self.record_size
        rows = np.frombuffer(joined, np.uint8).reshape(count, self.size)
        made = np.empty((count, size), np.uint8)
        fronts = b"".join(
            [
                batch.records.front(
                    size, 0, self._flag, batch.sys_flag, batch.born_ms, batch.born_host,
                    batch.reconsume_count, body_size,
                )
                for batch in batches
            ]
        )  # fmt: skip
        made[:, :FRONT_BYTES] = _repeated(fronts, counts)
        behind = FRONT_BYTES + body_size
        crcs = np.zeros(count, np.uint32)
        if body_size:
            made[:, FRONT_BYTES:behind] = rows[:, _HEAD_BYTES : _HEAD_BYTES + body_size]
            bodies = np.ndarray((count,), f"V{body_size}", joined, _HEAD_BYTES, (self.size,))
            crcs = np.fromiter(map(crc_of_size(body_size), bodies.tolist()), np.uint32, count)
            np.ndarray((count,), ">u4", made.data, BODY_CRC_AT, (size,))[:] = crcs & BODY_CRC_MASK
        topics = [batch.records.topic_field for batch in batches]
        before, suffix = batches[0].records.around(self.text)
        text_at = behind + len(topics[0]) + len(before)
        text_end = text_at + len(self.text)
        is_one_topic = topics.count(topics[0]) == len(topics)
        if is_one_topic:
            made[:, behind:text_at] = np.frombuffer(topics[0] + before, np.uint8)
        else:
            made[:, behind:text_at] = _repeated(b"".join([t + before for t in topics]), counts)
        made[:, text_at:text_end] = rows[:, self.text_at :]
        made[:, text_end:] = np.frombuffer(suffix, np.uint8)
        sums = None
        if is_one_topic and count * size >= ROWS_BYTES_MIN:
            if self._sums is None:
                shift = text_at - self.text_at
                ids = slice(self._id_at + shift, self._id_end + shift)
                self._sums = RowSums(size, body_size, ids)
            sums = BuiltSums(self._sums, counts, crcs)
        return Built(made.reshape(-1).data, sums)


def _repeated(joined: bytes, counts: Sequence[int]) -> Matrix:
    """Each of the pieces as often as its count says."""
    pieces = np.frombuffer(joined, np.uint8).reshape(len(counts), -1)
    return np.repeat(pieces, counts, axis=0)


class Shapes:
    """Those of the batches that came before: the next ones are like them, mostly."""

    def __init__(self) -> None:
        self._known: dict[bytes, Shape] = {}

    def find(self, records: PlainRecords, body: bytes | memoryview) -> Shape | None:
        """
        The shape of a batch as its first member has it; None: it is not plain, or the others
        cannot be alike, or columns do not pay.
        """
        if np is None or len(body) < _HEAD_BYTES:
            return None
        size, _, _, _, body_size = _HEAD.unpack_from(body)
        if not MEMBERS_MIN * size <= len(body) or not size:
            return None
        key = bytes(body[:4]) + bytes(body[_FACTS])
        shape = self._known.get(key)
        if shape is not None and shape.fits(records, body):
            return shape
        text_at = _HEAD_BYTES + body_size + _U16.size
        if not text_at < size or len(body) % size:
            return None
        member = bytes(body[:size])
        text = member[text_at:]
        (text_size,) = _U16.unpack_from(member, text_at - _U16.size)
        if len(text) != text_size or not records.message_id(text):
            return None
        if len(self._known) >= SHAPES_MAX:
            self._known.clear()
        shape = self._known[key] = Shape(records, member, text_at)
        return shape


class Together:
    """Batches of one shape, back to back."""

    def __init__(self, shape: Shape, batches: Sequence[Batch]) -> None:
        self.shape = shape
        self._batches = batches
        self._joined = b"".join([batch.body for batch in batches])
        self.counts = [len(batch.body) // shape.size for batch in batches]
        """Members of each."""

    def are_alike(self) -> list[bool]:
        """Whether all members of each batch are alike."""
        is_alike = self.shape.alike(self._joined, sum(self.counts))
        if is_alike.all():
            return [True] * len(self.counts)
        starts = np.cumsum([0, *self.counts[:-1]])
        found: list[bool] = np.logical_and.reduceat(is_alike, starts).tolist()
        return found

    def build(self) -> Built:
        """Their records; all members are alike."""
        return self.shape.build(self._batches, self._joined, self.counts)
