"""Message ids (``UNIQ_KEY``) in the form that Apache's tools take apart."""

import socket
import struct
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, overload

from protocols.remoting.matrix import Matrix, np

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_HEX2: Final = [b"%02X" % value for value in range(256)]
HEX4: Final = tuple([high + low for high in _HEX2 for low in _HEX2])
HEX4_ROWS: Final[Matrix] = (
    np.frombuffer(b"".join(HEX4), np.uint8).reshape(65536, 4) if np is not None else None
)


class IdRun(Sequence[bytes]):
    """Ids that were taken at once, without an object for each: one *prefix*, counted on."""

    __slots__ = ("_count", "_first", "prefix")

    def __init__(self, prefix: bytes, first: int, count: int) -> None:
        self.prefix = prefix
        self._first = first & 0xFFFF
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> "IdRun": ...

    def __getitem__(self, index: int | slice) -> "bytes | IdRun":
        if isinstance(index, slice):
            part = range(self._count)[index]
            assert part.step == 1
            return IdRun(self.prefix, self._first + part.start, len(part))
        return self.prefix + HEX4[(self._first + range(self._count)[index]) & 0xFFFF]

    def fill(self, columns: Matrix) -> None:
        """What stands behind the prefix, into *columns*: a row of four bytes for each id."""
        before = min(self._count, 65536 - self._first)
        columns[:before] = HEX4_ROWS[self._first : self._first + before]
        if before < self._count:
            columns[before:] = HEX4_ROWS[: self._count - before]


class MessageIds:
    """
    Makes ``UNIQ_KEY``s in the form Apache's tools take apart (``MessageClientIDSetter``).

    ``ip 4 B, pid 2 B, seed 4 B, ms since the start of the month 4 B, counter 2 B`` in hex. The
    seed is mixed with the month, so that ids of one long-lived process never meet.
    """

    def __init__(self, address: bytes, pid: int, seed: int) -> None:
        self._front = address[:4] + _U16.pack(pid & 0xFFFF)
        self._seed = seed
        self._counter = seed & 0xFFFF
        self._prefix = b""
        self._prefix_ms = -1
        self._month_start_ms = 0
        self._month_end_ms = -1
        self._used_in_ms = 0

    def take(self, now_ms: int) -> bytes:
        """A new id for a message that arrived at wall time *now_ms* (which may jump back)."""
        if now_ms > self._prefix_ms:
            self._set_prefix(now_ms)
        elif self._used_in_ms >= 0xFFFF:  # more than 65,535 in a millisecond: borrow the next
            self._set_prefix(self._prefix_ms + 1)
        self._used_in_ms += 1
        self._counter = (self._counter + 1) & 0xFFFF
        return self._prefix + HEX4[self._counter]

    def take_many(self, now_ms: int, count: int) -> list[bytes]:
        """*count* new ids; at most 65,535 at once."""
        if count == 1:
            return [self.take(now_ms)]
        start = self._advance(now_ms, count)
        prefix = self._prefix
        ids = [prefix + number for number in HEX4[start : start + count]]
        if len(ids) < count:  # the counter went round
            ids += [prefix + number for number in HEX4[: count - len(ids)]]
        return ids

    def take_run(self, now_ms: int, count: int) -> IdRun:
        """``take_many`` as columns."""
        start = self._advance(now_ms, count)
        return IdRun(self._prefix, start, count)

    def _advance(self, now_ms: int, count: int) -> int:
        """Make room for *count* ids under one prefix; the number of the first."""
        if now_ms != self._prefix_ms:
            self._set_prefix(now_ms)
        if self._used_in_ms + count > 0xFFFF:
            self._set_prefix(self._prefix_ms + 1)
        self._used_in_ms += count
        start = self._counter + 1
        self._counter = (self._counter + count) & 0xFFFF
        return start

    def _set_prefix(self, now_ms: int) -> None:
        self._prefix_ms = now_ms
        self._used_in_ms = 0
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_of(now_ms)
        seed = zlib.crc32(_I64.pack(self._month_start_ms), self._seed & 0xFFFFFFFF)
        since = (now_ms - self._month_start_ms) & 0xFFFFFFFF
        numbers = self._front + _U32.pack(seed) + _U32.pack(since)
        self._prefix = numbers.hex().upper().encode()


def _month_of(now_ms: int) -> tuple[int, int]:
    """Start of the month (UTC) that *now_ms* lies in, and of the next."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return round(start.timestamp() * 1000), round(end.timestamp() * 1000)


def own_address() -> bytes:
    """Four bytes for message ids: our address as the name service has it, or loopback."""
    try:
        return socket.inet_aton(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return socket.inet_aton("127.0.0.1")
