"""
A disk in memory with a page cache that can be dropped, torn and reordered.

What was written and not synced is in the cache only. ``lose_power`` decides for each un-synced
512-byte sector, by a seeded generator, whether it reached the platter; un-synced creations,
renames and removals happen up to a random point. A failed sync marks its pages clean without
writing them, as Linux does. Files are inodes: a rename needs ``sync_dir`` to last.
"""

import random
from collections.abc import Callable, Sequence

from store.disk import Buffer

SECTOR = 512


class PowerLost(Exception):
    """Raised in the middle of an operation when the countdown ends."""


class Inode:
    def __init__(self, size: int) -> None:
        self.cached = bytearray(size)
        self.durable = bytearray(size)
        self.dirty: list[tuple[int, int]] = []

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        for content in (self.cached, self.durable):
            if len(content) < end:
                content.extend(bytes(end - len(content)))
        self.cached[offset:end] = data
        self.dirty.append((offset, end))

    def sync(self) -> None:
        for start, end in self.dirty:
            self.durable[start:end] = self.cached[start:end]
        self.dirty.clear()

    def lose_power(self, keeps: Callable[[], bool]) -> None:
        for start, end in self.dirty:
            for at in range(start - start % SECTOR, end, SECTOR):
                low, high = max(at, start), min(at + SECTOR, end)
                if keeps():
                    self.durable[low:high] = self.cached[low:high]
        self.dirty.clear()
        self.cached = bytearray(self.durable)


class SimulatedDisk:
    """Implements ``store.disk.Disk``."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.files: dict[str, Inode] = {}
        self._durable_files: dict[str, Inode] = {}
        self._pending_names: list[Callable[[dict[str, Inode]], None]] = []
        self.free = 1 << 40
        self.sync_errors = 0
        """So many of the next syncs fail with EIO."""

        self.write_errors = 0
        self.syncs_nothing = False
        """fdatasync returns at once and does nothing: what must make tests fail."""

        self.countdown = -1
        """Operations until ``PowerLost``; -1: never."""

        self.sync_count = 0

    # ── faults ──────────────────────────────────────────────────────────────────────────

    def lose_power(self, mode: str = "torn") -> None:
        """*mode*: ``drop`` (no un-synced sector survives), ``keep`` (all do), ``torn``."""
        chances = {"drop": 0.0, "keep": 1.0, "torn": self.random.choice([0.1, 0.5, 0.9])}
        chance = chances[mode]
        names = dict(self._durable_files)
        for change in self._pending_names[: round(len(self._pending_names) * chance)]:
            change(names)
        inodes = {id(inode): inode for inode in [*self.files.values(), *names.values()]}
        for inode in inodes.values():
            inode.lose_power(lambda: self.random.random() < chance)
        self.files, self._durable_files = names, dict(names)
        self._pending_names.clear()
        self.countdown = -1

    def flip_bit(self, name: str, offset: int, bit: int = 0) -> None:
        for content in (self.files[name].cached, self.files[name].durable):
            content[offset] ^= 1 << bit

    def _step(self) -> None:
        if self.countdown == 0:
            raise PowerLost
        self.countdown -= self.countdown > 0

    def _change_names(self, change: Callable[[dict[str, Inode]], None]) -> None:
        change(self.files)
        self._pending_names.append(change)

    # ── the interface ───────────────────────────────────────────────────────────────────

    def names(self) -> list[str]:
        return sorted(self.files)

    def size(self, name: str) -> int:
        return len(self.files[name].cached)

    def create(self, name: str, size: int) -> None:
        self._step()
        inode = Inode(size)
        self._change_names(lambda names: names.__setitem__(name, inode))

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join([bytes(buffer) for buffer in buffers])
        if self.write_errors:
            self.write_errors -= 1
            raise OSError(28, "No space left on device")
        if self.countdown == 0:  # the power goes in the middle of this write
            self.files[name].write(offset, data[: self.random.randrange(len(data) + 1)])
        self._step()
        self.files[name].write(offset, data)

    def write_through(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        self.write(name, offset, buffers)
        self.sync(name)

    def fill(self, name: str, offset: int, size: int) -> None:
        self.write(name, offset, [bytes(size)])

    def drop_cached(self, name: str) -> None:
        """A hint: nothing here is durable only because it is cached."""

    def sync(self, name: str) -> None:
        self._step()
        self.sync_count += 1
        if self.sync_errors:
            self.sync_errors -= 1
            self.files[name].dirty.clear()
            raise OSError(5, "Input/output error")
        if not self.syncs_nothing:
            self.files[name].sync()

    def sync_dir(self) -> None:
        self._step()
        if not self.syncs_nothing:
            self._durable_files = dict(self.files)
            self._pending_names.clear()

    def read(self, name: str, offset: int, size: int) -> bytes:
        return bytes(self.files[name].cached[offset : offset + size])

    def rename(self, old: str, new: str) -> None:
        self._step()
        inode = self.files[old]

        def change(names: dict[str, Inode]) -> None:
            names.pop(old, None)
            names[new] = inode

        self._change_names(change)

    def truncate(self, name: str, size: int) -> None:
        inode = self.files[name]
        for content in (inode.cached, inode.durable):
            del content[size:]
            content.extend(bytes(size - len(content)))
        inode.dirty = [(start, min(end, size)) for start, end in inode.dirty if start < size]

    def unlink(self, name: str) -> None:
        self._step()
        self._change_names(lambda names: names.pop(name, None) and None)

    def free_bytes(self) -> int:
        return self.free

    def close(self) -> None:
        """Nothing is open."""
