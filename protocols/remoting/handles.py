"""
Texts of the pop family: the handle a client sends back, and the offset tables of an answer.

A handle (``POP_CK``, ``extraInfo``) is built by the client from the answer's header fields:
``ckQueueOffset popTime invisibleTime reviveQid r brokerName queueId msgQueueOffset``, where r is
0 for the topic itself, 1 and 2 for its retry topics.

Source: ``ExtraInfoUtil``.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"


class PopHandle(NamedTuple):
    """The eight parts of a handle."""

    start_offset: int
    popped_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry: str
    """``0`` topic, ``1`` retry topic v1, ``2`` v2."""

    broker: str
    queue_id: int
    queue_offset: int

    def encode(self) -> str:
        return " ".join([str(part) for part in self])


def parse_pop_handle(text: str) -> PopHandle | None:
    """
    The parts of *text*; None if it is none. Seven parts lack the offset (−1); a ninth is the
    log position that Apache's proxy appends for itself.
    """
    parts = text.split(" ")
    if not 7 <= len(parts) <= 9:
        return None
    try:
        start, popped, invisible, revive = (int(part) for part in parts[:4])
        queue_id = int(parts[6])
        offset = int(parts[7]) if len(parts) > 7 else -1
    except ValueError:
        return None
    return PopHandle(start, popped, invisible, revive, parts[4], parts[5], queue_id, offset)


def encode_start_offsets(starts: Iterable[tuple[str, int, int]]) -> str:
    """``r q offset;…``: the first offset that a pop took of each queue."""
    return ";".join([f"{retry} {queue_id} {offset}" for retry, queue_id, offset in starts])


def encode_message_offsets(offsets: Mapping[tuple[str, int], Sequence[int]]) -> str:
    """``r q o1,o2;…``: the offsets of each queue, ascending."""
    return ";".join(
        [
            f"{retry} {queue_id} {','.join([str(offset) for offset in sorted(items)])}"
            for (retry, queue_id), items in offsets.items()
        ]
    )


def decode_start_offsets(text: str) -> dict[tuple[str, int], int]:
    """(r, queue id) → offset. Raises ValueError."""
    found: dict[tuple[str, int], int] = {}
    for part in filter(None, text.split(";")):
        retry, queue_id, offset = part.split(" ")
        found[retry, int(queue_id)] = int(offset)
    return found


def decode_message_offsets(text: str) -> dict[tuple[str, int], list[int]]:
    """(r, queue id) → offsets. Raises ValueError."""
    found: dict[tuple[str, int], list[int]] = {}
    for part in filter(None, text.split(";")):
        retry, queue_id, offsets = part.split(" ")
        found[retry, int(queue_id)] = [int(offset) for offset in offsets.split(",")]
    return found


def decode_bit_set(text: str) -> list[int]:
    """Set bits of a Java BitSet in base64 (little endian). Raises ValueError."""
    data = base64.b64decode(text, validate=True)
    return [
        8 * index + bit for index, byte in enumerate(data) for bit in range(8) if byte >> bit & 1
    ]


def encode_bit_set(bits: Iterable[int]) -> str:
    number = 0
    for bit in bits:
        number |= 1 << bit
    data = number.to_bytes((number.bit_length() + 7) // 8, "little")
    return base64.b64encode(data).decode()


def retry_topic(group: str) -> str:
    """Where send-backs of *group* are read (pull consumers)."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group
