"""
Which groups there are: opened, adopted, fenced by owner epoch, dropped, rebuilt.

Opening decides once (which queues, from which offsets) and logs the outcome; ``apply_open`` then
does it, live and on replay alike. Volatile groups are never logged.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from protocols.canonical import is_created_explicitly
from protocols.errors import Code, Refused
from protocols.groups import Start
from protocols.remoting.private import GroupOpen
from store.core import Core
from store.groups.group import GrantBatch, Group, GroupRead
from store.index.queues import Queue
from store.log.format import Kind
from store.log.state import pack, packed_rows
from store.policies.levels import subqueues

VOLATILE_FROM: Final = 1 << 31
"""Group numbers from here on belong to volatile groups: never logged, gone at a restart."""

POPS: Final = "rmq/"
"""``rmq/<group>/<topic>``: a consumer group of RocketMQ that pops a topic."""

_spec_bytes = msgspec.msgpack.Encoder().encode
_spec_of = msgspec.msgpack.Decoder(GroupOpen).decode

_NOTHING: Final[tuple[Any, ...]] = ((),) * 5
"""In flight, returned, held, attempts, marks."""

ReadRow = tuple[int, int, int, int, int, int, int, int]
"""(serial, tag, queue number, begin at, at, stop at, from position, to position)"""


class GroupTable:
    """All groups of this store, by number and name."""

    def __init__(self, core: Core, committed: Callable[[str, str, int], int]) -> None:
        self._core = core
        self._committed = committed
        """Where a consumer group that reads by offset stands in a queue of a topic; -1: nowhere."""

        self._by_number: dict[int, Group] = {}
        self._by_name: dict[str, Group] = {}
        self._by_topic: dict[str, dict[Group, None]] = {}
        self.on_dropped: Callable[[Group], None] = lambda group: None
        """Who keeps something for a group."""

        self._next_number = 1
        self._next_volatile = VOLATILE_FROM
        self.epoch_start = 0
        """Log position where the present store epoch began."""

        core.on_message_queue = self.queue_added

    def get(self, number: int) -> Group | None:
        return self._by_number.get(number)

    def find(self, name: str) -> Group | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_number.values())

    # ── open ────────────────────────────────────────────────────────────────────────────

    def open(self, spec: GroupOpen) -> tuple[Group, bool]:
        """(the group, whether it is new). Raises Refused."""
        group = self._by_name.get(spec.name)
        if group is not None and spec.incarnation > group.spec.incarnation:
            self.drop(group)
            group = None
        if group is not None:
            self._check_owner(group, spec)
        queues = self._queues(spec)
        self._core.log.seal_state()
        position = self._core.log.end
        number = group.number if group is not None else self._new_number(spec)
        rows = self._rows(group, spec, queues, position)
        is_cut = group is not None and spec.owner_epoch > group.owner_epoch
        cut_grant = group.last_grant + 1 if group is not None and is_cut else 0
        start = group.start if group is not None else self._start_position(spec, position)
        fields = (number, _spec_bytes(spec), rows, start, cut_grant, self._core.log.epoch)
        if not spec.is_volatile:
            self._core.log.state(Kind.GROUP, pack(*fields))
        return self.apply_open(*fields), group is None

    def apply_open(
        self, number: int, spec_bytes: bytes, rows: list[Any], start: int, cut: int, epoch: int
    ) -> Group:
        """Make the group what an open decided."""
        spec = _spec_of(spec_bytes)
        group = self._by_number.get(number)
        if group is None:
            group = Group(number, spec, self._core.entries)
            group.start = start
            self._by_number[number] = self._by_name[spec.name] = group
            if number < VOLATILE_FROM:
                self._next_number = max(self._next_number, number + 1)
        self._leave_topics(group)
        group.respec(spec)
        group.owner_epoch = spec.owner_epoch
        self._sync_reads(group, rows)
        self._join_topics(group)
        if cut:
            cut_off(group, cut, epoch)
        return group

    def _new_number(self, spec: GroupOpen) -> int:
        if spec.is_volatile:
            self._next_volatile += 1
            return self._next_volatile - 1
        return self._next_number

    def _check_owner(self, group: Group, spec: GroupOpen) -> None:
        is_stale = spec.owner_epoch < group.owner_epoch
        if is_stale or spec.incarnation < group.spec.incarnation:
            raise Refused(Code.PRECONDITION_FAILED, spec.name, "the group has a newer owner")

    def _queues(self, spec: GroupOpen) -> list[tuple[int, Queue]]:
        """(tag, queue) of the wanted read set."""
        found: list[tuple[int, Queue]] = []
        for read in spec.reads:
            if read.topic:
                found += [(read.tag, queue) for queue in self._core.queues.of_topic(read.topic)]
                continue
            queue = self._core.queues.find(read.key)
            if queue is None and is_created_explicitly(read.key):
                raise Refused(Code.NOT_FOUND, read.name or read.key.hex(), "no such queue here")
            policy = queue.policy if queue is not None else {}
            queue = self._core.light_queue(read.key, read.name, policy)
            found.append((read.tag, queue))
            if policy:
                found += [(read.tag, part) for part in subqueues(self._core.queues, queue)]
        return found

    def _rows(
        self,
        group: Group | None,
        spec: GroupOpen,
        queues: list[tuple[int, Queue]],
        position: int,
    ) -> list[ReadRow]:
        """The read set as it shall be: kept, ended and new reads."""
        wanted = {queue: tag for tag, queue in queues}
        rows: list[ReadRow] = []
        serial = 1
        for read in group.reads.values() if group is not None else ():
            if group is not None and group.is_spent(read):
                continue
            stop_at, to_position, tag = read.stop_at, read.to_position, read.tag
            if stop_at < 0 and read.queue in wanted:
                tag = wanted.pop(read.queue)
            elif stop_at < 0:
                stop_at, to_position = read.queue.next, position
            rows.append(_row(read, tag, stop_at, to_position))
        if group is not None:
            serial = group.next_serial
        start = self._start_position(spec, position)
        for queue, tag in wanted.items():
            at = self._start_offset(spec, queue)
            rows.append((serial, tag, queue.number, at, at, -1, start, -1))
            serial += 1
        return rows

    def _start_position(self, spec: GroupOpen, position: int) -> int:
        if spec.start == Start.EARLIEST.value:
            return self._core.log.segments.first_position
        return self.epoch_start if spec.start == Start.EPOCH.value else position

    def _start_offset(self, spec: GroupOpen, queue: Queue) -> int:
        """Of a new read. A consumer group that read by offset goes on where it stood."""
        if queue.topic and spec.name.startswith(POPS):
            group = spec.name.removeprefix(POPS).partition("/")[0]
            offset = self._committed(group, queue.topic, queue.queue_id)
            if offset >= 0:
                return min(max(offset, queue.first), queue.next)
        if spec.start == Start.EARLIEST.value:
            return queue.first
        if spec.start == Start.EPOCH.value:
            return queue.offset_from(self.epoch_start)
        return queue.next

    def _sync_reads(self, group: Group, rows: list[Any]) -> None:
        wanted = {row[0] for row in rows}
        group.tags.clear()
        for read in [read for read in group.reads.values() if read.serial not in wanted]:
            group.forget_read(read)
            self._core.queues.note_unread(read.queue)
        for serial, tag, number, begin_at, at, stop_at, from_position, to_position in rows:
            queue = self._core.queues.get(number)
            if queue is None:
                continue  # dropped since
            if serial not in group.reads:
                group.add_read(GroupRead(serial, tag, queue, at, from_position))
                group.reads[serial].begin_at = begin_at
            read = group.reads[serial]
            read.tag = tag
            if stop_at >= 0:
                group.end_read(read, stop_at, to_position)

    def _leave_topics(self, group: Group) -> None:
        for read in group.spec.reads:
            groups = self._by_topic.get(read.topic)
            if groups is not None:
                groups.pop(group, None)
                if not groups:
                    del self._by_topic[read.topic]

    def _join_topics(self, group: Group) -> None:
        for read in group.spec.reads:
            if read.topic:
                self._by_topic.setdefault(read.topic, {})[group] = None

    def queue_added(self, queue: Queue) -> None:
        """A topic got another message queue: its readers read it from the beginning."""
        for group in self._by_topic.get(queue.topic, ()):
            if all(read.queue is not queue for read in group.reads.values()):
                tags = [read.tag for read in group.spec.reads if read.topic == queue.topic]
                position = self._core.log.end
                read = GroupRead(group.next_serial, tags[0], queue, queue.first, position)
                group.add_read(read)

    # ── drop ────────────────────────────────────────────────────────────────────────────

    def drop(self, group: Group) -> None:
        if not group.spec.is_volatile:
            self._core.log.state(Kind.GROUP_END, pack(group.number))
        self.apply_drop(group)

    def apply_drop(self, group: Group) -> None:
        queues = [read.queue for read in group.reads.values()]
        group.forget_all_reads()
        for queue in queues:
            self._core.queues.note_unread(queue)
        self._by_number.pop(group.number, None)
        self._by_name.pop(group.name, None)
        self._leave_topics(group)
        self.on_dropped(group)

    def queue_dropped(self, queue: Queue) -> None:
        for group, read in list(queue.readers):
            group.forget_read(read)

    # ── snapshot ────────────────────────────────────────────────────────────────────────

    def dump(self) -> msgspec.Raw:
        """Every durable group, as a list of plain lists."""
        return packed_rows(_dump(group) for group in self if not group.spec.is_volatile)

    def load(self, rows: list[Any]) -> None:
        for number, spec_bytes, reads, start, facts in rows:
            group = self.apply_open(number, spec_bytes, reads, start, 0, 0)
            _load_facts(group, facts, self._core)


def cut_off(group: Group, grant: int, epoch: int) -> None:
    """A new owner: what is in flight stays so, under a grant that the old owner does not know."""
    positions = sorted(group.in_flight)
    if not positions:
        group.last_grant = max(group.last_grant, grant)
        return
    ordinals = [group.open[position] for position in positions]
    batch = GrantBatch(grant, epoch, 0, positions)
    batch.is_stream = True
    group.granted(batch, ordinals)


def _row(read: GroupRead, tag: int, stop_at: int, to_position: int) -> ReadRow:
    number, begin_at, at = read.queue.number, read.begin_at, read.at
    return read.serial, tag, number, begin_at, at, stop_at, read.from_position, to_position


def _dump(group: Group) -> tuple[Any, ...]:
    rows = [_row(read, read.tag, read.stop_at, read.to_position) for read in group.reads.values()]
    return group.number, _spec_bytes(group.spec), rows, group.start, _facts(group)


def _facts(group: Group) -> tuple[Any, ...]:
    """What ``_load_facts`` takes; most of tens of thousands have nothing in flight."""
    numbers = group.last_grant, group.top, group.last_done, group.live_from, group.next_serial
    if not (group.in_flight or group.returned or group.held or group.attempts or group.marks):
        return numbers + _NOTHING
    flights = [
        (position, batch.grant, batch.epoch, batch.invisible_ms, batch.is_stream, batch.taker)
        for position, batch in group.in_flight.items()
    ]
    return (
        *numbers,
        flights,
        group.returned,
        [list(held) for held in group.held.values()],
        list(group.attempts.items()),
        [(position, *mark) for position, mark in group.marks.items()],
    )


def _load_facts(group: Group, facts: list[Any], core: Core) -> None:
    """The index up to the snapshot is there already; what it lacks was lost to rot."""
    last_grant, top, last_done, live_from, serial, flights, returned, held, attempts, marks = facts
    ordinals = core.entries.known
    batches: dict[tuple[Any, ...], list[int]] = {}
    for position, *named in flights:
        batches.setdefault(tuple(named), []).append(position)
    for (grant, epoch, invisible_ms, is_stream, *taker), positions in batches.items():
        known = ordinals(positions)
        batch = GrantBatch(grant, epoch, 0, known)
        batch.invisible_ms, batch.is_stream = invisible_ms, is_stream
        batch.taker = taker[0] if taker else ""  # older snapshots have none
        group.granted(batch, known)
    back = ordinals(returned)
    batch = GrantBatch(0, 0, 0, back)
    group.granted(batch, back)
    group.give_back(back, counts=False)
    for positions in held:
        known = ordinals(positions)
        group.hold(known, known)
    group.attempts = {position: count for position, count in attempts if position in group.open}
    group.marks = {at: (packet_id, stage) for at, packet_id, stage in marks if at in group.open}
    group.last_grant, group.top, group.last_done = last_grant, max(top, group.top), last_done
    group.live_from = live_from
    group.next_serial = max(group.next_serial, serial)
