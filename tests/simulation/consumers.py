"""The consuming half of the script: groups, streams, deadlines, leases."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

from protocols.errors import Code
from protocols.remoting.private import DirectoryRecord, GroupOpen, ReadItem
from protocols.remoting.settling import AckAction, AckItem, MarkItem
from store.answers import EndReason, Granted
from store.metadata.leases import Lease
from tests.simulation.checks import Broken, expect
from tests.simulation.reference import Model, QueueName, Taken
from tests.simulation.world import World
from tests.store.engine_kit import body_of

STREAMED = ("g", "f", "s", "q")
INVISIBLE_MS = 4000
OK, STALE = int(Code.OK), int(Code.INVALID_RECEIPT_HANDLE)
SENT = 1
"""Stage of a delivery whose bytes went out."""


class Consumers(World):
    """Takes, settles, comes and goes; the reference says what each call must answer."""

    def open(self, name: str, reads: Sequence[ReadItem], **facts: Any) -> int:
        spec = GroupOpen(name=name, reads=list(reads), **facts)
        number = self.engine.open_group(spec, self.now).value.group
        names: list[tuple[int, QueueName]] = []
        for read in reads:
            queues = [("t", 0), ("t", 1)] if read.topic else [read.key]
            names += [(read.tag, queue) for queue in queues]
        kept = {
            key: facts[key] for key in ("is_fifo", "is_inherited", "attempts_max") if key in facts
        }
        self.change(lambda model: model.open_group(name, names, **kept))
        self.holders.setdefault(name, self.random.randrange(1, 1 << 29))
        return number

    # ── take ────────────────────────────────────────────────────────────────────────────

    def consume(self, name: str = "", count: int = 0) -> None:
        name = name or self.random.choice(list(self.head.groups))
        count = count or self.random.choice([1, 2, 4, 32])
        group = self.head.groups[name]
        in_runs = group.is_fifo and count > 2
        taken = self.head.plan_take(group, count, self.engine.confirmed, in_runs=in_runs)
        is_stream = name in STREAMED
        facts: dict[str, Any] = {"holder": self.holders[name], "invisible_ms": INVISIBLE_MS}
        del facts["invisible_ms" if is_stream else "holder"]
        facts["in_runs"] = in_runs
        granted = self.engine.take(self.engine.group_number(name), count, self.now, **facts)
        self._expect_granted(name, granted, taken)
        if not taken.positions and not taken.held:
            return
        grant = granted[0].grant if granted else 0
        for one in granted:
            self._note_grant(name, one.position, grant)
        self.change(partial(self._taken, name, taken, grant, self.now.monotonic))
        handles = self.handles.setdefault(name, [])
        handles += [(one.position, one.grant) for one in granted]
        del handles[:-60]

    def _note_grant(self, name: str, position: int, grant: int) -> None:
        """No two deliveries have the same handle, not even over a restart that lost one."""
        handle = (self.engine.group_number(name), position, grant)
        if handle in self.granted:
            raise Broken(f"delivery {handle} was handed out before")
        self.granted.add(handle)

    def _expect_granted(self, name: str, granted: Sequence[Granted], taken: Taken) -> None:
        expect(f"take of {name}", [one.position for one in granted], taken.positions)
        group = self.head.groups[name]
        fresh = {entry.position: entry for entry in taken.looked}
        for one in granted:
            known = group.open.get(one.position)
            entry = fresh.get(one.position)
            expect("attempt", one.attempt, known.attempts + 1 if known is not None else 1)
            body = known.body if known is not None else entry.body if entry is not None else b""
            expect("bytes", body_of(self.engine.record_at(one.record_position)), body)
            if entry is not None:
                expect("tags", one.tags, self.head.tags(group, one.position))

    def _taken(self, name: str, taken: Taken, grant: int, monotonic: float, model: Model) -> None:
        if name in STREAMED:
            model.take(name, taken, grant=grant, holder=self.holders[name])
        else:
            deadline = monotonic + INVISIBLE_MS / 1000
            model.take(name, taken, grant=grant, invisible_ms=INVISIBLE_MS, deadline=deadline)

    def catch_up(self) -> None:
        """Everybody takes and acknowledges what there is: old segments may go."""
        for name in self.head.groups:
            number = self.engine.group_number(name)
            for at in self.head.groups[name].in_flight():
                grant = self.head.groups[name].open[at].grant
                self._settle(name, AckItem(number, at, grant))
            self.consume(name, 100)
            for at in self.head.groups[name].in_flight():
                grant = self.head.groups[name].open[at].grant
                self._settle(name, AckItem(number, at, grant))

    def leave_nothing(self) -> None:
        """All is acknowledged, and a moment later retention looks: the disk knows nothing yet."""
        self.catch_up()
        self.turn_clock(4.0)
        self.let_time_decide()

    # ── settle ──────────────────────────────────────────────────────────────────────────

    def settle_deliveries(self) -> None:
        """Ack, change, release; some handles are old."""
        name = self.random.choice(list(self.head.groups))
        handles = self.handles.get(name, [])
        chosen = self.random.sample(handles, min(len(handles), self.random.choice([1, 3, 20])))
        chosen = list(dict(chosen).items())
        number = self.engine.group_number(name)
        for position, grant in chosen:
            action = self.random.choice([AckAction.ACK] * 6 + [AckAction.CHANGE, AckAction.RELEASE])
            delay_ms = self.random.choice([0, 3000]) if action == AckAction.CHANGE else 0
            item = AckItem(number, position, grant, action, delay_ms)
            self._settle(name, item)

    def _settle(self, name: str, item: AckItem) -> None:
        group = self.head.groups[name]
        one = group.open.get(item.position)
        is_current = one is not None and one.state == "flight" and one.grant == item.grant
        pending = self.engine.ack(self.engine.epoch, [item], self.now)
        ((grant, code),) = pending.value
        position = item.position
        if is_current:
            self.expect_waits(pending)
        if not is_current:
            was_offered = one is None and position <= group.top
            is_done = was_offered and item.action == AckAction.ACK
            expect("a stale handle", code, OK if is_done else STALE)
        elif item.action == AckAction.ACK:
            expect("ack", code, OK)
            self.change(lambda model: model.groups[name].done([position]))
        elif item.delay_ms:
            deadline = self.now.monotonic + item.delay_ms / 1000
            taken = Taken([position], [], [])
            self.change(
                lambda model: model.take(
                    name,
                    taken,
                    grant=grant,
                    invisible_ms=item.delay_ms,
                    deadline=deadline,
                )
            )
            self.handles[name].append((position, grant))
        else:
            counts = item.action == AckAction.CHANGE
            self.change(lambda model: model.give_back(name, [position], counts=counts))

    def mark_deliveries(self) -> None:
        """Packet ids and stages, of the newest deliveries and a few old ones."""
        name = self.random.choice(list(self.head.groups))
        handles = self.handles.get(name, [])
        old = self.random.sample(handles, min(len(handles), 1))
        number = self.engine.group_number(name)
        for position, grant in dict([*handles[-3:], *old]).items():
            packet_id, stage = self.random.randrange(1, 100), self.random.randrange(3)
            item = MarkItem(number, position, grant, packet_id, stage)
            one = self.head.groups[name].open.get(position)
            is_current = one is not None and one.state == "flight" and one.grant == grant
            ((_, code),) = self.engine.mark(self.engine.epoch, [item], self.now).value
            expect("mark", code, OK if is_current else STALE)
            if is_current:
                mark = (packet_id, stage)
                self.change(partial(_set_mark, name, position, mark))

    # ── streams ─────────────────────────────────────────────────────────────────────────

    def end_stream(self) -> None:
        """Its gateway is gone: deliveries return in place, a session's stay."""
        name = self.random.choice(STREAMED)
        group = self.head.groups.get(name)
        if group is None:
            return
        holder = self.holders[name]
        self.engine.end_holder(holder, self.now)
        self.holders[name] = holder + 1
        lost = sorted([at for at, one in group.open.items() if one.holder == holder])
        if group.is_inherited:
            self.change(partial(_release, name, holder))
        elif lost:
            self.change(lambda model: model.give_back(name, lost, counts=True))

    def take_over(self) -> None:
        """A session's next owner inherits; another stream comes back with what it still holds."""
        if self.random.random() < 0.5:
            self._inherit()
            return
        name = self.random.choice(["g", "f"])
        group, number = self.head.groups[name], self.engine.group_number(name)
        lost = [
            at for at in group.in_flight() if not group.open[at].holder and group.open[at].is_stream
        ]
        held = [at for at in lost if self.random.random() < 0.5]
        holder = self.holders[name]
        holds = [(at, group.open[at].grant) for at in held]
        self.engine.resume(number, holder, holds, self.now)
        back = [at for at in lost if at not in held]
        self.change(partial(_come_back, name, held, back, holder))

    def _inherit(self) -> None:
        group = self.head.groups["s"]
        epoch = group.owner_epoch + 1
        reads = list({read.name: read.tag for read in group.reads.values()}.items())
        items = [ReadItem(tag=tag, key=key) for key, tag in reads if isinstance(key, bytes)]
        self.holders["s"] += 1
        spec = GroupOpen(name="s", reads=items, is_inherited=True, owner_epoch=epoch)
        number = self.engine.open_group(spec, self.now).value.group
        cut = group.in_flight()
        state = {one.position: one.grant for one in self.engine.group_state(number).in_flight}
        self.change(partial(_own, "s", epoch, [(tag, key) for key, tag in reads], state))
        granted = self.engine.resume(number, self.holders["s"], [], self.now)
        expect("inherited", [one.position for one in granted], cut)
        again = [at for at in cut if group.open[at].mark == (0, 0) or group.open[at].mark[1]]
        for one in granted:
            known = group.open[one.position]
            counted = known.attempts + (one.position in again) + 1
            expect("inherited", (one.attempt, one.packet_id, one.stage), (counted, *known.mark))
        if granted:
            self.change(
                partial(_granted_again, "s", cut, again, granted[0].grant, self.holders["s"])
            )
            self.handles["s"] = [(one.position, one.grant) for one in granted]

    # ── time ────────────────────────────────────────────────────────────────────────────

    def let_time_decide(self) -> None:
        """Deadlines and leases, as the reference sees them."""
        monotonic = self.now.monotonic
        wanted = [
            (name, at) for name, group in self.head.groups.items() for at in group.due(monotonic)
        ]
        late = [
            name
            for name, (_, renewed) in self.leases.items()
            if monotonic - renewed > self.config.lease_s
        ]
        found, ended = self._ticked()
        expect("came back in time", found, sorted(wanted))
        expect("leases that ended", ended, sorted(late))

    def _ticked(self) -> tuple[list[tuple[str, int]], list[str]]:
        """
        What deadlines returned, (group, position) each, and whose leases ended.

        A batch may end in two decisions (dead letters, returns), in a block each, and relocation
        may come behind: the reference must know between which of them the log can end.
        """
        deliveries, leases = self.engine._deliveries, self.engine._parts.leases
        bury, give_back, end = deliveries._bury, deliveries._return, leases.end
        found: list[tuple[str, int]] = []
        names: list[str] = []

        def buried(group: Any, positions: Sequence[int], *reason: Any) -> None:
            bury(group, positions, *reason)
            self.change(lambda model: model.bury(group.name, positions))

        def returned(group: Any, positions: Sequence[int], *, counts: bool) -> None:
            dead = self.head.last_attempts(group.name, positions)
            rest = [at for at in positions if at not in dead]
            give_back(group, positions, counts=counts)
            found.extend([(group.name, at) for at in positions])
            self.change(lambda model: model.groups[group.name].give_back(rest, counts=counts))

        def ended(lease: Lease, reason: EndReason) -> None:
            end(lease, reason)
            names.append(lease.gateway)
            self._lease_ended(lease.gateway)

        deliveries._bury, deliveries._return = buried, returned
        with patch.object(leases, "end", ended):
            self.engine.tick(self.now)
        deliveries._bury, deliveries._return = bury, give_back
        return sorted(found), sorted(names)

    def _lease_ended(self, name: str) -> None:
        epoch, _ = self.leases.pop(name)
        self.change(lambda model: model.end_lease(name, epoch))

    def purge(self) -> None:
        if self.random.random() < 0.5:
            return
        name = self.random.choice(["g", "f"])
        visible = self.engine.confirmed
        self.engine._deliveries.books.purge(self.engine._parts.groups.find(name))
        self.change(lambda model: model.purge(name, visible))

    def _written(self) -> list[DirectoryRecord]:
        """Directory records as written, durable or not."""
        found = self.engine._parts.directory.get
        records = [found(f"gateway/{name}") for name in ("gw1", "gw2")]
        if all([record is None for record in records]):
            raise Broken("no lease record")
        return [record for record in records if record is not None]


def _set_mark(name: str, position: int, mark: tuple[int, int], model: Model) -> None:
    model.groups[name].open[position].mark = mark


def _release(name: str, holder: int, model: Model) -> None:
    for one in model.groups[name].open.values():
        if one.holder == holder:
            one.holder = 0


def _come_back(
    name: str, held: Sequence[int], back: Sequence[int], holder: int, model: Model
) -> None:
    for position in held:
        one = model.groups[name].open[position]
        one.holder, one.deadline = holder, float("inf")
    model.give_back(name, back, counts=True)


def _own(
    name: str,
    epoch: int,
    reads: Sequence[tuple[int, QueueName]],
    grants: dict[int, int],
    model: Model,
) -> None:
    model.open_group(name, reads)
    group = model.groups[name]
    group.owner_epoch = epoch
    for position, grant in grants.items():
        one = group.open[position]
        one.grant, one.is_stream, one.holder = grant, True, 0
        one.deadline = float("inf")


def _granted_again(
    name: str, positions: Sequence[int], again: Sequence[int], grant: int, holder: int, model: Model
) -> None:
    group = model.groups[name]
    group.count_attempts(again)
    for position in positions:
        one = group.open[position]
        one.grant, one.holder, one.is_stream = grant, holder, True
