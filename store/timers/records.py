"""
What a held message says of itself: when, and where it goes, in one property of its record.

``TG_HELD`` is ``<due ms, 0: a half message>:<queue id, -1: none>:<light queue keys, base64>``. The
record has its real topic; the property goes when the message becomes visible.
"""

import base64
import struct
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from protocols.errors import Code, PeerError, Refused
from protocols.remoting.codes import SysFlag
from store.log.messages import (
    Bytes,
    body_at,
    properties_span,
    property_of,
    topic_of,
)

HELD: Final = b"TG_HELD"
HALF_NAMES: Final = frozenset((HELD, b"TRAN_MSG", b"CHECK_IMMUNITY_TIME_IN_SECONDS"))
"""Properties that a committed message has no more."""

TIMER_NAMES: Final = frozenset(
    (HELD, b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DEL_UNIQKEY")
)
PROPERTIES_BYTES_MAX: Final = 32_767
SYS_FLAG_AT: Final = 36
KEY_BYTES: Final = 16
_INT: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
_LONG: Final = struct.Struct(">Q")


class HeldFacts(NamedTuple):
    """Where and when a held message becomes visible."""

    due_ms: int
    """0: when its producer commits."""

    queue_id: int
    """-1: in no message queue."""

    keys: tuple[bytes, ...]
    """Light queues."""


def held_record(record: Bytes, facts: HeldFacts) -> bytes:
    """*record* with its facts. Raises Refused if they do not fit."""
    keys = base64.b64encode(b"".join(facts.keys))
    value = b"%d:%d:%s" % (facts.due_ms, facts.queue_id, keys)
    return changed(record, drop=(HELD,), add=((HELD, value),))


def facts_of(record: Bytes) -> HeldFacts:
    """Raises PeerError if there are none."""
    try:
        due_ms, queue_id, keys = property_of(record, HELD).split(b":")
        data = base64.b64decode(keys, validate=True)
        cut = [data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]
        return HeldFacts(int(due_ms), int(queue_id), tuple(cut))
    except ValueError as error:
        raise PeerError(f"a held message without its facts: {error}") from error


def changed(
    record: Bytes, *, drop: Collection[bytes], add: Sequence[tuple[bytes, bytes]] = ()
) -> bytes:
    """*record* without and with these properties. Raises Refused if it gets too many."""
    start, size = properties_span(record)
    text = bytes(record[start : start + size])
    kept = [pair for pair in text.split(b"\x02") if pair and pair.partition(b"\x01")[0] not in drop]
    kept += [name + b"\x01" + value for name, value in add]
    properties = b"".join([pair + b"\x02" for pair in kept])
    if len(properties) > PROPERTIES_BYTES_MAX:
        hint = f"message properties length: {len(properties)}, max: {PROPERTIES_BYTES_MAX}"
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, topic_of(record), hint)
    made = bytearray(record[: start - 2])
    made += _SHORT.pack(len(properties)) + properties
    _INT.pack_into(made, 0, len(made))
    return bytes(made)


def committed(record: Bytes, position: int) -> bytes:
    """The message of the half at *position*, as consumers get it."""
    made = bytearray(changed(record, drop=HALF_NAMES))
    (flags,) = _INT.unpack_from(made, SYS_FLAG_AT)
    flags = flags & ~int(SysFlag.TRANSACTION_ROLLBACK) | int(SysFlag.TRANSACTION_COMMIT)
    _INT.pack_into(made, SYS_FLAG_AT, flags)
    _LONG.pack_into(made, body_at(made) - 8, position)  # preparedTransactionOffset
    return bytes(made)


def check_record(record: Bytes) -> bytes:
    """A half message as its producer sent it, for the question how it ended."""
    return changed(record, drop=(HELD,))


def name_of(message_id: bytes) -> int:
    """64 bits that a recall finds a timer by."""
    return int.from_bytes(blake2b(message_id, digest_size=8).digest(), "big")
