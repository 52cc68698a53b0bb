"""
Snapshots: all derived state but the entries, as of a log position, in a file of its own.

The position is durable before the file is written. The last two are kept; one beyond the end of
the recovered log is refused (store page, rule 4).
"""

import struct
from typing import Any, Final, NamedTuple

import msgspec

from protocols.checksum import crc32
from store.disk import Disk
from store.log.segments import UNFINISHED_SUFFIX

SUFFIX: Final = ".snapshot"
MAGIC: Final = b"TGSNAP01"
_HEAD: Final = struct.Struct(">8s16sQIQ")
KEPT: Final = 2


class Snapshot(NamedTuple):
    position: int
    """Effects of all blocks below are in it."""

    state: dict[str, Any]


class SnapshotWork:
    """Encoded state to be written as a file."""

    def __init__(self, log_id: bytes, position: int, state: dict[str, Any]) -> None:
        self.position = position
        """Log position that the snapshot covers."""

        self.oldest_kept = 0
        """After ``execute``: position of the older one of those kept."""

        self._log_id = log_id
        self._body = msgspec.msgpack.encode(state)
        self.byte_count = _HEAD.size + len(self._body)

    def execute(self, disk: Disk) -> None:
        """tmp → fsync → rename → fsync of the folder; drops all but the last two."""
        name = f"{self.position:020d}{SUFFIX}"
        unfinished = name + UNFINISHED_SUFFIX
        disk.create(unfinished, self.byte_count)
        disk.write(unfinished, 0, [self._head(), self._body])
        disk.sync(unfinished)
        disk.rename(unfinished, name)
        disk.sync_dir()
        names = snapshot_names(disk)
        for old in names[KEPT:]:
            disk.unlink(old)
        self.oldest_kept = int(names[:KEPT][-1].removesuffix(SUFFIX)) if len(names) > 1 else 0

    def _head(self) -> bytes:
        """With the CRC of all: of megabytes, so the loop does not wait for it."""
        size = len(self._body)
        crc = crc32(self._body, crc32(_HEAD.pack(MAGIC, self._log_id, self.position, 0, size)))
        return _HEAD.pack(MAGIC, self._log_id, self.position, crc, size)


def snapshot_names(disk: Disk) -> list[str]:
    """Newest first."""
    return sorted([name for name in disk.names() if name.endswith(SUFFIX)], reverse=True)


def read_snapshots(disk: Disk, log_id: bytes) -> list[Snapshot]:
    """Those of this log that verify, newest first."""
    found = [read_snapshot(disk, name, log_id) for name in snapshot_names(disk)]
    return [snapshot for snapshot in found if snapshot is not None]


def read_snapshot(disk: Disk, name: str, log_id: bytes) -> Snapshot | None:
    """None: it is of another log, or does not verify."""
    data = disk.read(name, 0, disk.size(name))
    if len(data) < _HEAD.size:
        return None
    magic, owner, position, crc, size = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    plain = _HEAD.pack(magic, owner, position, 0, size)
    is_good = magic == MAGIC and owner == log_id and len(body) == size
    if not is_good or crc32(body, crc32(plain)) != crc:
        return None
    return Snapshot(position, msgspec.msgpack.decode(body))
