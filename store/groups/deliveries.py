"""
Hand out and take back: take, ack, change, mark, resume, and what deadlines decide.

Grants are logged and not awaited; acks are awaited. Each decision is applied by the same method
of ``Group`` that replay uses. (Semantics page, "Verbs"; store page, rules 5 and 12.)
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from protocols.clock import Now
from protocols.errors import Code
from protocols.remoting.settling import AckAction, AckRow, MarkItem
from store.answers import Granted
from store.core import Core
from store.groups.books import MARKED_SENT, Books
from store.groups.granted import granted
from store.groups.group import GrantBatch, Group
from store.groups.guard import Guard, Line
from store.groups.guarded import scan_all, scans_of, select_guarded
from store.groups.selection import (
    Fresh,
    Selected,
    Wanted,
    select_fresh,
    select_returned,
    with_runs,
)
from store.groups.table import GroupTable
from store.groups.tags import note_tags
from store.log.format import Kind
from store.log.state import (
    GRANT_COUNTS_ATTEMPT,
    GRANT_TO_STREAM,
    Grant,
    encode_ack,
    encode_grant,
    encode_marks,
    encode_return,
)

OK: Final = int(Code.OK)
STALE: Final = int(Code.INVALID_RECEIPT_HANDLE)
ACK: Final = int(AckAction.ACK)
RUN_LENGTH_MIN: Final = 4
"""Acks from which looking whether they are of one grant pays (measured)."""

TOO_OFTEN: Final = "delivery_limit"
REJECTED: Final = "rejected"
GRANTS_SKIPPED: Final = 0xFFFF
"""More takes of one group than fit between two syncs; 65,536 starts fit a 32-bit number."""


class Deliveries:
    """The moving part of all groups."""

    def __init__(
        self, core: Core, table: GroupTable, bury: Callable[[Group, Sequence[int], str], None]
    ) -> None:
        self._core = core
        self._table = table
        self.books = Books(core, table)
        self._bury = bury
        """Dead-letter these positions for a reason: copy and ack in one block."""

        self.expire: Callable[[Guard, Line, int], int] = lambda guard, line, wall_ms: 0
        """End what has expired at the head of a line."""

        self._deadlines: list[tuple[float, int, Group, GrantBatch]] = []
        self._deadline_count = 0
        self._live_batches = 0
        self._holders: dict[int, dict[Group, None]] = {}
        self._retired: set[int] = set()

    # ── out ─────────────────────────────────────────────────────────────────────────────

    def take(
        self,
        group: Group,
        wanted: Wanted,
        now: Now,
        holder: int,
        invisible_ms: int,
        taker: str = "",
    ) -> Sequence[Granted]:
        """Grant returned entries, then new ones."""
        back, fresh, order = self._select(group, wanted)
        ordinals = [group.open[position] for position in back]
        positions = back
        if fresh is not None:
            ordinals += fresh.ordinals
            positions = back + fresh.ordinals
            self._went_past(group, fresh)
        if not positions and (fresh is None or not fresh.held):
            return []
        if group.spec.is_priority:
            order = list(positions)
        if order is not None:  # books are kept by position
            positions.sort()
            ordinals.sort()
        if group.spec.is_auto_ack:
            group.top = group.last_done = positions[-1]
            return granted(self._core.entries, group, positions, ordinals, 0)
        grant = group.last_grant + 1
        held, scans = (fresh.held, scans_of(fresh.passed)) if fresh is not None else ([], [])
        self._log_grant(group, grant, invisible_ms, holder, positions, held, scans, taker)
        if held:
            group.hold(held, held)
        if not positions:
            group.last_grant = grant
            return []
        batch = GrantBatch(grant, self._core.log.epoch, holder, positions)
        batch.taker = taker
        group.granted(batch, ordinals)
        self._watch(group, batch, now, invisible_ms, holder)
        self._core.counters.granted += len(positions)
        if order is not None:
            ascend = order == positions
            positions = ordinals = order
        else:  # what is new may be of a queue that was not read before
            count = len(back)
            ascend = not count or count == len(positions) or back[-1] < positions[count]
        return granted(self._core.entries, group, positions, ordinals, grant, ascend=ascend)

    def _select(self, group: Group, wanted: Wanted) -> Selected:
        """What is offered next, by the kind of group."""
        guard = group.guard
        if guard is not None and guard.queue is not None and not group.spec.is_fifo:
            return select_guarded(group, guard, wanted, self.expire)
        back = select_returned(group, wanted) if group.returned else []
        followed: set[int] = set()
        if wanted.in_runs and back and group.turns:
            back, followed = with_runs(group, back, wanted)
        room = wanted.count_max - len(back)
        if room <= 0 or not group.ready:
            return Selected(back, None, None)
        return Selected(back, select_fresh(group, wanted, self._core.entries, room, followed), None)

    def _went_past(self, group: Group, fresh: Fresh) -> None:
        if fresh.is_cut:
            self._core.woken_groups.add(group.number)
        if len(group.reads) > 1:
            note_tags(group, fresh)

    def _log_grant(
        self,
        group: Group,
        grant: int,
        invisible_ms: int,
        holder: int,
        positions: Sequence[int],
        held: Sequence[int],
        scans: Sequence[tuple[int, int]],
        taker: str = "",
    ) -> None:
        if not group.spec.is_volatile:
            flags = GRANT_TO_STREAM if holder else 0
            record = Grant(group.number, grant, invisible_ms, flags, positions, held, scans, taker)
            self._core.log.state(Kind.GRANT, encode_grant(record))

    def _watch(
        self, group: Group, batch: GrantBatch, now: Now, invisible_ms: int, holder: int
    ) -> None:
        batch.invisible_ms = invisible_ms
        if holder:
            self._hold(holder, group)
        else:
            self._set_deadline(group, batch, now.monotonic + invisible_ms / 1000)

    def _set_deadline(self, group: Group, batch: GrantBatch, deadline: float) -> None:
        batch.deadline = deadline
        self._deadline_count += 1
        heappush(self._deadlines, (deadline, self._deadline_count, group, batch))
        if len(self._deadlines) > 2 * self._live_batches + 4096:  # most are done: sweep
            self._deadlines = [item for item in self._deadlines if item[3].left > 0]
            heapify(self._deadlines)
            self._live_batches = len(self._deadlines)

    def grant_anew(
        self, group: Group, positions: Sequence[int], taker: str, now: Now, invisible_ms: int
    ) -> tuple[GrantBatch, Sequence[Granted]]:
        """In flight once more, to be sent; no further attempt."""
        batch = self._hide_anew(
            group, positions, taker, now, invisible_ms, group.last_grant + 1, self._core.log.epoch
        )
        ordinals = [group.open[position] for position in positions]
        return batch, granted(self._core.entries, group, positions, ordinals, batch.grant)

    def _hide_anew(
        self,
        group: Group,
        positions: Sequence[int],
        taker: str,
        now: Now,
        invisible_ms: int,
        grant: int,
        epoch: int,
    ) -> GrantBatch:
        """In flight once more; handles of before are void, but for those of *grant*."""
        self._log_grant(group, grant, invisible_ms, 0, positions, [], [], taker)
        batch = GrantBatch(grant, epoch, 0, positions)
        batch.taker = taker
        group.granted(batch, [group.open[position] for position in positions])
        self._watch(group, batch, now, invisible_ms, 0)
        return batch

    # ── back ────────────────────────────────────────────────────────────────────────────

    def ack(
        self, epoch: int, items: Sequence[AckRow], now: Now | None = None
    ) -> tuple[list[tuple[int, int]], bool]:
        """(results, whether one must wait for the disk)."""
        if (run := self._ack_run(epoch, items)) is not None:
            return run
        results: list[tuple[int, int]] = []
        done: dict[Group, list[int]] = {}
        rejected: dict[Group, list[int]] = {}
        group: Group | None = None
        number = -1
        must_wait = False
        now_epoch = self._core.log.epoch
        for item_group, position, grant, action, delay_ms in items:
            if item_group != number:
                group, number = self._table.get(item_group), item_group
            batch = group.in_flight.get(position) if group is not None else None
            if group is None or batch is None or not batch.is_named_by(grant, epoch, now_epoch):
                code = self._judge(group, position, action)
                results.append((grant, code))  # what ended it may not be durable yet
                must_wait = must_wait or code == OK
            elif action == ACK:
                done.setdefault(group, []).append(position)
                results.append((grant, OK))
            elif action == AckAction.REJECT:
                rejected.setdefault(group, []).append(position)
                results.append((grant, OK))
            else:
                results.append((self._change(group, batch, position, action, delay_ms, now), OK))
                must_wait = must_wait or not group.spec.is_volatile
        for group, positions in rejected.items():
            must_wait = must_wait or not group.spec.is_volatile
            self._bury(group, positions, REJECTED)
        return results, self._log_acks(done) or must_wait

    def _ack_run(
        self, epoch: int, items: Sequence[AckRow]
    ) -> tuple[list[tuple[int, int]], bool] | None:
        """``ack`` of deliveries of one grant, as most are; None: they are not."""
        count = len(items)
        if count < RUN_LENGTH_MIN or items[0][0] != items[-1][0] or items[0][2] != items[-1][2]:
            return None
        groups, positions, grants, actions, _ = zip(*items, strict=True)
        number, grant = groups[0], grants[0]
        group = self._table.get(number)
        if group is None or count != groups.count(number) or count != grants.count(grant):
            return None
        batches = [*map(group.in_flight.get, positions)]
        batch = batches[0]
        if batch is None or batches.count(batch) < count or actions.count(ACK) < count:
            return None
        if not batch.is_named_by(grant, epoch, self._core.log.epoch):
            return None
        return [(grant, OK)] * count, self._log_acks({group: positions})

    def _log_acks(self, done: Mapping[Group, Sequence[int]]) -> bool:
        """These are done; True: their record must be durable before anybody is told."""
        logged = [(group.number, at) for group, at in done.items() if not group.spec.is_volatile]
        if logged:
            self._core.log.state(Kind.ACK, encode_ack(logged))
        for group, positions in done.items():
            self._end(group, positions)
        return bool(logged)

    def _end(self, group: Group, positions: Sequence[int]) -> None:
        group.done(positions)
        self._core.counters.acked += len(positions)
        if group.returned or (group.spec.is_fifo and group.ready):
            self._core.woken_groups.add(group.number)

    def _judge(self, group: Group | None, position: int, action: int) -> int:
        """A handle that is not current: fine if it acks what is done already."""
        if group is None or action != ACK:
            return STALE
        is_done = position <= group.top and position not in group.open
        return OK if is_done else STALE

    def _change(
        self,
        group: Group,
        batch: GrantBatch,
        position: int,
        action: int,
        delay_ms: int,
        now: Now | None,
    ) -> int:
        """Return it (now or later); the grant that counts from now on."""
        if action == AckAction.RELEASE or delay_ms == 0:
            self._return(group, [position], counts=action != AckAction.RELEASE)
            return batch.grant
        assert now is not None, "a delay needs the time"
        if action == AckAction.RENEW:
            taker, grant, epoch = batch.taker, batch.grant, batch.epoch
        else:  # it is the client's no more
            taker, grant, epoch = "", group.last_grant + 1, self._core.log.epoch
        self._hide_anew(group, [position], taker, now, delay_ms, grant, epoch)
        return grant

    def _return(self, group: Group, positions: Sequence[int], *, counts: bool) -> None:
        """Back in place; those that had their last attempt to the dead-letter topic."""
        limit = group.spec.attempts_max
        if group.guard is not None:
            limit = group.guard.terms.attempts_max or limit
        if counts and limit:
            dead = [at for at in positions if group.attempts.get(at, 0) + 1 >= limit]
            if dead:
                self._bury(group, dead, TOO_OFTEN)
                gone = set(dead)
                positions = [at for at in positions if at not in gone]
        if not positions:
            return
        if not group.spec.is_volatile:
            payload = encode_return(group.number, positions, counts=counts)
            self._core.log.state(Kind.RETURN, payload)
        group.give_back(positions, counts=counts)
        self._core.counters.returned += len(positions)
        self._core.woken_groups.add(group.number)

    def mark(self, epoch: int, items: Sequence[MarkItem]) -> tuple[list[tuple[int, int]], bool]:
        """(results, whether they must wait for the disk)."""
        results: list[tuple[int, int]] = []
        logged: list[tuple[int, int, int, int]] = []
        now_epoch = self._core.log.epoch
        for number, position, grant, packet_id, stage in items:
            group = self._table.get(number)
            batch = group.in_flight.get(position) if group is not None else None
            if group is None or batch is None or not batch.is_named_by(grant, epoch, now_epoch):
                results.append((grant, STALE))
                continue
            group.marks[position] = (packet_id, stage)
            results.append((grant, OK))
            if not group.spec.is_volatile:
                logged.append((number, position, packet_id, stage))
        if logged:
            self._core.log.state(Kind.MARK, encode_marks(logged))
        return results, bool(logged)

    # ── streams ─────────────────────────────────────────────────────────────────────────

    def resume(
        self, group: Group, holder: int, holds: Sequence[tuple[int, int]], now: Now
    ) -> Sequence[Granted]:
        """A stream opens or opens again."""
        self._hold(holder, group)
        if group.spec.is_inherited:
            return self._inherit(group, holder, now)
        kept: dict[GrantBatch, list[int]] = {}
        for position, grant in holds:
            batch = group.in_flight.get(position)
            if batch is not None and batch.grant == grant and batch.is_stream:
                kept.setdefault(batch, []).append(position)
        for batch, positions in kept.items():
            moved = GrantBatch(batch.grant, batch.epoch, holder, positions)
            group.granted(moved, [group.open[position] for position in positions])
        lost = [
            position
            for position, batch in group.in_flight.items()
            if batch.is_stream and batch.holder not in self._holders
        ]
        self._return(group, sorted(lost), counts=True)
        return []

    def hand_over(self, group: Group, positions: Sequence[int], holder: int) -> None:
        """Part of what one stream was just granted is another's."""
        batch = group.in_flight[positions[0]]
        moved = GrantBatch(batch.grant, batch.epoch, holder, positions)
        group.granted(moved, [group.open[position] for position in positions])

    def _inherit(self, group: Group, holder: int, now: Now) -> Sequence[Granted]:
        """All that is in flight goes to the new owner, under a new grant."""
        positions = sorted(group.in_flight)
        if group.spec.skips_qos0_on_resume:
            group.live_from = self._core.log.end
        if not positions:
            return []
        ordinals = [group.open[position] for position in positions]
        again = [at for at in positions if group.marks.get(at, (0, MARKED_SENT))[1]]
        grant = group.last_grant + 1
        flags = GRANT_TO_STREAM | GRANT_COUNTS_ATTEMPT
        record = Grant(group.number, grant, 0, flags, positions)
        if not group.spec.is_volatile:
            self._core.log.state(Kind.GRANT, encode_grant(record))
        group.count_attempts(again)
        batch = GrantBatch(grant, self._core.log.epoch, holder, positions)
        group.granted(batch, ordinals)
        self._watch(group, batch, now, 0, holder)
        return granted(self._core.entries, group, positions, ordinals, grant)

    def end_holder(self, holder: int, *, is_lost: bool) -> list[Group]:
        """A stream ended; *is_lost*: with its gateway's presence. The groups it was on."""
        is_retired = holder in self._retired
        self._retired.discard(holder)
        for group in (groups := list(self._holders.pop(holder, {}))):
            group.stream_count -= not is_retired
            batches = list(group.holders.get(holder, ()))
            if is_lost and group.spec.is_volatile and not self._is_streamed(group):
                self._table.apply_drop(group)
                continue
            if group.spec.is_inherited:
                for batch in batches:
                    group.release_holder(batch)
                continue
            positions = [
                at
                for batch in batches
                for at in batch.positions
                if group.in_flight.get(at) is batch
            ]
            self._return(group, sorted(positions), counts=True)
        return groups

    def _hold(self, holder: int, group: Group) -> None:
        groups = self._holders.setdefault(holder, {})
        if group not in groups:
            groups[group] = None
            group.stream_count += 1

    def retire(self, holder: int) -> None:
        """The stream takes nothing any more; what it has may still be acked."""
        for group in self._holders.get(holder, ()) if holder not in self._retired else ():
            group.stream_count -= 1
        self._retired.add(holder)

    def _is_streamed(self, group: Group) -> bool:
        return any(group in groups for groups in self._holders.values())

    # ── time ────────────────────────────────────────────────────────────────────────────

    def tick(self, now: Now) -> float | None:
        """Return what was not acknowledged in time; when the next deadline comes."""
        while self._deadlines and self._deadlines[0][0] <= now.monotonic:
            _, _, group, batch = heappop(self._deadlines)
            if batch.left == 0 or self._table.get(group.number) is not group:
                continue
            if batch.holder:
                continue  # taken over by a stream that came back
            positions = [at for at in batch.positions if group.in_flight.get(at) is batch]
            self._return(group, sorted(positions), counts=True)
        return self._deadlines[0][0] if self._deadlines else None

    def prolong(self, seconds: float) -> None:
        """This store heard nobody for so long: what gateways renew for their clients stays."""
        for index, (deadline, number, group, batch) in enumerate(self._deadlines):
            if batch.taker:
                batch.deadline = deadline + seconds
                self._deadlines[index] = (batch.deadline, number, group, batch)
        heapify(self._deadlines)

    def rearm(self, now: Now) -> None:
        """After a restart: durations run anew, in full; lost streams get time to come back."""
        for group in self._table:
            for batch in dict.fromkeys(group.in_flight.values()):
                if batch.is_stream and group.spec.is_inherited:
                    continue
                wait_s = batch.invisible_ms / 1000
                if batch.is_stream:
                    wait_s = self._core.config.orphan_s
                self._set_deadline(group, batch, now.monotonic + wait_s)
            if group.returned or group.ready:
                self._core.woken_groups.add(group.number)

    def new_epoch(self) -> None:
        """
        The store started anew: skip the grant numbers that it may have given out and lost.

        Grants are not awaited; so no number of the last, un-synced moments is ever used for
        another delivery, and (position, grant) is unique over restarts.
        """
        for group in self._table:
            group.last_grant = (group.last_grant | GRANTS_SKIPPED) + 1

    def set_back(self, group: Group, line: Line, limit: int, count: int) -> None:
        """Offer the next *count* entries to nobody: they are returned ones from now on."""
        positions, passed = scan_all(group, line, limit, count)
        grant, scans = group.last_grant + 1, scans_of(passed)
        self._log_grant(group, grant, 0, 0, positions, [], scans)
        group.granted(GrantBatch(grant, self._core.log.epoch, 0, positions), positions)
        if not group.spec.is_volatile:
            payload = encode_return(group.number, positions, counts=False)
            self._core.log.state(Kind.RETURN, payload)
        group.give_back(positions, counts=False)
