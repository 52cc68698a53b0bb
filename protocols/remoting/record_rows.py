"""
Records of hundreds of messages that differ in body and id alone, as rows of one matrix (extra
``speed``): half the CPU of five pieces a record. The bytes are those of ``RecordTemplate``.
"""

from collections.abc import Sequence

from protocols.checksum import crc_of_size
from protocols.remoting.matrix import Matrix, np
from protocols.remoting.message_ids import IdRun
from protocols.remoting.records import (
    BODY_AT,
    BODY_CRC_AT,
    BODY_CRC_MASK,
    SYS_FLAG_AT,
    UNUSUAL,
)
from protocols.remoting.templates import RecordTemplate
from protocols.rows import Rows


def plain_rows(
    template: RecordTemplate,
    bodies: Rows,
    message_ids: Sequence[bytes],
    queue_id: int,
    born_ms: int,
) -> memoryview:
    """
    The records back to back, all of one size.

    *message_ids* have ``RecordTemplate.ID_BYTES`` each.
    """
    count, body_size = len(bodies), bodies.size
    pattern, body_at, id_at = template.pattern(body_size, queue_id, born_ms)
    behind, id_end = body_at + body_size, id_at + template.ID_BYTES
    first = np.frombuffer(pattern, np.uint8)
    rows = np.empty((count, len(pattern)), np.uint8)
    rows[:, :body_at], rows[:, behind:] = first[:body_at], first[behind:]
    rows[:, body_at:behind] = bodies.matrix
    _fill_ids(rows[:, id_at:id_end], message_ids)
    crc = crc_of_size(body_size)
    crcs = np.fromiter(map(crc, bodies.to_list()), np.uint32, count) & BODY_CRC_MASK
    rows[:, BODY_CRC_AT : BODY_CRC_AT + 4] = crcs.astype(">u4").view(np.uint8).reshape(count, 4)
    return memoryview(rows.reshape(-1))


def bodies_of_alike(matrix: Matrix, id_at: int, id_size: int) -> Matrix | None:
    """
    The bodies of stored records, a row each, that differ from the first in nothing but the body's
    bytes, *id_size* bytes at *id_at*, and what a store writes; None: some differ in more.

    ``records.take_alike`` of many; ``records.record_parts`` has seen the first.
    """
    first = matrix[0, :BODY_AT].tobytes()
    if int.from_bytes(first[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big") & UNUSUAL:
        return None  # laid out otherwise
    body_end = BODY_AT + int.from_bytes(first[BODY_AT - 4 :], "big")
    spans = (
        (0, 8),  # size and magic
        (SYS_FLAG_AT, SYS_FLAG_AT + 4),
        (BODY_AT - 4, BODY_AT),
        (body_end, id_at),
        (id_at + id_size, matrix.shape[1]),
    )
    if all([(matrix[1:, start:stop] == matrix[0, start:stop]).all() for start, stop in spans]):
        return matrix[:, BODY_AT:body_end]
    return None


def _fill_ids(columns: Matrix, message_ids: Sequence[bytes]) -> None:
    if type(message_ids) is IdRun:  # compiled, it shares what `isinstance` remembers of lists
        prefix = message_ids.prefix
        columns[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        message_ids.fill(columns[:, len(prefix) :])
    else:
        ids = np.frombuffer(b"".join(message_ids), np.uint8)
        columns[:] = ids.reshape(columns.shape)
