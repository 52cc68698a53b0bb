"""
The pipeline: four verbs, written out.

A publish passes identity → ACL → throttle → route → match → cluster, in that order; what was
decided for a (call, head) is kept until a version changes, so a repeated head costs one
dictionary hit. All posts of a tick leave as one frame per store. What is not yet in a written
frame is decided again when a table changes: that is what the SUBACK barrier stands on.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from gateway.admission import Admission
from gateway.backpressure import BackPressure
from gateway.clusters.batches import Batch, Lanes, Run, are_plain, body_bytes
from gateway.clusters.client import ClusterClient
from gateway.clusters.link import LinkState, StoreLink
from gateway.config import LimitsConfig
from gateway.decided import Decision, Decisions
from gateway.decisions import Decider, RouteUnknown
from gateway.lateheads import LateHeads
from gateway.learning import RouteLearner
from gateway.matching import MatchingTable
from gateway.members import StoreMembers
from gateway.mirrors import Mirrors
from gateway.onces import OnceReleases
from gateway.policy import Policy
from gateway.receipts import Receipts
from gateway.resends import Resends
from gateway.storewaits import StoreWaits
from gateway.withdrawals import WITHDRAWN, Withdrawals
from protocols import clock
from protocols.canonical import (
    Call,
    Delivery,
    Head,
    Message,
    ReceiptHandle,
    SendResult,
    SendResults,
)
from protocols.driver import flusher
from protocols.errors import Code, Refused
from protocols.groups import AckResult, GroupSpec, InvisibleTimeChange, PopRequest
from protocols.message_runs import MessageRun
from protocols.remoting.message_ids import MessageIds, own_address
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.pipeline")

BODY_BYTES_MAX: Final = 4 << 20
"""Largest body (RocketMQ's ``maxMessageSize``)."""

IDS_AT_ONCE: Final = 1 << 14
"""Message ids taken in one step; their counter has 16 bits."""


class GatewayPipeline:
    """Implements ``protocols.pipeline.Pipeline``."""

    def __init__(
        self,
        clusters: Mapping[str, ClusterClient],
        matching: MatchingTable,
        *,
        policy: Policy,
        default_cluster: str = "",
        limits: LimitsConfig | None = None,
    ) -> None:
        self._clusters = clusters
        self._matching = matching
        self.decider = Decider(
            clusters,
            matching,
            default_cluster=default_cluster or next(iter(clusters)),
            policy=policy,
        )
        self.receipts = Receipts(clusters, self.decider)
        self.mirrors = Mirrors(clusters, self.decider, self._submit)
        self.learner = RouteLearner(self.decider, self._resume_all)
        self._pressure = BackPressure(clusters, self.decider)
        self._admission = Admission(self._pressure, self._resume_one)
        self.waits = StoreWaits(
            clusters,
            self.decider,
            self._pressure,
            resume=self._waited,
            reroute=self.reroute,
            limits=limits or LimitsConfig(),
        )
        self._onces = OnceReleases(clusters)
        self._resends = Resends(clusters, self.decider)
        self._loop = asyncio.get_running_loop()
        self._flush_now = flusher(self._loop)
        self._tasks = Tasks("pipeline")
        self._incoming: list[tuple[Call, Sequence[Message], Callable[[SendResults], None]]] = []
        self._is_flush_due = False
        self._decisions = Decisions()
        self._lanes = Lanes(self._forget)
        self.withdrawals = Withdrawals(clusters, self._lanes, self.waits)
        self._late_heads = LateHeads()
        self.message_count = 0
        """Messages that came in, for metrics."""

        self._sequence = 0
        self._turn = 0
        self._seed = random.getrandbits(32)
        self._ids = MessageIds(own_address(), os.getpid(), self._seed)
        for cluster in clusters.values():
            cluster.listen(self)

    def use(self, policy: Policy) -> None:
        """From now on these rules; what was decided under others is decided again."""
        self.decider.policy = policy

    def ask(self, members: StoreMembers) -> None:
        """From now on it knows which stores may be away; before: those that this gateway met."""
        self._resends.members = self._onces.members = members

    async def close(self) -> None:
        await self._tasks.close()
        await self.learner.close()
        await self.mirrors.close()
        await self.receipts.close()
        await self._onces.close()
        await self._resends.close()
        self.waits.close()

    # ── send ────────────────────────────────────────────────────────────────────────────

    def post(
        self, call: Call, messages: Sequence[Message], done: Callable[[SendResults], None]
    ) -> None:
        self._incoming.append((call, messages, done))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    async def send(self, call: Call, messages: Sequence[Message]) -> Sequence[SendResult]:
        future: asyncio.Future[SendResults] = self._loop.create_future()

        def done(results: SendResults) -> None:
            if not future.done():
                future.set_result(results)

        self.post(call, messages, done)
        results = await future
        return [results[index] for index in range(len(results))]

    def withdraw(self, call: Call, *, is_taken: bool) -> None:
        self.withdrawals.withdraw(call, is_taken=is_taken)

    def may_store_late(self, call: Call) -> bool:
        lane = self._lanes.find(call)
        has_come = any([one[0] is call and one[1][0].once_key for one in self._incoming])
        return has_come or (lane is not None and lane.may_store_late)

    def forget(self, call: Call) -> None:
        has_come = any([posted[0] is call for posted in self._incoming])
        if self._lanes.end(call, is_waiting=has_come):
            self._forget(call)

    def _forget(self, call: Call) -> None:
        self._decisions.forget(call)
        self.decider.forget(call)

    @property
    def loss_count(self) -> int:
        return self._onces.loss_count

    def release_once(
        self, call: Call, key: bytes, done: Callable[[bool], None], *, since: int
    ) -> None:
        self._onces.release(key, done, since=since)

    def _flush(self) -> None:
        """All posts of this tick: to their stores, in one frame each."""
        self._is_flush_due = False
        self._turn += 1
        incoming, self._incoming = self._incoming, []
        now_ms = clock.wall_ms()
        self.decider.see(now_ms)
        stamp = self.decider.stamp
        for call, messages, done in incoming:
            batch = self._admit(call, messages, done, now_ms)
            lane = batch.lane
            assert lane is not None
            if batch.is_resend:  # all of a tick in one question to each store
                self._resends.locate(call, batch.messages, partial(self._located, batch))
            if lane.parked or not self._dispatch(batch, stamp, now_ms):
                lane.parked.append(batch)
                self.waits.parked(batch)
        self._flush_links()
        self._flush_now()
        self._pressure.look()

    def _flush_links(self) -> None:
        for cluster in self._clusters.values():
            for link in cluster.links.values():
                link.flush()

    def _admit(
        self,
        call: Call,
        messages: Sequence[Message],
        done: Callable[[SendResults], None],
        now_ms: int,
    ) -> Batch:
        self._sequence += 1
        count = len(messages)
        self.message_count += count
        is_plain = are_plain(messages)
        if not is_plain:
            messages = self._late_heads.of(messages, now_ms)
        ids: Sequence[bytes]
        if is_plain and count <= IDS_AT_ONCE:
            is_rows = type(messages) is MessageRun and messages.rows is not None
            take_some = self._ids.take_run if is_rows else self._ids.take_many
            ids = take_some(now_ms, count)
        else:
            take_id = self._ids.take
            ids = [message.message_id.encode() or take_id(now_ms) for message in messages]
        batch = Batch(
            call,
            messages,
            ids,
            done,
            sequence=self._sequence,
            size_bytes=body_bytes(messages),
            is_plain=is_plain,
        )
        if not is_plain:
            batch.is_resend = any([message.is_resend for message in messages])
        lane = self._lanes.of(call)
        lane.batches.append(batch)
        batch.lane, batch.is_withdrawn = lane, lane.is_withdrawn or self._lanes.is_out
        return batch

    def _dispatch(self, batch: Batch, stamp: int, now_ms: int) -> bool:
        """Send a batch on, from where it stopped; False: it waits and will be called again."""
        if batch.is_resend:
            return False
        messages = batch.messages
        if batch.is_withdrawn and messages[0].once_key:
            # it may have been sent, stored and released elsewhere
            batch.refuse_rest(Code.HA_NOT_AVAILABLE, WITHDRAWN)
        run_head = messages.head if type(messages) is MessageRun else None
        total = len(batch.ids)
        while batch.next_index < total:
            start = batch.next_index
            if run_head is not None:
                head, stop = run_head, total
            else:
                head, stop = messages[start].head, start + 1
                if not self.decider.policy.has_residuals:
                    while stop < total and messages[stop].head is head:
                        stop += 1
            try:
                decision = self._decision(batch, start, head, stamp, now_ms)
            except RouteUnknown as unknown:
                self.learner.wait(unknown, batch)
                return False
            except Exception:
                batch.next_index = stop
                batch.remaining += stop - start
                self._fault(batch, start, stop)
                continue
            is_in_doubt = self.waits.is_any_away or decision.refusal is not None
            if is_in_doubt and self.waits.takes(batch, head, decision):
                return False
            end = stop
            if decision.buckets:
                stop, end, waits = self._admission.admit(batch, decision.buckets, start, stop)
                if waits:
                    return False
            batch.next_index = stop
            if end > start:
                self._submit(batch, start, end, decision)
        batch.settle(1)
        return True

    def _decision(self, batch: Batch, index: int, head: Head, stamp: int, now_ms: int) -> Decision:
        """The decision about a message of *head*. Raises RouteUnknown."""
        decision = self._known(batch, index, head, stamp, now_ms)
        if self.waits.is_any_away and self.waits.moves(batch, head, decision):
            self._decisions.forget(batch.call)
            decision = self._known(batch, index, head, stamp, now_ms)
        return decision

    def _known(self, batch: Batch, index: int, head: Head, stamp: int, now_ms: int) -> Decision:
        call = batch.call
        decision = self._decisions.find(call, head)
        if decision is not None and decision.stamp == stamp and not decision.is_over(now_ms):
            return decision
        decide = partial(self.decider.decide, call, head, stamp=stamp, now_ms=now_ms)
        if self.decider.policy.has_residuals:
            return decide(properties=batch.messages[index].properties)
        decision = decide()
        self._decisions.keep(call, head, decision)
        return decision

    def _submit(self, batch: Batch, start: int, stop: int, decision: Decision) -> None:
        """Hand messages of one head to the links of their copies."""
        count = stop - start
        batch.remaining += count
        if decision.refusal is not None:
            batch.fail(start, stop, decision.refusal.code, decision.refusal.hint)
            return
        if decision.is_unwanted:
            batch.settle(count)
            return
        if batch.size_bytes > BODY_BYTES_MAX and self._split_large(batch, start, stop, decision):
            return
        try:
            copies = decision.copies(self._turn)
        except Refused as error:
            batch.fail(start, stop, error.code, error.hint)
            return
        except Exception:
            self._fault(batch, start, stop)
            return
        batch.remaining += count * (len(copies) - 1)
        for copy in copies:
            copy.link.submit(Run(batch, start, stop, copy))
        if decision.mirrors:
            self.mirrors.copy(batch, start, stop, decision)

    @staticmethod
    def _fault(batch: Batch, start: int, stop: int) -> None:
        """What failed of ours costs these messages; those of others in the same tick go on."""
        logger.exception("a publish of %s failed", batch.call.client_id)
        batch.fail(start, stop, Code.INTERNAL_ERROR, "internal error, see the log")

    def _split_large(self, batch: Batch, start: int, stop: int, decision: Decision) -> bool:
        """Refuse bodies over the limit alone; False: there are none among these."""
        large = [i for i in range(start, stop) if len(batch.messages[i].body) > BODY_BYTES_MAX]
        if not large:
            return False
        size_bytes, batch.size_bytes = batch.size_bytes, 0
        batch.remaining -= stop - start
        for index in large:
            batch.remaining += 1
            batch.fail(
                index,
                index + 1,
                Code.MESSAGE_BODY_TOO_LARGE,
                f"at most {BODY_BYTES_MAX} bytes",
            )
        edges = [start - 1, *large, stop]
        for before, after in pairwise(edges):
            if after - before > 1:
                self._submit(batch, before + 1, after, decision)
        batch.size_bytes = size_bytes
        return True

    # ── resends ─────────────────────────────────────────────────────────────────────────

    def _located(self, batch: Batch, found: Sequence[Message] | Refused) -> None:
        """Send a batch to where its first attempt is, if some store has it; then go on."""
        if isinstance(found, Refused) and self.waits.takes_search(batch):
            return
        batch.is_resend = False
        if isinstance(found, Refused):
            batch.refuse_rest(found.code, found.hint)
        else:
            batch.messages = found
            self._settle_moved(batch)
        self._resume_one(batch)

    def _settle_moved(self, batch: Batch) -> None:
        """A message whose store has it is stored, though its topic has moved elsewhere."""
        head = batch.messages[0].head
        if len(batch.ids) > 1 or not head.broker:
            return
        with contextlib.suppress(RouteUnknown):
            decision = self._decision(batch, 0, head, self.decider.stamp, clock.wall_ms())
            refusal = decision.refusal
            if refusal is not None and refusal.code == Code.TOPIC_NOT_FOUND:
                batch.next_index = 1

    # ── what waited ─────────────────────────────────────────────────────────────────────

    def _resume_all(self, batches: list[Batch]) -> None:
        for batch in batches:
            self._go_on(batch)
        self._flush_links()

    def _resume_one(self, batch: Batch) -> None:
        self._resume_all([batch])

    def _waited(self, batch: Batch) -> None:
        """It has waited for a store, which is back, or its time is over."""
        if batch.is_resend:
            self._resends.locate(batch.call, batch.messages, partial(self._located, batch))
        else:
            self._resume_one(batch)

    def _go_on(self, batch: Batch) -> None:
        """Go on with a parked batch and those of its call behind it."""
        lane = batch.lane
        assert lane is not None
        now_ms = clock.wall_ms()
        while lane.parked and self._dispatch(lane.parked[0], self.decider.stamp, now_ms):
            lane.parked.popleft()

    # ── routing again ───────────────────────────────────────────────────────────────────

    def tables_changed(self) -> None:
        """The matching table changed: what is in no written frame is routed again, now."""
        runs: list[Run] = []
        for cluster in self._clusters.values():
            for link in cluster.links.values():
                runs += link.take_pending()
        self.reroute(runs)

    def reroute(self, runs: list[Run]) -> None:
        """Decide again about messages that reached no store, in their order of arrival."""
        if not runs:
            return
        runs.sort(key=lambda run: (run.batch.sequence, run.start))
        stamp, now_ms = self.decider.stamp, clock.wall_ms()
        for run in runs:
            batch = run.batch
            if batch.is_withdrawn and batch.messages[run.start].once_key:
                run.fail(Code.HA_NOT_AVAILABLE, WITHDRAWN)
                continue
            if not run.copy.is_only:  # its other copies may be stored: the same store, or none
                if run.copy.link.state is not LinkState.DOWN:
                    run.copy.link.submit(run)
                elif not self.waits.takes_run(run):
                    run.fail(Code.HA_NOT_AVAILABLE, f"store {run.copy.link.broker} is away")
                continue
            batch.remaining -= run.count  # counted again below
            head = batch.messages[run.start].head
            try:
                decision = self._decision(batch, run.start, head, stamp, now_ms)
            except RouteUnknown as unknown:
                batch.remaining += run.count
                run.fail(Code.HA_NOT_AVAILABLE, f"the route of {unknown.topic} is unknown")
                continue
            if self.waits.takes_run(run, decision):
                batch.remaining += run.count
                continue
            self._submit(batch, run.start, run.stop, decision)
        self._flush_links()

    def link_changed(self, link: StoreLink) -> None:
        """A store went away or came back: what waits for it may go elsewhere, or is refused."""
        self.waits.link_changed(link)
        if link.state is LinkState.LOST:
            self.reroute(link.take_pending())
        elif link.state is LinkState.DOWN:
            self.reroute(link.take_pending(everything=True))
        self._onces.link_changed(link)
        self.link_cleared()

    def routes_changed(self, cluster: ClusterClient) -> None:
        """Decisions see the new versions."""
        self.waits.look()

    # ── back-pressure ───────────────────────────────────────────────────────────────────

    def is_congested(self, call: Call) -> bool:
        return self._pressure.is_congested(call)

    def when_clear(self, resume: Callable[[], None], call: Call | None = None) -> None:
        self._pressure.when_clear(resume, call)

    def link_cleared(self) -> None:
        self._pressure.cleared()

    # ── pop, ack ────────────────────────────────────────────────────────────────────────

    async def pop(self, call: Call, request: PopRequest) -> list[Delivery]:
        return await self.receipts.pop(call, request)

    async def adopt(
        self, call: Call, spec: GroupSpec, taker: str, invisible_ms: int
    ) -> list[Delivery]:
        return await self.receipts.adopt(call, spec, taker, invisible_ms)

    def mark(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> None:
        self.receipts.mark(marks)

    async def ack(self, call: Call, handles: Sequence[ReceiptHandle]) -> list[AckResult]:
        return await self.receipts.ack(handles)

    async def change_invisible_time(
        self, call: Call, changes: Sequence[InvisibleTimeChange]
    ) -> list[AckResult]:
        return await self.receipts.change(changes)
