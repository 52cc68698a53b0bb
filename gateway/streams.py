"""
One logical stream: its parts at the stores, their credit, and what the client holds.

Credit is absolute on both sides. Towards the adapter: at most ``total`` deliveries since the
stream was opened. Towards each store: a limit since its part was opened. What was handed over
plus all parts' open windows never exceeds ``total``.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from gateway.clusters.link import LinkState, StoreLink
from protocols.canonical import Delivery, ReceiptHandle
from protocols.delivery_runs import DeliveryRun
from protocols.errors import Code, GatewayError, Refused
from protocols.groups import GroupSpec, Start
from protocols.pipeline import DeliverySink
from protocols.remoting.settling import AckAction, AckItem, MarkItem
from protocols.tasks import Signal, Tasks, outcomes
from protocols.tuples import new_tuple

logger = logging.getLogger("tidegate.deliveries")

RESUME_S_MAX: Final = 5.0
"""How long the in-flight deliveries of a resumed session may take to arrive."""

BALANCE_S_MIN: Final = 0.02
BALANCE_S_MAX: Final = 1.0
"""How soon, and at most how seldom, credit moves from an idle store to one without any."""


class Part:
    """One store's end of a logical stream."""

    __slots__ = (
        "count",
        "given_at",
        "group",
        "holds",
        "is_again",
        "is_open",
        "limit",
        "link",
        "resuming_count",
        "store_epoch",
        "stream",
    )

    def __init__(self, link: StoreLink) -> None:
        self.link = link
        self.stream = link.new_stream()
        self.group = 0
        self.store_epoch = 0
        """In which it was opened last."""

        self.limit = 0
        """Deliveries the store may send since the part was opened."""

        self.count = 0
        """Deliveries it has sent since."""

        self.holds: dict[int, tuple[int, int]] = {}
        """Entry position → (grant, store epoch of the grant) of what the client has not acked;
        a reopened stream may be granted the same delivery anew."""

        self.given_at = 0
        """When it last got credit, in turns of the stream: who waited longest is next."""

        self.is_open = False
        self.is_again = False
        """What comes first was in flight: it may have packet ids of an earlier connection."""

        self.resuming_count = 0
        """In-flight deliveries of a resumed group that are still to come."""

    @property
    def window(self) -> int:
        """What the store may still send."""
        return max(0, self.limit - self.count) if self.is_open else 0


