"""
Hundreds of PUBLISH packets that differ in packet id and payload alone, as rows of one matrix.

What a pipelining publisher sends is mostly this: one topic, payloads of one size. One look at the
first packet, one comparison of columns for all others, no object for any (extra ``speed``).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.canonical import Head, Message
from protocols.mqtt.codec import find_body, is_padded
from protocols.remoting.matrix import np
from protocols.rows import Rows

PACKETS_MIN: Final = 64
"""Packets from which this is faster than one after the other (measured: about 50)."""


class TakenRows(NamedTuple):
    """What was eaten."""

    head: Head
    payloads: Rows
    packet_ids: bytes
    """Two bytes each; empty for QoS 0."""

    stop: int
    """Position behind the last packet."""


def take_rows(
    data: bytes, position: int, table: dict[bytes, Head], is_v5: bool, bytes_max: int
) -> TakenRows | None:
    """
    Eat the packets at *position* that are like the first; None: too few are, or a packet is such
    as ``codec.take_publishes`` would not eat.
    """
    if np is None or len(data) - position < PACKETS_MIN * 4:
        return None
    start, end = find_body(data, position)
    size = end - position
    if not start or size > bytes_max or len(data) - position < PACKETS_MIN * size:
        return None
    if is_padded(data, position, start):
        return None
    stop = start + 2 + (data[start] << 8 | data[start + 1])
    head = table.get(data[start + 2 : stop])
    id_size = 2 if data[position] & 6 else 0
    payload_at = stop - position + id_size + (1 if is_v5 else 0)
    count = (len(data) - position) // size
    prefix = data[position:stop]
    if (
        head is None
        or payload_at >= size
        or not data.startswith(prefix, position + (count - 1) * size)
        or not data.startswith(prefix, position + (count >> 1) * size)
    ):
        return None
    matrix = np.frombuffer(data, np.uint8, count * size, position).reshape(count, size)
    is_like = (matrix[:, : len(prefix)] == matrix[0, : len(prefix)]).all(1)
    if is_v5:
        is_like &= matrix[:, payload_at - 1] == 0  # no properties
    ids = matrix[:, len(prefix) : len(prefix) + id_size]
    if id_size:
        is_like &= ids.any(1)  # no packet id is 0
    if not is_like.all():
        count = int(is_like.argmin())
        if count < PACKETS_MIN:
            return None
    payloads = Rows(matrix[:count, payload_at:])
    return TakenRows(head, payloads, ids[:count].tobytes(), position + count * size)


def messages_of(spans: list[tuple[Head, int]], bodies: list[bytes]) -> Sequence[Message]:
    """Of several topics: a message each."""
    stops = [start for _, start in spans[1:]] + [len(bodies)]
    return [
        Message(head, body)
        for (head, start), stop in zip(spans, stops, strict=True)
        for body in bodies[start:stop]
    ]
