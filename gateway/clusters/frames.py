"""
Sends to one store: runs in, numbered SEND frames out (rules 3 and 11 of the store's page).

Sans-I/O: ``flush`` hands frames to *write*, answers come in by ``answered`` and ``refused``.
One frame is in flight where there is little to send, three as a rule, more while all are full. Each
carries everything that arrived meanwhile, so batches adjust themselves and an idle store adds no
latency. A frame whose answer was lost is *unsettled* until the store was asked what became of it.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway.clusters.batches import Run, bodies_of, rows_of
from gateway.clusters.items import encode_item, plain_item
from protocols.errors import Code, PeerError, Refused
from protocols.remoting.private import FRAME_BYTES_MAX, FRAME_ITEMS_MAX
from protocols.remoting.record_rows import plain_rows
from protocols.remoting.sending import decode_send_answer, encode_send
from protocols.rows import Rows

logger = logging.getLogger("tidegate.clusters")

FRAMES_IN_FLIGHT_MAX: Final = 16
"""Of full ones: a store that has run three waits for the disk, and then for the next three."""

FRAMES_AHEAD: Final = 3
"""Of others: one is on its way there, one at the disk, one on its way back; with two, a twentieth
less."""

IN_FLIGHT_BYTES_MAX: Final = 3 * FRAME_BYTES_MAX
"""From there on as many as of others."""

FRAME_COUNT_MIN: Final = 64
"""Fewer messages wait for the answer of the frame that is under way: a frame and its commit cost
what some fifty messages do, and a store that is busy with one begins no other sooner."""

FRAME_BYTES_MIN: Final = 32 << 10
PENDING_COUNT_HIGH: Final = 8192
"""Messages waiting for a frame above which publishers are to stop (and half of it: go on)."""

PENDING_BYTES_HIGH: Final = 16 << 20
RECORD_BYTES_EXTRA: Final = 1024
"""Rough size of a record beside its body; frames are cut by this estimate."""


class Frame:
    """One SEND frame on the wire."""

    __slots__ = ("count", "epoch", "number", "runs", "sent_at", "size")

    def __init__(self, number: int, epoch: int, sent_at: float) -> None:
        self.number = number
        self.epoch = epoch
        self.sent_at = sent_at
        self.runs: list[tuple[Run, int]] = []
        """Each run with the index of its first item."""

        self.count = 0
        self.size = 0
        """Bytes of its body."""

    def take_runs(self) -> list[Run]:
        """Give up the runs: whoever asks is now responsible for them."""
        runs, self.runs = [run for run, _ in self.runs], []
        return runs


class FrameSender:
    """What waits for one store and what is in flight to it."""

    def __init__(self, write: Callable[[Frame, bytes], None]) -> None:
        self._write = write
        self._pending: deque[Run] = deque()
        self._in_flight: dict[int, Frame] = {}
        self._next_number = 1
        self._epoch = 0
        self.is_open = False
        """Frames may be written: connected, greeted and settled."""

        self.pending_count = 0
        self.pending_bytes = 0
        self.unsettled: list[Frame] = []
        """Frames whose answers were lost, in order."""

    # ── connection ──────────────────────────────────────────────────────────────────────

    def opened(self, epoch: int, last_frame: int) -> None:
        """The store greeted this gateway epoch and knows its frames up to *last_frame*."""
        if epoch != self._epoch:
            self._epoch, self._next_number = epoch, 1
        self._next_number = max(self._next_number, last_frame + 1)
        self.is_open = True

    def lost(self) -> None:
        """The connection is gone; what was in flight has an unknown fate."""
        self.is_open = False
        self.unsettled += self._in_flight.values()
        self._in_flight.clear()

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def oldest_sent_at(self) -> float | None:
        """When the oldest unanswered frame was written; None: nothing is in flight."""
        return next((frame.sent_at for frame in self._in_flight.values()), None)

    @property
    def is_congested(self) -> bool:
        return self.pending_count > PENDING_COUNT_HIGH or self.pending_bytes > PENDING_BYTES_HIGH

    @property
    def is_clear(self) -> bool:
        return (
            self.pending_count <= PENDING_COUNT_HIGH // 2
            and self.pending_bytes <= PENDING_BYTES_HIGH // 2
        )

    @property
    def _is_worth_a_frame(self) -> bool:
        """What waits may leave; if not, the answer that is due flushes again."""
        in_flight = self._in_flight
        if len(in_flight) >= FRAMES_AHEAD:
            return (
                self.pending_count >= FRAME_ITEMS_MAX
                and len(in_flight) < FRAMES_IN_FLIGHT_MAX
                and sum([frame.size for frame in in_flight.values()]) < IN_FLIGHT_BYTES_MAX
            )
        return (
            not in_flight
            or self.pending_count >= FRAME_COUNT_MIN
            or self.pending_bytes >= FRAME_BYTES_MIN
        )

    # ── runs ────────────────────────────────────────────────────────────────────────────

    def submit(self, run: Run) -> None:
        """Queue a run; it leaves with a later ``flush``."""
        self._pending.append(run)
        self._count(run, 1)

    def take_pending(self, *, everything: bool = False) -> list[Run]:
        """
        Remove what is in no frame yet, to route it again.

        Messages with copies elsewhere stay, unless *everything*: their other copies may be
        written already.
        """
        return self._take(lambda run: everything or run.copy.is_only)

    def take_withdrawn(self) -> list[Run]:
        """Remove what is in no frame yet and has a once-key, of publishers that are gone."""
        return self._take(
            lambda run: run.batch.is_withdrawn and bool(run.batch.messages[run.start].once_key)
        )

    def _take(self, is_wanted: Callable[[Run], bool]) -> list[Run]:
        taken: list[Run] = []
        kept: deque[Run] = deque()
        for run in self._pending:
            (taken if is_wanted(run) else kept).append(run)
        self._pending = kept
        for run in taken:
            self._count(run, -1)
        return taken

    def _count(self, run: Run, sign: int) -> None:
        batch, count = run.batch, run.stop - run.start
        size_bytes, of_count = batch.size_bytes, len(batch.ids)
        if count < of_count:
            size_bytes = size_bytes * count // of_count
        self.pending_count += sign * count
        self.pending_bytes += sign * size_bytes

    # ── frames ──────────────────────────────────────────────────────────────────────────

    def flush(self, *, now: float, wall_ms: int) -> None:
        """Write frames while there is something to write and a free slot."""
        while self._pending and self.is_open and self._is_worth_a_frame:
            frame = Frame(self._next_number, self._epoch, now)
            body = self._build(frame, wall_ms)
            if not frame.count:
                continue  # nothing of it fitted a record: all refused
            self._next_number += 1
            frame.size = len(body)
            self._in_flight[frame.number] = frame
            self._write(frame, body)

    def _build(self, frame: Frame, wall_ms: int) -> bytes:
        sets: dict[bytes, int] = {}
        items: list[bytes] = []
        pieces: list[bytes | memoryview] = []
        item_count = size = 0
        while self._pending and item_count < FRAME_ITEMS_MAX and size < FRAME_BYTES_MAX:
            run = self._pending[0]
            set_index = sets.setdefault(run.copy.set_bytes, len(sets))
            at = item_count
            count = self._fitting(run, at, size) if run.batch.is_plain else 0
            if count:
                size += self._add_plain(run, count, set_index, items, pieces, wall_ms)
            else:
                before = len(items)
                size += self._add_items(run, set_index, items, at, pieces, size, wall_ms)
                count = len(items) - before
            item_count += count
            if count:
                part = run if count == run.count else run.cut(count)
                frame.runs.append((part, at))
                self._count(part, -1)
            if count and part is run:
                self._pending.popleft()
            elif not self._drop_unfit(run, wall_ms):
                break  # the frame is full
        if not self._pending:
            self.pending_count = self.pending_bytes = 0  # shares of bytes are rounded
        frame.count = item_count
        # All frames below the oldest in flight are answered.
        answered = next(iter(self._in_flight), frame.number) - 1
        return encode_send(
            frame.epoch, frame.number, answered, list(sets), items, pieces, item_count=item_count
        )

    @staticmethod
    def _fitting(run: Run, item_count: int, size: int) -> int:
        """How many of the run go into the frame, whatever their records come to; 0: not known."""
        batch, count = run.batch, run.count
        room, bytes_left = FRAME_ITEMS_MAX - item_count, FRAME_BYTES_MAX - size
        if count <= room and batch.size_bytes + count * RECORD_BYTES_EXTRA <= bytes_left:
            return count
        rows = rows_of(batch.messages)
        if rows is None:
            return 0
        return max(0, min(count, room, bytes_left // (rows.size + RECORD_BYTES_EXTRA)))

    @staticmethod
    def _add_plain(
        run: Run,
        count: int,
        set_index: int,
        items: list[bytes],
        pieces: list[bytes | memoryview],
        wall_ms: int,
    ) -> int:
        """Encode the next *count* messages of a run that have nothing of their own; bytes added."""
        copy, messages, ids = run.copy, run.batch.messages, run.batch.ids
        start, stop = run.start, run.start + count
        if count == 1:  # a device's only message: no columns for it
            body = messages[start].body
            size = copy.template.add(pieces, body, ids[start], copy.queue_id, wall_ms)
            items.append(plain_item(copy, set_index, size, is_empty=not body))
            return size
        if count < len(ids):
            messages, ids = messages[start:stop], ids[start:stop]
        bodies: Sequence[bytes] = ()
        rows = rows_of(messages)
        if rows is None:
            bodies = bodies_of(messages)
            rows = Rows.of(bodies)
        if rows is not None:
            records = plain_rows(copy.template, rows, ids, copy.queue_id, wall_ms)
            size = len(records) // count
            items.append(plain_item(copy, set_index, size, is_empty=False) * count)
            pieces.append(records)
            return len(records)
        sizes = copy.template.add_plain(pieces, bodies, ids, copy.queue_id, wall_ms)
        packed: dict[int, bytes] = {}  # one for each size: all else is the same
        for size, body in zip(sizes, bodies, strict=True):
            item = packed.get(size)
            if item is None:
                item = packed[size] = plain_item(copy, set_index, size, is_empty=not body)
            items.append(item)
        return sum(sizes)

    def _add_items(
        self,
        run: Run,
        set_index: int,
        items: list[bytes],
        item_count: int,
        pieces: list[bytes | memoryview],
        size: int,
        wall_ms: int,
    ) -> int:
        """Encode messages of *run* until the frame is full; bytes added. *item_count*: before."""
        messages, ids = run.batch.messages, run.batch.ids
        before = size
        for index in range(run.start, min(run.stop, run.start + FRAME_ITEMS_MAX - item_count)):
            message = messages[index]
            body, mark = message.body, len(pieces)
            if size and size + len(body) + RECORD_BYTES_EXTRA > FRAME_BYTES_MAX:
                break
            try:
                length, item = encode_item(
                    run.copy, message, body, ids[index], set_index, pieces, wall_ms
                )
            except Exception:
                del pieces[mark:]
                break  # ``_drop_unfit`` answers it
            size += length
            items.append(item)
        return size - before

    def _drop_unfit(self, run: Run, wall_ms: int) -> bool:
        """Refuse the message at which encoding stopped if no frame will ever hold it."""
        message = run.batch.messages[run.start]
        try:
            encode_item(run.copy, message, b"", run.batch.ids[run.start], 0, [], wall_ms)
        except Refused as error:
            self._refuse_first(run, error.code, error.hint)
        except Exception:  # a fault of ours costs this message; those behind it go on
            logger.exception("a message of %s cannot be stored", run.batch.call.client_id)
            self._refuse_first(run, Code.INTERNAL_ERROR, "internal error, see the log")
        else:
            return False
        return True

    def _refuse_first(self, run: Run, code: Code, hint: str) -> None:
        self._count(run, -1)
        part = run.cut(1)
        self._count(run, 1)
        if not run.count:
            self._pending.popleft()
        part.fail(code, hint)

    # ── answers ─────────────────────────────────────────────────────────────────────────

    def answered(self, number: int, body: bytes | memoryview) -> None:
        """The store ran the frame. Raises PeerError if the answer is none."""
        frame = self._in_flight.get(number)
        if frame is None:
            return
        answer = decode_send_answer(body)
        if len(answer.positions) != frame.count:
            raise PeerError(f"SEND answer for {len(answer.positions)} of {frame.count} items")
        del self._in_flight[number]
        for run, at in frame.runs:
            run.batch.answered(run, run.count, answer, at)

    def refused(self, number: int, code: Code, hint: str) -> None:
        """The store refused the frame as a whole."""
        frame = self._in_flight.pop(number, None)
        if frame is not None:
            for run in frame.take_runs():
                run.fail(code, hint)

    def settled(self, frame: Frame, body: bytes | None) -> list[Run]:
        """
        The store told what became of an unsettled frame.

        *body* is its answer, or None: it never ran and never will. Its runs are then returned,
        to be routed again.
        """
        if body is None:
            return frame.take_runs()
        runs, frame.runs = frame.runs, []
        answer = decode_send_answer(body)
        for run, at in runs:
            run.batch.answered(run, run.count, answer, at)
        return []

    def give_up(self, keeps: Callable[[Run], bool], code: Code, hint: str) -> bool:
        """
        Refuse what has an unknown fate, unless *keeps* says that it may wait for the store; whether
        anything does. The numbers stay unsettled until the store is back.
        """
        refused: list[Run] = []
        for frame in self.unsettled:
            kept: list[tuple[Run, int]] = []
            for run, at in frame.runs:
                if keeps(run):
                    kept.append((run, at))
                else:
                    refused.append(run)
            frame.runs = kept
        for run in refused:
            run.fail(code, hint)
        return any([frame.runs for frame in self.unsettled])
