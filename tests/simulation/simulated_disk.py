"""
A disk in memory with a page cache that can be dropped, torn and reordered.

What was written and not synced is in the cache only. ``lose_power`` decides for each un-synced
512-byte sector, by a seeded generator, whether it reached the platter; un-synced creations,
renames and removals happen up to a random point. A failed sync marks its pages clean without
writing them, as Linux does. Files are inodes: a rename needs ``sync_dir`` to last.

``fork`` is a second disk in the same state that shares bytes until one of them changes: a crash
can be tried at every operation without disturbing the run it is taken from.
"""

import random
from collections.abc import Callable, Sequence

from store.disk import Buffer

SECTOR = 512


class PowerLost(Exception):
    """Raised in the middle of an operation when the countdown ends."""


class Inode:
    """One file: what a reader sees (*cached*) and what a power loss leaves (*durable*)."""

    __slots__ = ("_cut", "_is_shared", "cached", "dirty", "durable")

    def __init__(self, size: int) -> None:
        self.cached = bytearray(size)
        self.durable = bytearray(size)
        self.dirty: list[tuple[int, int]] = []
        self._cut: int | None = None
        """Size of a truncation that is not durable yet."""

        self._is_shared = False

    def fork(self) -> "Inode":
        other = Inode(0)
        other.cached, other.durable = self.cached, self.durable
        other.dirty, other._cut = list(self.dirty), self._cut
        self._is_shared = other._is_shared = True
        return other

    def own(self) -> None:
        """Before a change: no other disk may see it."""
        if self._is_shared:
            self.cached, self.durable = bytearray(self.cached), bytearray(self.durable)
            self._is_shared = False

    def write(self, offset: int, data: bytes) -> None:
        self.own()
        end = offset + len(data)
        for content in (self.cached, self.durable):
            if len(content) < end:
                content.extend(bytes(end - len(content)))
        self.cached[offset:end] = data
        self.dirty.append((offset, end))

    def sync(self) -> None:
        if self.dirty or self._cut is not None:
            self.own()
        self._cut_durable()
        for start, end in self.dirty:
            self.durable[start:end] = self.cached[start:end]
        self.dirty.clear()

    def truncate(self, size: int) -> None:
        self.own()
        del self.cached[size:]
        self.cached.extend(bytes(size - len(self.cached)))
        self._cut = size if self._cut is None else min(self._cut, size)
        self.dirty = [(start, min(end, size)) for start, end in self.dirty if start < size]

    def _cut_durable(self) -> None:
        if self._cut is not None:
            del self.durable[self._cut :]
            self.durable.extend(bytes(len(self.cached) - len(self.durable)))
            self._cut = None

    def lose_power(self, keeps: Callable[[], bool]) -> None:
        if self.dirty or self.cached != self.durable:
            self.own()
            if keeps():
                self._cut_durable()
            self._cut = None
            for start, end in self.dirty:
                for at in range(start - start % SECTOR, end, SECTOR):
                    low, high = max(at, start), min(at + SECTOR, end)
                    if keeps():
                        self.durable[low:high] = self.cached[low:high]
            self.cached = bytearray(self.durable)
        self.dirty.clear()


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
        """So many of the next writes fail with ENOSPC, after a part of the bytes."""

        self.syncs_nothing = False
        """fdatasync returns at once and does nothing: what must make tests fail."""

        self.countdown = -1
        """Operations until ``PowerLost``; -1: never."""

        self.sync_count = 0
        self.before: Callable[[str, str, bytes], None] | None = None
        """Called before each operation that changes something: (operation, file, bytes)."""

    # ── faults ──────────────────────────────────────────────────────────────────────────

    def fork(self, seed: int) -> "SimulatedDisk":
        """Another disk in the same state; neither sees what happens to the other."""
        other = SimulatedDisk(seed)
        twins: dict[int, Inode] = {}

        def twin(inode: Inode) -> Inode:
            found = twins.get(id(inode))
            if found is None:
                found = twins[id(inode)] = inode.fork()
            return found

        other.files = {name: twin(inode) for name, inode in self.files.items()}
        other._durable_files = {name: twin(inode) for name, inode in self._durable_files.items()}
        other._pending_names = [_moved(change, twin) for change in self._pending_names]
        other.free = self.free
        other.syncs_nothing = self.syncs_nothing
        return other

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

    def write_part(self, name: str, offset: int, data: bytes) -> None:
        """The beginning of a write that the power or the space cut short."""
        self.files[name].write(offset, data[: self.random.randrange(len(data) + 1)])

    def flip_bit(self, name: str, offset: int, bit: int = 0) -> None:
        inode = self.files[name]
        inode.own()
        for content in (inode.cached, inode.durable):
            content[offset] ^= 1 << bit

    def _step(self, operation: str, name: str = "", data: bytes = b"") -> None:
        if self.before is not None:
            self.before(operation, name, data)
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
        self._step("create", name)
        self._change_names(_Put(name, Inode(size)))

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join([bytes(buffer) for buffer in buffers])
        if self.write_errors:
            self.write_errors -= 1
            self.write_part(name, offset, data)
            raise OSError(28, "No space left on device")
        if self.countdown == 0:  # the power goes in the middle of this write
            self.write_part(name, offset, data)
        self._step("write", name, offset.to_bytes(8, "big") + data)
        self.files[name].write(offset, data)

    def write_through(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        self.write(name, offset, buffers)
        self.sync(name)

    def fill(self, name: str, offset: int, size: int) -> None:
        self.write(name, offset, [bytes(size)])

    def drop_cached(self, name: str) -> None:
        """A hint: nothing here is durable only because it is cached."""

    def sync(self, name: str) -> None:
        self._step("sync", name)
        self.sync_count += 1
        if self.sync_errors:
            self.sync_errors -= 1
            self.files[name].dirty.clear()
            raise OSError(5, "Input/output error")
        if not self.syncs_nothing:
            self.files[name].sync()

    def sync_dir(self) -> None:
        self._step("sync_dir")
        if not self.syncs_nothing:
            self._durable_files = dict(self.files)
            self._pending_names.clear()

    def read(self, name: str, offset: int, size: int) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return bytes(self.files[name].cached[offset : offset + size])

    def rename(self, old: str, new: str) -> None:
        self._step("rename", old)
        self._change_names(_Move(old, new, self.files[old]))

    def truncate(self, name: str, size: int) -> None:
        self._step("truncate", name)
        self.files[name].truncate(size)

    def unlink(self, name: str) -> None:
        self._step("unlink", name)
        self._change_names(_Remove(name))

    def free_bytes(self) -> int:
        return self.free

    def close(self) -> None:
        """Nothing is open."""


class _Put:
    """A file came into being."""

    def __init__(self, name: str, inode: Inode) -> None:
        self.name, self.inode = name, inode

    def __call__(self, names: dict[str, Inode]) -> None:
        names[self.name] = self.inode


class _Move(_Put):
    """A file got another name."""

    def __init__(self, old: str, new: str, inode: Inode) -> None:
        super().__init__(new, inode)
        self.old = old

    def __call__(self, names: dict[str, Inode]) -> None:
        names.pop(self.old, None)
        super().__call__(names)


class _Remove:
    """A file's name went."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, names: dict[str, Inode]) -> None:
        names.pop(self.name, None)


def _moved(
    change: Callable[[dict[str, Inode]], None], twin: Callable[[Inode], Inode]
) -> Callable[[dict[str, Inode]], None]:
    """The same change of names, over another disk's inodes."""
    if isinstance(change, _Move):
        return _Move(change.old, change.name, twin(change.inode))
    if isinstance(change, _Put):
        return _Put(change.name, twin(change.inode))
    return change
