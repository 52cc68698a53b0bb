"""
The store's reference: what the same calls mean, in plain lists and dictionaries.

Slow and obvious on purpose, and without a disk: an engine that recovered must show exactly the
state that the calls below its log's end left here. Nothing is imported from the engine.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

NOWHERE = -1
"""Position of what the store copied by itself (dead letters): not told to anybody."""

QueueName = tuple[str, int] | bytes
"""(topic, queue id), or a light queue's key."""


class Entry(NamedTuple):
    """A place in a queue."""

    position: int
    target: int
    """Log position of the message."""

    body: bytes
    order: int = 0


@dataclass
class Read:
    """A queue of a read set: offsets *begin* (or *at*, for what is new) to *stop*."""

    name: QueueName
    tag: int
    begin: int
    at: int
    stop: int = 1 << 62


@dataclass
class Open:
    """A delivery that is not done: *state* is flight, back or held."""

    state: str
    order: int
    target: int
    body: bytes
    attempts: int = 0
    mark: tuple[int, int] = (0, 0)
    grant: int = 0
    is_stream: bool = False
    holder: int = 0
    """Stream that has it now; 0: none. Not kept over a restart."""

    invisible_ms: int = 0
    deadline: float = float("inf")


@dataclass
class Group:
    """One consumer group."""

    name: str
    reads: dict[int, Read] = field(default_factory=dict)
    open: dict[int, Open] = field(default_factory=dict)
    next_serial: int = 1
    is_fifo: bool = False
    is_inherited: bool = False
    attempts_max: int = 0
    owner_epoch: int = 0
    top: int = 0
    """Highest position ever looked at."""

    def fork(self) -> "Group":
        other = copy(self)
        other.reads = {serial: copy(read) for serial, read in self.reads.items()}
        other.open = {position: copy(one) for position, one in self.open.items()}
        return other

    def returned(self) -> list[int]:
        return sorted([at for at, one in self.open.items() if one.state == "back"])

    def in_flight(self) -> list[int]:
        return sorted([at for at, one in self.open.items() if one.state == "flight"])

    def due(self, monotonic: float) -> list[int]:
        """Positions whose time is up."""
        return [
            at
            for at, one in self.open.items()
            if one.state == "flight" and one.deadline <= monotonic
        ]

    # ── changes ─────────────────────────────────────────────────────────────────────────

    def done(self, positions: Sequence[int]) -> None:
        for position in positions:
            gone = self.open.pop(position, None)
            if gone is None or not self.is_fifo or not gone.order or gone.state == "held":
                continue
            following = self.first_of(gone.order)
            if following >= 0 and self.open[following].state == "held":
                self.open[following].state = "back"

    def first_of(self, order: int) -> int:
        """The position whose turn it is; -1: none of that key is open."""
        return min([at for at, one in self.open.items() if one.order == order], default=-1)

    def give_back(self, positions: Sequence[int], *, counts: bool) -> None:
        for position in positions:
            one = self.open.get(position)
            if one is not None and one.state == "flight":
                is_turn = not self.is_fifo or not one.order or self.first_of(one.order) == position
                one.state, one.mark = "back" if is_turn else "held", (0, 0)
                one.attempts += counts

    def count_attempts(self, positions: Sequence[int]) -> None:
        for position in positions:
            self.open[position].attempts += 1

    def lose_holders(self, monotonic: float, orphan_s: float) -> None:
        """The store started anew: durations run in full, streams have time to come back."""
        for one in self.open.values():
            one.holder, one.deadline = 0, float("inf")
            if one.state == "flight" and not (one.is_stream and self.is_inherited):
                wait_s = orphan_s if one.is_stream else one.invisible_ms / 1000
                one.deadline = monotonic + wait_s


class Taken(NamedTuple):
    """What a take should hand out."""

    positions: list[int]
    looked: list[Entry]
    """New entries up to the last one looked at."""

    held: list[int]


