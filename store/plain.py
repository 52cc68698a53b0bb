"""
Plain messages of standard codes, many at once: the columns of a block without an object each.

``Sender.append`` looks at every message; here a handler has looked already, and says so by
sending runs: neighbours of one message queue, records built, tags hashed.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from protocols.errors import Code, Refused
from protocols.remoting.matrix import MATRIX_ITEMS_MIN, np
from protocols.remoting.row_sums import BuiltSums
from store.answers import FULL_HINT, STORE_FULL
from store.appender import RUN_LENGTH_MIN, Draft, Plan, append_messages
from store.bulk import Bulk
from store.core import Core
from store.index.queues import Queue
from store.late import usable_lights
from store.log.format import EntryFlag
from store.metadata.topics import Topics
from store.retention.room import Room

FLAGS: Final = 1 | int(EntryFlag.HAS_TAG)
"""At least once, with its tag."""

OK: Final = int(Code.OK)


class PlainHead:
    """A message queue that runs go to, and what it meant here the last time."""

    __slots__ = ("keys", "plan", "planned_at", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, keys: tuple[bytes, ...] = ()) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.keys = keys
        """Light queues that get the messages too."""

        self.plan: Plan | None = None
        self.planned_at: tuple[int, int] | None = None
        """Versions of topics and queues that the plan holds for; the very object."""


class PlainRun(NamedTuple):
    """Messages of one message queue, in order."""

    head: PlainHead
    pieces: Sequence[bytes | memoryview]
    """The records, back to back in any cut."""

    lengths: Sequence[int]
    """Of each record."""

    tags: Sequence[int]


class PlainRows(NamedTuple):
    """Runs whose records are all of one size and have one tag."""

    heads: Sequence[PlainHead]
    counts: Sequence[int]
    """Messages of each run."""

    records: memoryview
    """Back to back; the log's from now on."""

    size: int
    tag: int
    sums: BuiltSums | None = None
    """Makes their CRCs faster."""

    def apart(self) -> "list[PlainRun]":
        """Run by run."""
        found: list[PlainRun] = []
        start = 0
        for head, count in zip(self.heads, self.counts, strict=True):
            end = start + count * self.size
            lengths, tags = [self.size] * count, [self.tag] * count
            found.append(PlainRun(head, [self.records[start:end]], lengths, tags))
            start = end
        return found


class RunResult(NamedTuple):
    """What became of a run: all of it stored, or none."""

    code: int
    positions: Sequence[int] = ()
    offsets: Sequence[int] = ()
    hint: str = ""


def _results(
    found: Sequence[RunResult | int], positions: "array[int]", offsets: "array[int]"
) -> list[RunResult]:
    """Of each run what *found* has, or of its next so many messages."""
    if found.count(1) == len(found):  # single messages, all of them stored
        return [
            RunResult(OK, (position,), (offset,))
            for position, offset in zip(positions, offsets, strict=True)
        ]
    results: list[RunResult] = []
    start = 0
    for item in found:
        if isinstance(item, RunResult):
            results.append(item)
            continue
        end = start + item
        results.append(RunResult(OK, positions[start:end], offsets[start:end]))
        start = end
    return results


