"""
Plain messages of standard codes, many at once: the columns of a block without an object each.

``Sender.append`` looks at every message; here a handler has looked already, and says so by
sending runs: neighbours of one message queue, records built, tags hashed.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.errors import Code, Refused
from store.answers import STORE_FULL
from store.appender import Draft, Plan, append_messages
from store.core import Core
from store.late import usable_lights
from store.log.format import EntryFlag
from store.metadata.topics import Topics
from store.retention.room import Room

FLAGS: Final = 1 | int(EntryFlag.HAS_TAG)
"""At least once, with its tag."""

PLANS_MAX: Final = 100_000


class PlainRun(NamedTuple):
    """Messages of one message queue, in order."""

    topic: str
    queue_id: int
    pieces: Sequence[bytes]
    """The records, back to back in any cut."""

    lengths: Sequence[int]
    """Of each record."""

    tags: Sequence[int]
    keys: tuple[bytes, ...] = ()
    """Light queues that get them too."""


class RunResult(NamedTuple):
    """What became of a run: all of it stored, or none."""

    code: int
    positions: Sequence[int] = ()
    offsets: Sequence[int] = ()
    hint: str = ""


class PlainSender:
    """Stores runs."""

    def __init__(self, core: Core, topics: Topics, room: Room) -> None:
        self._core = core
        self._topics = topics
        self._room = room
        self._plans: dict[tuple[str, int, tuple[bytes, ...]], Plan] = {}
        self._planned_at = (-1, -1)

    def append(self, runs: Sequence[PlainRun]) -> list[RunResult]:
        """Store *runs* in one block."""
        plans: dict[Plan, int] = {}
        pieces: list[bytes] = []
        lengths: list[int] = []
        indexes: list[int] = []
        tags: list[int] = []
        found: list[RunResult | int] = []
        is_full = not self._room.has_room_for(sum([sum(run.lengths) for run in runs]))
        for run in runs:
            plan = RunResult(STORE_FULL, hint="the store is full") if is_full else self._plan(run)
            if isinstance(plan, RunResult):
                found.append(plan)
                continue
            count = len(run.lengths)
            at = plans.setdefault(plan, len(plans))
            pieces += run.pieces
            if count == 1:
                lengths.append(run.lengths[0])
                indexes.append(at)
                tags.append(run.tags[0])
            else:
                lengths += run.lengths
                indexes += [at] * count
                tags += run.tags
            found.append(count)
        if not lengths:
            return [item for item in found if isinstance(item, RunResult)]
        draft = Draft(
            bytearray().join(pieces),
            lengths,
            indexes,
            list(plans),
            [FLAGS] * len(lengths),
            [0] * len(lengths),
            tags=tags,
        )
        positions, offsets = append_messages(self._core, draft)
        results: list[RunResult] = []
        start = 0
        for item in found:
            if isinstance(item, RunResult):
                results.append(item)
                continue
            end = start + item
            results.append(RunResult(Code.OK, positions[start:end], offsets[start:end]))
            start = end
        return results

    def _plan(self, run: PlainRun) -> Plan | RunResult:
        """Where the run goes; remembered while no topic changes and no queue comes or goes."""
        queues = self._core.queues
        version = (self._topics.version, queues.version + queues.next_number)
        if version != self._planned_at or len(self._plans) > PLANS_MAX:
            self._plans.clear()
        key = (run.topic, run.queue_id, run.keys)
        plan = self._plans.get(key)
        if plan is None:
            try:
                self._topics.for_send(run.topic, run.queue_id)
            except Refused as refused:
                return RunResult(refused.code, hint=refused.hint)
            queue = self._core.message_queue(run.topic, run.queue_id)
            plan = self._plans[key] = Plan(queue, usable_lights(self._core, run.keys))
            version = (self._topics.version, queues.version + queues.next_number)
        self._planned_at = version
        return plan
