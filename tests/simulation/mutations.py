"""
One safety measure of the store taken out at a time: the simulation must notice each.

A mutation patches the running code, so it stays true to what the store is; one whose target is
gone fails loudly.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from store import core, lifecycle, records, replay
from store.answers import Pending
from store.groups.books import Books
from store.groups.deliveries import Deliveries
from store.lifecycle import Lifecycle
from store.log import recovery
from store.log.format import BLOCK, BLOCK_MAGIC, BlockHeader, block_bytes
from store.log.log import Log
from store.log.recovery import ScannedBlock
from store.metadata import frames
from store.metadata.frames import FrameTable
from store.metadata.once import OnceKeys
from store.retention.cleaner import Cleaner
from tests.simulation.simulated_disk import SimulatedDisk

Patch = Any
"""What ``mock.patch.object`` returns, or an ``ExitStack`` of them."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In place of something that matters."""


def _no_sync_of_blocks() -> Patch:
    """Blocks are written, and not synced."""
    sync = SimulatedDisk.sync

    def skip(disk: SimulatedDisk, name: str) -> None:
        if not name.endswith(".seg"):
            sync(disk, name)

    return patch.object(SimulatedDisk, "sync", skip)


def _confirmed_too_early() -> Patch:
    """A block's header says that the block before it is durable; nobody knows yet."""
    close_block = Log.close_block

    def early(log: Log, *args: Any, **kwargs: Any) -> None:
        kept, log.confirmed = log.confirmed, log.end
        close_block(log, *args, **kwargs)
        log.confirmed = kept

    return patch.object(Log, "close_block", early)


def _answers_at_once() -> Patch:
    """Nothing waits for the disk."""

    def wait(log: Log, pending: Pending[Any]) -> None:
        pending.position, pending.is_done = log.end, True

    return patch.object(Log, "wait", wait)


def _visible_at_once() -> Patch:
    """Readers see what is not durable yet."""
    return patch.object(Log, "when_durable", lambda log, effect: effect())


def _cache_believed() -> Patch:
    """After an unclean end what can be read counts as durable."""

    def settle(disk: Any, config: Any, tail: Any, data: memoryview) -> Any:
        disk.sync(tail.segments[-1].name)
        return tail.segments[-1]

    return patch.object(lifecycle, "settle_tail", settle)


def _clean_end_believed() -> Patch:
    """A closing block that can be read counts as durable."""

    def sync_only(disk: Any, last: Any, tail: Any, data: memoryview) -> None:
        disk.sync(last.name)

    return patch.object(recovery, "_write_again", sync_only)


def _early_snapshot() -> Patch:
    """A snapshot is written before what it covers is durable."""
    due = Lifecycle.snapshot_due

    def early(life: Lifecycle, now: Any, *, is_forced: bool) -> Any:
        log = life._core.log
        kept, log.confirmed = log.confirmed, 1 << 62
        work = due(life, now, is_forced=is_forced)
        log.confirmed = kept
        return work

    return patch.object(Lifecycle, "snapshot_due", early)


def _early_deletion() -> Patch:
    """Segments go for acks that a crash may take back."""

    return patch.object(Cleaner, "_when_durable", lambda cleaner, effect: effect())


def _goes_on_after_failure() -> Patch:
    """A failed sync is forgotten."""
    fail = Log.fail

    def forget(log: Log, error: Exception) -> Any:
        done = fail(log, error)
        log.failure = None
        return done

    return patch.object(Log, "fail", forget)


def _no_crc() -> Patch:
    """Blocks and records that look right are right."""

    def head(data: memoryview, at: int, nonce: int, position: int, bytes_max: int) -> Any:
        if at + BLOCK.size > len(data):
            return None
        header = BlockHeader._make(BLOCK.unpack_from(data, at))
        is_there = at + block_bytes(header) <= len(data)
        return header if header.magic == BLOCK_MAGIC and is_there else None

    def record(block: ScannedBlock, position: int, entry: Any) -> memoryview:
        start = position - block.position
        return block.data[start : start + entry.length]

    class Any32(int):
        """A CRC that equals every other."""

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

        def __and__(self, other: int) -> "Any32":
            return self

    stack = ExitStack()
    for module in (recovery, frames):
        stack.enter_context(patch.object(module, "decode_block_head", head))
    stack.enter_context(patch.object(ScannedBlock, "record", record))
    stack.enter_context(patch.object(ScannedBlock, "is_whole", lambda block: True))
    stack.enter_context(patch.object(replay, "crc32", lambda *args: Any32()))
    for module in (core, records):
        anything = patch.object(module, "crc_of_size", lambda size: lambda *args: Any32())
        stack.enter_context(anything)
    return stack


def _off(owner: Any, name: str, instead: Callable[..., Any] = _nothing) -> Callable[[], Patch]:
    """A method that does nothing."""
    return lambda: patch.object(owner, name, instead)


MUTATIONS: Final[dict[str, Callable[[], Patch]]] = {
    "blocks are not synced": _no_sync_of_blocks,
    "names are not synced": _off(SimulatedDisk, "sync_dir"),
    "confirmed too early": _confirmed_too_early,
    "answers do not wait": _answers_at_once,
    "visible before durable": _visible_at_once,
    "torn records pass": _off(ScannedBlock, "is_whole", lambda block: True),
    "the page cache is believed": _cache_believed,
    "a clean end is believed": _clean_end_believed,
    "snapshots do not wait": _early_snapshot,
    "deletions do not wait": _early_deletion,
    "goes on after a failed sync": _goes_on_after_failure,
    "grant numbers are used again": _off(Deliveries, "new_epoch"),
    "marks are forgotten": _off(Books, "apply_mark"),
    "returns are forgotten": _off(Books, "apply_return"),
    "frames are forgotten": _off(FrameTable, "apply_block"),
    "no CRC is looked at": _no_crc,
    "refusals are forgotten": _off(FrameTable, "apply_facts"),
    "once-keys are not known": _off(OnceKeys, "find"),
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run the block with the store broken in the way of *name*; "": whole."""
    if not name:
        yield
        return
    with MUTATIONS[name]():
        yield