@dataclass
class Model:
    """A store."""

    queues: dict[QueueName, list[Entry]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    """Name → number of queues."""

    settings: dict[str, bytes] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    directory: dict[str, tuple[bytes | None, int, str, int]] = field(default_factory=dict)
    """Key → (value, version, gateway, gateway epoch)."""

    version: int = 0
    retained: dict[str, Entry] = field(default_factory=dict)
    once: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    frames: dict[str, dict[int, tuple[list[int], list[int], dict[int, int]]]] = field(
        default_factory=dict
    )
    """Gateway → frame → (positions, offsets, refusals)."""

    refusals: dict[str, dict[int, int]] = field(default_factory=dict)
    """Gateway → order key → latest frame in which an item of it was refused."""

    def fork(self) -> "Model":
        return Model(
            {name: list(entries) for name, entries in self.queues.items()},
            {name: group.fork() for name, group in self.groups.items()},
            dict(self.topics),
            dict(self.settings),
            dict(self.offsets),
            dict(self.directory),
            self.version,
            dict(self.retained),
            dict(self.once),
            {name: dict(frames) for name, frames in self.frames.items()},
            {name: dict(refusals) for name, refusals in self.refusals.items()},
        )

    def stuck(self, gateway: str, answered: int) -> set[int]:
        """Order keys of refusals that the gateway has not been told of."""
        refusals = self.refusals.get(gateway, {})
        return {order for order, frame in refusals.items() if frame > answered}

    # ── queues ──────────────────────────────────────────────────────────────────────────

    def append(self, names: Sequence[QueueName], entry: Entry) -> None:
        for name in names:
            self.queues.setdefault(name, []).append(entry)

    def drop_queue(self, name: QueueName) -> None:
        self.queues.pop(name, None)
        for group in self.groups.values():
            group.reads = {at: read for at, read in group.reads.items() if read.name != name}

    def first_topic_queue(self, name: QueueName) -> None:
        """A message queue came into being."""
        self.queues.setdefault(name, [])

    # ── groups ──────────────────────────────────────────────────────────────────────────

    def open_group(self, name: str, reads: Sequence[tuple[int, QueueName]], **facts: bool) -> None:
        """Create, or change the read set: kept, ended and new reads."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name, **facts)  # type: ignore[arg-type]
        wanted = {queue: tag for tag, queue in reads}
        for read in group.reads.values():
            if read.stop < 1 << 62:
                continue
            if read.name in wanted:
                read.tag = wanted.pop(read.name)
            else:
                read.stop = len(self.queues[read.name])
        for queue, tag in wanted.items():
            at = len(self.queues.setdefault(queue, []))
            group.reads[group.next_serial] = Read(queue, tag, at, at)
            group.next_serial += 1

    def fresh(self, group: Group, visible: int) -> list[Entry]:
        """New entries of the read set, merged, each once."""
        found: dict[int, Entry] = {}
        for read in group.reads.values():
            for entry in self.queues[read.name][read.at : read.stop]:
                if entry.position < visible:
                    found[entry.position] = entry
        return [found[position] for position in sorted(found)]

    def plan_take(self, group: Group, count: int, visible: int, *, in_runs: bool = False) -> Taken:
        """
        Returned ones first, then new ones; one message of an order key at a time, or (*in_runs*)
        as many as there is room for, if nothing of the key is out.
        """
        positions = group.returned()[:count]
        for position in list(positions) if in_runs and group.is_fifo else ():
            key = group.open[position].order
            same = sorted([at for at, one in group.open.items() if key and one.order == key])[1:]
            if all([group.open[at].state == "held" for at in same]):
                positions += same[: count - len(positions)]
        positions.sort()
        running = {
            group.open[at].order
            for at in positions
            if in_runs
            and not any(
                [
                    one.order == group.open[at].order and other not in positions
                    for other, one in group.open.items()
                ]
            )
        } - {0}
        looked: list[Entry] = []
        held: list[int] = []
        busy = {one.order for one in group.open.values() if one.order} if group.is_fifo else set()
        for entry in self.fresh(group, visible):
            if len(positions) == count:
                break
            looked.append(entry)
            if group.is_fifo and entry.order in busy - running:
                held.append(entry.position)
                continue
            positions.append(entry.position)
            if group.is_fifo and entry.order:
                busy.add(entry.order)
                running |= {entry.order} if in_runs else set()
        return Taken(positions, looked, held)

    def take(
        self,
        name: str,
        taken: Taken,
        *,
        grant: int,
        holder: int = 0,
        invisible_ms: int = 0,
        deadline: float = float("inf"),
    ) -> None:
        group = self.groups[name]
        for entry in taken.looked:
            group.open[entry.position] = Open("held", entry.order, entry.target, entry.body)
        if taken.looked:
            last = taken.looked[-1].position
            group.top = max(group.top, last)
            for read in group.reads.values():
                entries = self.queues[read.name]
                while read.at < min(read.stop, len(entries)) and entries[read.at].position <= last:
                    read.at += 1
        for position in taken.positions:
            one = group.open[position]
            one.state, one.grant = "flight", grant
            one.is_stream, one.holder = holder != 0, holder
            one.invisible_ms, one.deadline = invisible_ms, deadline

    def tags(self, group: Group, position: int) -> tuple[int, ...]:
        found: set[int] = set()
        for read in group.reads.values():
            covered = self.queues[read.name][read.begin : read.stop]
            if any([entry.position == position for entry in covered]):
                found.add(read.tag)
        return tuple(sorted(found))

    def last_attempts(self, name: str, positions: Sequence[int]) -> list[int]:
        """Those of *positions* that may not go out once more."""
        group = self.groups[name]
        limit = group.attempts_max or 1 << 62
        return [at for at in positions if group.open[at].attempts + 1 >= limit]

    def bury(self, name: str, positions: Sequence[int]) -> None:
        """Done here; a copy in the dead-letter topic."""
        for position in positions:
            body = self.groups[name].open[position].body
            self.append([(f"%DLQ%{name}", 0)], Entry(NOWHERE, NOWHERE, body))
            self.topics.setdefault(f"%DLQ%{name}", 1)
        self.groups[name].done(positions)

    def give_back(self, name: str, positions: Sequence[int], *, counts: bool) -> None:
        dead = self.last_attempts(name, positions) if counts else []
        self.bury(name, dead)
        self.groups[name].give_back([at for at in positions if at not in dead], counts=counts)

    def purge(self, name: str, visible: int) -> None:
        """All that is ready is done."""
        group = self.groups[name]
        ready = [at for at, one in group.open.items() if one.state != "flight"]
        for position in ready:
            group.open.pop(position)
        for read in group.reads.values():
            entries = self.queues[read.name]
            while read.at < min(read.stop, len(entries)) and entries[read.at].position < visible:
                read.at += 1

    # ── directory ───────────────────────────────────────────────────────────────────────

    def put(self, key: str, value: bytes | None, owner: tuple[str, int] = ("", 0)) -> int:
        self.version += 1
        self.directory.pop(key, None)  # the order of deletion follows the order of writing
        self.directory[key] = (value, self.version, *owner)
        return self.version

    def version_of(self, key: str) -> int:
        """0: not there, or deleted."""
        value, version, _, _ = self.directory.get(key, (None, 0, "", 0))
        return version if value is not None else 0

    def end_lease(self, gateway: str, epoch: int) -> None:
        bound = [
            key
            for key, (value, _, owner, at) in self.directory.items()
            if value is not None and (owner, at) == (gateway, epoch)
        ]
        for key in bound:
            self.put(key, None)