class PlainSender:
    """Stores runs."""

    def __init__(self, core: Core, topics: Topics, room: Room) -> None:
        self._core = core
        self._topics = topics
        self._room = room
        self._at = (-1, -1)
        """Present versions of topics and queues: plans hold until one of them goes or changes."""

        self._lights: tuple[Queue, ...] = ()
        """Of the plan made last: most have the same, and one object of them is in a cache."""

    def append(self, runs: Sequence[PlainRun | PlainRows]) -> list[RunResult]:
        """Store *runs* in one block."""
        at = (self._topics.version, self._core.queues.version)
        self._at = self._at if at == self._at else at
        if len(runs) == 1 and isinstance(runs[0], PlainRows):
            rows = runs[0]
            if (found := self._plans_of_all(rows)) is not None:
                return self._append_rows(rows, *found)
        apart: list[PlainRun] = []
        for run in runs:
            if isinstance(run, PlainRows):
                apart += run.apart()
            else:
                apart.append(run)
        return self._append_runs(apart)

    def _plans_of_all(self, rows: PlainRows) -> tuple[list[Plan], list[int]] | None:
        """(plans, which one each run has); None: some are refused, or columns do not pay."""
        count = len(rows.records) // rows.size
        if count < MATRIX_ITEMS_MIN or not self._room.has_room_for(len(rows.records)):
            return None
        plans: dict[Plan, int] = {}
        indexes: list[int] = []
        for head in rows.heads:
            plan: Plan | RunResult | None = head.plan
            if plan is None or head.planned_at is not self._at:
                plan = self._plan(head)
            if isinstance(plan, RunResult):
                return None
            indexes.append(plans.setdefault(plan, len(plans)))
        return (list(plans), indexes) if count >= len(plans) * RUN_LENGTH_MIN else None

    def _append_rows(
        self, rows: PlainRows, plans: Sequence[Plan], indexes: Sequence[int]
    ) -> list[RunResult]:
        counts = rows.counts
        bulk = Bulk.of_rows(rows.size, np.repeat(indexes, counts), rows.tag, FLAGS, plans)
        positions, offsets = bulk.append(self._core, rows.records, rows.sums)
        return [
            RunResult(OK, positions[end - count : end], offsets[end - count : end])
            for count, end in zip(counts, accumulate(counts), strict=True)
        ]

    def _append_runs(self, runs: Sequence[PlainRun]) -> list[RunResult]:
        plans: dict[Plan, int] = {}
        pieces: list[bytes | memoryview] = []
        lengths: list[int] = []
        indexes: list[int] = []
        tags: list[int] = []
        found: list[RunResult | int] = []
        is_full = not self._room.has_room_for(sum([sum(run.lengths) for run in runs]))
        full, at = RunResult(STORE_FULL, hint=FULL_HINT), self._at
        plan: Plan | RunResult | None
        for head, run_pieces, run_lengths, run_tags in runs:
            plan = head.plan
            if is_full:
                plan = full
            elif plan is None or head.planned_at is not at:
                plan = self._plan(head)
            if isinstance(plan, RunResult):
                found.append(plan)
                continue
            count = len(run_lengths)
            index = plans.setdefault(plan, len(plans))
            pieces += run_pieces
            lengths += run_lengths
            tags += run_tags
            if count == 1:
                indexes.append(index)
            else:
                indexes += [index] * count
            found.append(count)
        if not lengths:
            return [item for item in found if isinstance(item, RunResult)]
        body = bytearray().join(pieces)
        count = len(lengths)
        is_few_queues = count >= len(plans) * RUN_LENGTH_MIN  # columns cost some steps per queue
        if np is not None and count >= MATRIX_ITEMS_MIN * (1 if is_few_queues else 2):
            bulk = Bulk.of_columns(lengths, indexes, tags, FLAGS, list(plans))
            positions, offsets = bulk.append(self._core, body)
        else:
            draft = Draft(
                body, lengths, indexes, list(plans), [FLAGS] * count, [0] * count, tags=tags
            )
            positions, offsets = append_messages(self._core, draft)
        return _results(found, positions, offsets)

    def _plan(self, head: PlainHead) -> Plan | RunResult:
        """Where runs of *head* go; remembered unless a light queue of theirs may still come."""
        try:
            self._topics.for_send(head.topic, head.queue_id)
        except Refused as refused:
            return RunResult(refused.code, hint=refused.hint)
        plan, queues = head.plan, self._core.queues
        if plan is not None and head.planned_at is not None and queues.are_active(plan.touched):
            head.planned_at = self._at  # another topic changed, or a queue that is none of its own
            return plan
        lights = tuple(usable_lights(self._core, head.keys))
        if lights == self._lights:
            lights = self._lights
        self._lights = lights
        plan = Plan(self._core.message_queue(head.topic, head.queue_id), lights)
        head.plan = plan
        head.planned_at = self._at if len(lights) == len(head.keys) else None
        return plan
