"""
Acks, changes and releases to one store: everything of a tick in one frame.

At most two frames are in flight; what comes meanwhile waits for the next, so frames grow with
load. All items of a frame have the store epoch that their deliveries were granted in. What
nobody waits for (a stream's) is sent again after a lost connection until it is answered, acks
being idempotent; the rest fails with the connection.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from gateway.clusters.link import AckAnswered, HandlesAnswered
from protocols import clock
from protocols.canonical import ReceiptHandle
from protocols.errors import Code
from protocols.remoting.settling import AckItem, decode_ack_results, encode_acks

FRAMES_IN_FLIGHT_MAX: Final = 2
FRAME_ITEMS_MAX: Final = 8192


class _Entry(NamedTuple):
    epoch: int
    """Store epoch in which the deliveries were granted."""

    items: Sequence[AckItem]
    answered: AckAnswered | None


class AckSender:
    """What waits to be acked at one store. Sans-I/O: *write* gets (frame, body)."""

    def __init__(self, write: Callable[[int, bytes], None]) -> None:
        self._write = write
        self._pending: deque[_Entry] = deque()
        self._in_flight: dict[int, list[_Entry]] = {}
        self._next_frame = 1
        self._added = 0
        """Entries ever added; less those that wait, it is how many were written."""

        self._barriers: deque[tuple[int, Callable[[], None]]] = deque()
        self.is_open = False

    def opened(self) -> None:
        """Connected; what was not answered goes again with the next ``flush``."""
        self.is_open = True

    def lost(self) -> None:
        self.is_open = False
        self._pass_barriers()
        entries = [entry for frame in self._in_flight.values() for entry in frame]
        self._in_flight.clear()
        entries += self._pending
        self._pending = deque(entry for entry in entries if entry.answered is None)
        for entry in entries:
            if entry.answered is not None:
                entry.answered(None)

    def add(self, epoch: int, items: Sequence[AckItem], answered: AckAnswered | None) -> None:
        self._pending.append(_Entry(epoch, items, answered))
        self._added += 1

    def when_written(self, done: Callable[[], None]) -> None:
        """
        Call *done* once all that was added before is written to the connection, or will be sent
        again on the next one: what is written then comes behind it.
        """
        if self._pending and self.is_open:
            self._barriers.append((self._added, done))
        else:
            done()

    def _pass_barriers(self) -> None:
        written = self._added - len(self._pending)
        while self._barriers and (self._barriers[0][0] <= written or not self.is_open):
            self._barriers.popleft()[1]()

    def flush(self) -> None:
        """Write frames while there is something and a free slot."""
        while self._pending and self.is_open and len(self._in_flight) < FRAMES_IN_FLIGHT_MAX:
            epoch = self._pending[0].epoch
            entries: list[_Entry] = []
            items: list[AckItem] = []
            while self._pending and self._pending[0].epoch == epoch:
                if items and len(items) + len(self._pending[0].items) > FRAME_ITEMS_MAX:
                    break
                entry = self._pending.popleft()
                entries.append(entry)
                items += entry.items
            frame, self._next_frame = self._next_frame, self._next_frame + 1
            self._in_flight[frame] = entries
            self._write(frame, encode_acks(epoch, items))
        if self._barriers:
            self._pass_barriers()

    def answered(self, frame: int, body: bytes | memoryview | None) -> None:
        """The store's results; None: it refused the frame as a whole."""
        entries = self._in_flight.pop(frame, None)
        if entries is None:
            return
        results = decode_ack_results(body) if body is not None else None
        at = 0
        for entry in entries:
            if entry.answered is not None:
                entry.answered(None if results is None else results[at : at + len(entry.items)])
            at += len(entry.items)


def ack_by_epoch(
    changes: Sequence[tuple[ReceiptHandle, int, int]],
    ack: Callable[[int, Sequence[AckItem], AckAnswered], None],
    answered: HandlesAnswered,
) -> None:
    """
    (handle, action, delay ms) each, by the store epoch of the handles; *answered* gets (code,
    handle that counts from now on) each, in order, or None if the store went away.
    """
    by_epoch: dict[int, list[int]] = {}
    for index, (handle, _, _) in enumerate(changes):
        by_epoch.setdefault(handle.store_epoch, []).append(index)
    results: dict[int, tuple[int, ReceiptHandle | None]] = {}
    waiting = len(by_epoch)

    def done(indexes: Sequence[int], answers: Sequence[tuple[int, int]] | None) -> None:
        nonlocal waiting
        waiting -= 1
        for index, (grant, code) in zip(indexes, answers or (), strict=False):
            handle, _, delay_ms = changes[index]
            fresh = handle._replace(grant=grant, popped_ms=clock.wall_ms(), invisible_ms=delay_ms)
            results[index] = (code, fresh if code == Code.OK else None)
        if not waiting:
            is_whole = len(results) == len(changes)
            answered([results[index] for index in range(len(changes))] if is_whole else None)

    for epoch, indexes in by_epoch.items():
        items = [
            AckItem(handle.group, handle.position, handle.grant, action, delay_ms)
            for handle, action, delay_ms in (changes[index] for index in indexes)
        ]
        ack(epoch, items, partial(done, indexes))
