"""
Client batches whose members are alike, turned into records as rows of a matrix (extra ``speed``).

The members of most batches have bodies of one size and texts that differ in their ids only: one
look at the first, one comparison of columns for all others, and no object a member.
"""

import struct
from typing import Final, NamedTuple

from protocols.remoting.matrix import np
from protocols.remoting.plain_records import FRONT_BYTES, ID_CHARACTER_MIN, PlainRecords
from protocols.remoting.records import body_crc

MEMBERS_MIN: Final = 8
"""From here on columns are faster (measured)."""

_HEAD: Final = struct.Struct(">IIIiI")
"""Of a member: size, magic, CRC, flag, size of the body (``MessageDecoder.encodeMessage``)."""

_U16: Final = struct.Struct(">H")
_SIZE: Final = slice(0, 4)
_FLAG_AND_BODY_SIZE: Final = slice(12, 20)
_CRC: Final = slice(8, 12)
"""Of a record."""


class Built(NamedTuple):
    """Records back to back, all of one size, their properties the same but for their ids."""

    records: memoryview
    record_count: int
    size: int
    body_size: int
    text: bytes
    """Properties of the first member."""


def build(
    records: PlainRecords,
    batch: bytes | memoryview,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    reconsume_count: int,
) -> Built | None:
    """The records of *batch*; None: its members differ, or are not plain: take them one by one."""
    if np is None or len(batch) < _HEAD.size:
        return None
    size, _, _, flag, body_size = _HEAD.unpack_from(batch)
    text_at = _HEAD.size + body_size + _U16.size
    if not text_at < size or len(batch) % size or len(batch) < MEMBERS_MIN * size:
        return None
    (text_size,) = _U16.unpack_from(batch, text_at - _U16.size)
    text = bytes(batch[text_at:size])
    if len(text) != text_size or not records.message_id(text):
        return None
    count = len(batch) // size
    rows = np.frombuffer(batch, np.uint8).reshape(count, size)
    start, end = records.id_span(text)
    ids = slice(text_at + start, text_at + end)
    alike = (
        _SIZE,
        _FLAG_AND_BODY_SIZE,
        slice(text_at - _U16.size, ids.start),
        slice(ids.stop, size),
    )
    if not all([(rows[1:, part] == rows[0, part]).all() for part in alike]):
        return None
    if (rows[:, ids] < ID_CHARACTER_MIN).any():
        return None  # what looks like an id there is more than one
    pieces: list[bytes | memoryview] = []
    body = bytes(batch[_HEAD.size : _HEAD.size + body_size])
    record_size = records.add(
        pieces, body, text, flag, sys_flag, born_ms, born_host, reconsume_count
    )
    made = np.empty((count, record_size), np.uint8)
    first = np.frombuffer(b"".join(pieces), np.uint8)
    behind = FRONT_BYTES + body_size
    made[:, :FRONT_BYTES], made[:, behind:] = first[:FRONT_BYTES], first[behind:]
    if body_size:
        bodies = np.ndarray((count,), f"V{body_size}", batch, _HEAD.size, (size,)).tolist()
        crcs = np.fromiter(map(body_crc, bodies), np.dtype(">u4"), count)
        made[:, _CRC] = crcs.view(np.uint8).reshape(count, 4)
        made[:, FRONT_BYTES:behind] = rows[:, _HEAD.size : _HEAD.size + body_size]
    ids_at = records.text_at(body_size) + start
    made[:, ids_at : ids_at + end - start] = rows[:, ids]
    return Built(made.reshape(-1).data, count, record_size, body_size, text)