class LogicalStream:
    """Implements ``protocols.pipeline.DeliveryStream`` and, for the links, ``StreamPort``."""

    def __init__(
        self,
        spec: GroupSpec,
        sink: DeliverySink,
        tasks: Tasks,
        *,
        forget: Callable[["LogicalStream"], None],
    ) -> None:
        self.spec = spec
        self.total = 0
        """May have received so many since the stream was opened."""

        self.delivered = 0
        self._sink = sink
        self._tasks = tasks
        self._forget = forget
        self._unmarked: Callable[[Sequence[ReceiptHandle]], None] | None = None
        self._parts: dict[tuple[str, str], Part] = {}
        self._is_over = False
        self._is_retired = False
        self._resumed = Signal()

        self._are_parts_open = False
        self._balance_timer: asyncio.TimerHandle | None = None
        self._balance_s = BALANCE_S_MIN
        self._turn = 0
        self._opening: set[tuple[str, str]] = set()

    # ── parts ───────────────────────────────────────────────────────────────────────────

    async def open_part(self, link: StoreLink, *, credit: int) -> None:
        """Open the group and the stream at one store. Raises Refused."""
        key = (link.cluster, link.broker)
        self._opening.add(key)
        try:
            part = Part(link)
            part.group = await link.open_group(self.spec)
            await self._open(part, credit, is_resuming=self.spec.is_inherited)
        finally:
            self._opening.discard(key)

    async def reopen_part(self, link: StoreLink) -> None:
        """
        The store is up again, or for the first time since the stream was opened.

        A group it does not know begins at its epoch start: nothing stored there since it came
        up is missed. A volatile one that ended with our presence, in the same epoch, begins at
        the end: what it would get twice is all it ever got.
        """
        key = (link.cluster, link.broker)
        part = self._parts.get(key)
        if self._is_over or key in self._opening or (part is not None and part.is_open):
            return
        self._opening.add(key)
        try:
            start = Start.EPOCH
            if part is None:
                part = Part(link)
            elif part.link is not link:  # it was given up for good, and is there after all
                part.link, part.stream = link, link.new_stream()
            elif self.spec.is_volatile and part.store_epoch == link.store_epoch:
                start = Start.END
            part.group = await link.open_group(self.spec, start=start.value)
            part.is_again = self.spec.is_inherited
            await self._open(part, 0, is_resuming=False)
        finally:
            self._opening.discard(key)
        self.deal()

    async def _open(self, part: Part, credit: int, *, is_resuming: bool) -> None:
        link = part.link
        self._parts[link.cluster, link.broker] = part
        part.limit, part.count, part.resuming_count = credit, 0, 0
        part.store_epoch = link.store_epoch
        part.is_open = True  # deliveries may come before the answer
        try:
            in_flight = await link.open_stream(
                part.stream,
                part.group,
                self.spec,
                self,
                credit=credit,
                holds=[(position, grant) for position, (grant, _) in part.holds.items()],
                is_resuming=is_resuming,
            )
        except GatewayError:
            part.is_open = False
            raise
        if self._is_over:
            await link.close_stream(part.stream)
            return
        if self._is_retired:
            await link.retire_stream(part.stream)
        if is_resuming:
            part.resuming_count = in_flight
            self._check_resumed()
        elif part.count >= in_flight:
            part.is_again = False

    async def resumed(self) -> None:
        """
        Wait until what was in flight has been handed to the sink; all parts are opened by now.

        Raises Refused.
        """
        self._are_parts_open = True
        self._check_resumed()
        try:
            async with asyncio.timeout(RESUME_S_MAX):
                await self._resumed.wait()
        except TimeoutError:
            raise Refused(
                Code.PROXY_TIMEOUT, self.spec.name, "what was in flight did not arrive in time"
            ) from None

    def _check_resumed(self) -> None:
        if self._are_parts_open and all(
            [part.count >= part.resuming_count for part in self._parts.values()]
        ):
            self._resumed.set()

    # ── StreamPort ──────────────────────────────────────────────────────────────────────

    def arrived(self, link: StoreLink, deliveries: Sequence[Delivery]) -> None:
        part = self._parts.get((link.cluster, link.broker))
        if part is None or self._is_over or not part.is_open:
            return  # where it is not open it comes again with the next stream
        part.count += len(deliveries)
        if not self.spec.is_auto_ack:
            deliveries = self._hold(part, deliveries)
        self.delivered += len(deliveries)
        if part.is_again:
            deliveries = self._resend(part, deliveries)
        if deliveries:
            self._sink.deliver(deliveries)
        if not self._resumed.is_set:
            self._check_resumed()
        self._balance_s = BALANCE_S_MIN
        if part.window == 0:
            self._balance_soon()

    def _resend(self, part: Part, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """
        Hand over by themselves, in order, those that an earlier connection has sent: their
        store was away when the session was resumed. What is left to be delivered.
        """
        if all([not delivery.packet_id for delivery in deliveries]):
            part.is_again = part.limit == 0  # credit comes with the answer, what is new behind it
            return deliveries
        for _, stretch in groupby(deliveries, _is_marked):
            self._sink.deliver([*stretch])
        return ()

    def _hold(self, part: Part, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Note what the client now holds; what it held before a reconnect is no news to it."""
        holds = part.holds
        if type(deliveries) is DeliveryRun:
            run = deliveries
            positions = run.positions
            if holds.keys().isdisjoint(positions):
                holds.update(dict.fromkeys(positions, (run.grant, run.shelf.store_epoch)))
                return run
        news: list[Delivery] = []
        unmarked: list[ReceiptHandle] = []
        for delivery in deliveries:
            handle = delivery.handle
            if handle.position not in holds:
                news.append(delivery)
            elif not delivery.packet_id:
                unmarked.append(handle)
            holds[handle.position] = (handle.grant, handle.store_epoch)
        if unmarked and self._unmarked is not None:
            self._unmarked(unmarked)
        return news

    def ended(self, link: StoreLink, code: Code, hint: str) -> None:
        if code == Code.HA_NOT_AVAILABLE:
            self.lost(link)  # our presence ended there: opened again when the link is greeted
            return
        if not self._is_over:
            self._tasks.start(self.close(), name=f"end {self.spec.name}")
            self._is_over = True
            self._sink.ended(code, hint)

    def lost(self, link: StoreLink) -> None:
        part = self._parts.get((link.cluster, link.broker))
        if part is not None:
            part.is_open = False
            part.resuming_count = 0
            self._check_resumed()
            self.deal()

    # ── credit ──────────────────────────────────────────────────────────────────────────

    def allow(self, total: int) -> None:
        if total > self.total and not self._is_retired:
            self.total = total
            self.deal()

    def deal(self) -> None:
        """Give what is not given yet to the parts with the smallest windows."""
        parts = [part for part in self._parts.values() if part.is_open]
        if not parts or self._is_over:
            return
        unused = self.total - self.delivered - sum([part.window for part in parts])
        if unused <= 0:  # a store that came back finds all of it given to the others
            if any([part.window == 0 for part in parts]):
                self._balance_soon()
            return
        if len(parts) == 1:
            self._give(parts[0], unused)
            return
        parts.sort(key=lambda part: (part.window, part.given_at))
        level = (unused + sum([part.window for part in parts])) // len(parts)
        for part in parts:
            share = min(unused, max(0, level - part.window))
            if share:
                self._give(part, share)
                unused -= share
        for part in parts[:unused]:  # less than one each is left
            self._give(part, 1)
        if any([part.window == 0 for part in parts]):
            self._balance_soon()

    def _give(self, part: Part, count: int) -> None:
        self._turn += 1
        part.given_at = self._turn
        part.limit = max(part.limit, part.count) + count
        part.link.set_credit(part.stream, part.limit)

    def _balance_soon(self) -> None:
        if self._balance_timer is None and len(self._parts) > 1 and not self._is_over:
            loop = asyncio.get_running_loop()
            self._balance_timer = loop.call_later(self._balance_s, self._balance)

    def _balance(self) -> None:
        """A store without credit may have messages: take half of what an idle one has."""
        self._balance_timer = None
        parts = [part for part in self._parts.values() if part.is_open]
        if self._is_over or not any(part.window == 0 for part in parts):
            return
        donor = max(parts, key=lambda part: part.window)
        if donor.window == 0:
            return  # all is used; the next ``allow`` deals
        if donor.window == 1:  # a single credit goes round, ever more slowly
            self._balance_s = min(self._balance_s * 2, BALANCE_S_MAX)
        self._tasks.start(self._reclaim(donor), name=f"balance {self.spec.name}")

    async def _reclaim(self, donor: Part) -> None:
        limit = donor.count + donor.window // 2
        poor = [part for part in self._parts.values() if part.is_open and part.window == 0]
        try:
            await donor.link.reclaim_credit(donor.stream, limit)
        except GatewayError as error:
            logger.info("could not take credit back from %s: %s", donor.link.broker, error)
            return
        if donor.is_open:
            donor.limit = max(limit, donor.count)
        free = self.total - self.delivered - sum([part.window for part in self._parts.values()])
        poor.sort(key=lambda part: part.given_at)
        for part in poor:
            if free > 0 and part.is_open:
                share = max(1, free // len(poor))
                self._give(part, share)
                free -= share
        self._balance_soon()

    def when_unmarked(self, listener: Callable[[Sequence[ReceiptHandle]], None]) -> None:
        self._unmarked = listener

    # ── receipts ────────────────────────────────────────────────────────────────────────

    def ack(self, handles: Sequence[ReceiptHandle]) -> None:
        self._settle(handles, AckAction.ACK)

    def reject(self, handles: Sequence[ReceiptHandle]) -> None:
        self._settle(handles, AckAction.REJECT)

    def release(self, handles: Sequence[ReceiptHandle], *, is_sent: bool = True) -> None:
        self._settle(handles, AckAction.CHANGE if is_sent else AckAction.RELEASE)

    def _settle(self, handles: Sequence[ReceiptHandle], action: AckAction) -> None:
        items: dict[tuple[Part, int], list[AckItem]] = {}
        for handle in handles:
            part = self._parts.get((handle.cluster, handle.broker))
            if part is not None:
                grant, epoch = part.holds.pop(handle.position, (handle.grant, handle.store_epoch))
                item: AckItem = new_tuple(
                    AckItem, (handle.group, handle.position, grant, action, 0)
                )
                items.setdefault((part, epoch), []).append(item)
        for (part, epoch), found in items.items():
            part.link.ack(epoch, found, None)

    def mark(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> None:
        for (part, epoch), items in self._marks(marks).items():
            part.link.mark(epoch, items)

    async def mark_durably(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> bool:
        return bool(await self._write_marks(marks))

    async def _write_marks(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> bool | None:
        """Whether they are on disk; None: a store did not answer."""
        found = self._marks(marks)
        try:
            results = await asyncio.gather(
                *(part.link.mark_durably(epoch, items) for (part, epoch), items in found.items())
            )
        except GatewayError as error:
            logger.info("group %s: marks are not on disk: %s", self.spec.name, error)
            return None
        return all(results)

    async def mark_or_forget(self, handle: ReceiptHandle, packet_id: int, stage: int) -> bool:
        part = self._parts.get((handle.cluster, handle.broker))
        while True:
            grant = part.holds.get(handle.position) if part is not None else None
            is_marked = await self._write_marks([(handle, packet_id, stage)])
            if is_marked:
                return True
            if part is None or part.holds.get(handle.position) == grant:
                break  # else it was granted anew meanwhile, and counted as known
        if part is not None:
            part.holds.pop(handle.position, None)
            if is_marked is None and part.is_open:
                # Only slow: nothing but a new stream makes it deliver again, and in order.
                self.lost(part.link)
                part.link.renew("a mark was not answered in time")
        return False

    def _marks(
        self, marks: Sequence[tuple[ReceiptHandle, int, int]]
    ) -> dict[tuple[Part, int], list[MarkItem]]:
        items: dict[tuple[Part, int], list[MarkItem]] = {}
        for handle, packet_id, stage in marks:
            part = self._parts.get((handle.cluster, handle.broker))
            if part is not None:
                grant, epoch = part.holds.get(handle.position, (handle.grant, handle.store_epoch))
                fields = (handle.group, handle.position, grant, packet_id, stage)
                item: MarkItem = new_tuple(MarkItem, fields)
                items.setdefault((part, epoch), []).append(item)
        return items

    # ── changes ─────────────────────────────────────────────────────────────────────────

    async def change_reads(self, spec: GroupSpec) -> None:
        self.spec = spec
        parts = [part for part in self._parts.values() if part.is_open]
        results = await outcomes([part.link.open_group(spec) for part in parts])
        for part, result in zip(parts, results, strict=True):
            if isinstance(result, int):
                part.group = result
            elif part.link.state is LinkState.UP:
                raise result

    async def retire(self) -> None:
        self._is_retired = True
        self.total = self.delivered
        parts = [part for part in self._parts.values() if part.is_open]
        await asyncio.gather(
            *(part.link.retire_stream(part.stream) for part in parts), return_exceptions=True
        )

    async def close(self, *, drop_group: bool = False) -> None:
        self._is_over = True
        self._forget(self)
        if self._balance_timer is not None:
            self._balance_timer.cancel()
            self._balance_timer = None
        await asyncio.gather(
            *(self._close_part(part, drop_group=drop_group) for part in self._parts.values())
        )

    async def _close_part(self, part: Part, *, drop_group: bool) -> None:
        try:
            if part.is_open:
                part.is_open = False
                await part.link.close_stream(part.stream)
            if drop_group and part.link.state is LinkState.UP:
                await part.link.drop_group(self.spec.name, self.spec.owner_epoch)
        except GatewayError as error:
            logger.info("closing %s at %s: %s", self.spec.name, part.link.broker, error)


def _is_marked(delivery: Delivery) -> bool:
    return delivery.packet_id > 0
