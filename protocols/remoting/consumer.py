"""
One client of one consumer group: its pulls become pops, its commits acks.

Push consumers in clustering mode share a group at the stores (``rmq/<group>/<topic>``) with
the members that speak gRPC. Broadcasting, pull and orderly consumers (who lock their queues)
read by offset instead, exactly.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from protocols import clock
from protocols.canonical import Call, Delivery, ReceiptHandle
from protocols.errors import Code, GatewayError, Refused
from protocols.groups import GroupSpec, InvisibleTimeChange, PopRequest, Start
from protocols.pipeline import Services, TopicInfo
from protocols.remoting.bodies import ConsumerData, SubscriptionData
from protocols.remoting.handles import retry_topic
from protocols.remoting.headers import PullHeader
from protocols.remoting.holdings import Held, Holdings, Queue
from protocols.remoting.mapping import (
    RETRY_BROKER,
    Wants,
    group_spec,
    is_retry_topic,
    parse_filter,
    qualified,
    start_of,
)
from protocols.remoting.settings import RemotingSettings
from protocols.rocketmq_groups import as_configured
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.remoting")

RETURNED_MAX: Final = 1024
"""Deliveries that wait for the retry topic; beyond it no more are popped."""

POP_COUNT_MAX: Final = 256

ACK_AGAIN_S: Final = 1.0
"""After an ack, or a return, that failed; a delivery that is hidden no more comes again."""

SHARING_S: Final = 1.0
"""
For members to share the queues out again after one came or went. A client drops what arrives for
a queue that it has given up, without a word: nothing is popped for anybody meanwhile.
"""

SEEN_S: Final = 60.0
"""
A client that has a queue pulls it, or commits its offset (Java: each 5 s, changed or not). What it
holds of a queue that it has not named for so long goes to others.
"""


def check_consume(services: Services, call: Call, topic: str, group: str) -> None:
    """Raises Refused unless the ACL lets *group* read *topic*."""
    if not services.permission.is_allowed(call, "consume", subject=topic, topic=topic, group=group):
        raise Refused(Code.FORBIDDEN, topic, "the ACL does not allow this consumer")


class Consumer:
    """State of one (connection, group)."""

    def __init__(
        self,
        group: str,
        client_id: str,
        data: ConsumerData,
        call: Call,
        services: Services,
        settings: RemotingSettings,
        tasks: Tasks,
    ) -> None:
        self.group = group
        self.client_id = client_id
        self.data = data
        self.holdings = Holdings()
        self.locked: set[Queue] = set()
        self.member_version = 0
        """Of the record that makes the client a member; 0: there is none yet."""

        self.is_closed = False
        self._call = call
        self._services = services
        self._settings = settings
        self._tasks = tasks
        self._specs: dict[str, GroupSpec] = {}
        self._came_back = asyncio.Event()
        self._sharing_until = 0.0
        self._members_changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seen: dict[Queue, float] = {}
        self._begun: dict[Queue, int] = {}
        """How often the client began to read a queue."""

        self._settling = asyncio.Lock()
        self._to_ack: list[Held] = []
        self._is_acking = False
        self._to_give_back: list[ReceiptHandle] = []
        self._is_giving_back = False

    # ── what it subscribes to ───────────────────────────────────────────────────────────

    @property
    def is_shared(self) -> bool:
        """Push consumers in clustering mode share by pop."""
        return (
            self.data.consume_type == "CONSUME_PASSIVELY"
            and self.data.message_model == "CLUSTERING"
        )

    def subscription(self, topic: str) -> SubscriptionData | None:
        for item in self.data.subscription_data_set:
            if item.topic == topic:
                return item
        return None

    def reads_by_offset(self, queue: Queue) -> bool:
        return not self.is_shared or queue in self.locked

    async def spec(self, topic: str) -> GroupSpec:
        """Raises Refused: no such topic, not allowed."""
        spec = self._specs.get(topic)
        if spec is not None:
            return spec
        call = self._call
        check_consume(self._services, call, topic, self.group)
        info = await self._services.topics.find(qualified(call.tenant, topic))
        if info is None:
            raise Refused(Code.TOPIC_NOT_FOUND, topic, "no such topic")
        start = start_of(self.data, self._settings.new_groups)
        if (
            start is Start.END
            and self._settings.new_groups == "client"
            and await self._is_new(info)
        ):
            start = Start.EARLIEST
        spec = group_spec(
            call.tenant, self.group, info, attempts_max=self._settings.attempts_max, start=start
        )
        policy = await self._services.topics.group(qualified(call.tenant, self.group), info.name)
        spec = self._specs[topic] = as_configured(spec, info, policy)
        return spec

    async def _is_new(self, info: TopicInfo) -> bool:
        """Nothing of the topic has gone yet: its last offset is its first, as with Apache's."""
        for broker, queue_id, _ in info.queues:
            if await self._services.topics.offset(info.name, broker, queue_id, at_ms=0) > 0:
                return False
        return True

    async def open(self) -> None:
        """Fix where the group starts on every topic that is there. Raises Refused."""
        if not self.is_shared:
            return
        for item in self.data.subscription_data_set:
            if is_retry_topic(item.topic):
                continue
            try:
                spec = await self.spec(item.topic)
            except Refused as error:
                if error.code == Code.TOPIC_NOT_FOUND:
                    continue  # it comes into being later; opened by the first pull then
                raise
            await self._services.streams.open_group(self._call, spec)

    async def adopt(self) -> None:
        """
        What the client holds since an earlier connection, at this gateway or another: it may be
        done with some of that, and say so here. Raises Refused.
        """
        for topic, spec in list(self._specs.items()) if self.is_shared else ():
            deliveries = await self._services.pipeline.adopt(
                self._call, spec, self.client_id, self._settings.invisible_ms
            )
            found: dict[Queue, list[Delivery]] = {}
            for delivery in deliveries:
                queue = Queue(topic, delivery.handle.broker, delivery.message.queue_id)
                if delivery.stage:
                    queue = Queue(retry_topic(self.group), RETRY_BROKER, delivery.stage - 1)
                found.setdefault(queue, []).append(delivery)
            for queue, items in found.items():
                self._seen[queue] = clock.monotonic()
                if is_retry_topic(queue.topic):
                    self.holdings.adopt_shown(queue, items)
                else:
                    self.holdings.adopt(queue, items)
        if self.holdings.returned_count:
            self._came_back.set()

    # ── pull ────────────────────────────────────────────────────────────────────────────

    async def pop(self, queue: Queue, header: PullHeader, wait_ms: int) -> list[bytes]:
        """
        Records for a pull of *queue*; may be none after *wait_ms*, or when all that came goes
        to the retry topic. Raises Refused.
        """
        holdings = self.holdings
        if holdings.count >= self._settings.held_max or holdings.returned_count >= RETURNED_MAX:
            await asyncio.sleep(min(wait_ms, 1000) / 1000)  # its own pace: commits make room
            return []
        wants = self.wants(queue.topic, header)
        self._seen[queue] = clock.monotonic()
        count = max(1, min(header.count_max, POP_COUNT_MAX))
        if lost := holdings.take_lost(queue, header.queue_offset):
            await self.give_back(lost)
        if unseen := holdings.go_on_from(queue, header.queue_offset, count):
            return unseen
        begun = self._begun.get(queue, 0)
        deliveries = await self._pop(
            PopRequest(
                group=await self.spec(queue.topic),
                count=count,
                invisible_ms=self._settings.invisible_ms,
                wait_ms=wait_ms,
                queue_id=queue.queue_id,
                broker=queue.broker,
                tags=wants.tags,
                sql=wants.sql,
                taker=self.client_id,
            )
        )
        if self.is_closed or self._begun.get(queue, 0) != begun:
            await self.give_back([delivery.handle for delivery in deliveries])
            return []
        records = holdings.take_in(queue, deliveries)
        if len(records) < len(deliveries):
            self._came_back.set()
        return records

    async def _pop(self, request: PopRequest) -> list[Delivery]:
        """None if members come or go meanwhile: the queue may be another's by now."""
        if clock.monotonic() < self._sharing_until:
            await asyncio.sleep(SHARING_S)
        pop = asyncio.ensure_future(self._services.pipeline.pop(self._call, request))
        try:
            changed = self._members_changed
            await asyncio.wait((pop, changed), return_when=asyncio.FIRST_COMPLETED)
            if pop.done():
                return pop.result()
        finally:
            if not pop.done():
                pop.cancel()  # what it still brings is given back
        await asyncio.sleep(SHARING_S)
        return []

    def members_changed(self) -> None:
        """A member of the group came or went, here or elsewhere."""
        if self._seen:  # who has pulled nothing yet takes nothing from others
            self._sharing_until = clock.monotonic() + SHARING_S
            self._end_pops()

    def _end_pops(self) -> None:
        self._members_changed.set_result(None)
        self._members_changed = asyncio.get_running_loop().create_future()

    async def pop_returned(self, queue: Queue, header: PullHeader, wait_ms: int) -> list[bytes]:
        """Records for a pull of a retry queue: what came back to this client."""
        self._seen[queue] = clock.monotonic()
        self.holdings.go_on_returned(queue, header.queue_offset)
        if lost := self.holdings.take_lost(queue, header.queue_offset):
            await self.give_back(lost)
        if not self.holdings.returned_count and wait_ms:
            self._came_back.clear()
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._came_back.wait()
            except TimeoutError:
                return []
        records = self.holdings.take_returned(queue, header.queue_offset, header.count_max)
        self._services.pipeline.mark(self.holdings.take_marks())
        return records

    def wants(self, topic: str, header: PullHeader) -> Wants:
        """What a pull filters by: its header, or the subscription. Raises Refused."""
        known = self.subscription(topic)
        kind, expression = header.expression_type, header.subscription
        if known is not None and not expression:
            kind, expression = known.expression_type, known.sub_string
        return parse_filter(kind, expression)

    # ── ack, send back, renew ───────────────────────────────────────────────────────────

    def commit(self, queue: Queue, offset: int) -> None:
        """Everything held of *queue* below *offset* is done."""
        self._seen[queue] = clock.monotonic()
        self._to_ack += self.holdings.commit(queue, offset)
        self._start_acking()

    def _start_acking(self) -> None:
        if self._to_ack and not self._is_acking:
            self._is_acking = True
            self._tasks.start(self._ack(), name=f"ack {self.group}")

    async def _ack(self) -> None:
        """Until all is acknowledged or the client has gone: the client commits only once."""
        try:
            while self._to_ack:
                if await self._ack_once():
                    continue
                if self.is_closed:
                    return
                await asyncio.sleep(ACK_AGAIN_S)
        finally:
            self._is_acking = False

    async def _ack_once(self) -> bool:
        """What a store was not there for stays for the next time; False: there was such."""
        async with self._settling:  # a renewal may be changing the same handles
            held, self._to_ack = self._to_ack, []
            if not held:
                return True
            try:
                results = await self._services.pipeline.ack(
                    self._call, [item.handle for item in held]
                )
                again = [
                    item
                    for item, result in zip(held, results, strict=True)
                    if result.code == Code.HA_NOT_AVAILABLE
                ]
            except GatewayError as error:
                logger.info("ack of %s: %s", self.group, error)
                again = held
            self._to_ack = [*again, *self._to_ack][-self._settings.held_max :]
            return not again

    async def send_back(self, held: Held, delay_ms: int) -> None:
        """Not consumed: visible to the group again after *delay_ms*. Raises Refused."""
        held.is_settled = True
        async with self._settling:
            (result,) = await self._services.pipeline.change_invisible_time(
                self._call, [InvisibleTimeChange(held.handle, delay_ms)]
            )
        if result.code not in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
            held.is_settled = False
            raise Refused(result.code, self.group, result.hint)

    async def settle(self, held: Held) -> None:
        """Done for good, apart from any commit."""
        held.is_settled = True
        self._to_ack.append(held)
        if not await self._ack_once():
            self._start_acking()

    async def renew(self) -> None:
        """Keep what the client holds hidden from others, but for queues that it has given up."""
        await self._give_up_unseen()
        async with self._settling:
            held = self.holdings.held()
            waiting = self.holdings.returned()
            handles = [item.handle for item in held] + [item.handle for item in waiting]
            if not handles:
                return
            results = await self._services.pipeline.change_invisible_time(
                self._call,
                [
                    InvisibleTimeChange(handle, self._settings.invisible_ms, is_renewal=True)
                    for handle in handles
                ],
            )
            for item, result in zip(held, results, strict=False):
                if result.code == Code.OK and result.handle is not None:
                    item.handle = result.handle
                elif result.code == Code.INVALID_RECEIPT_HANDLE:
                    item.is_settled = True
            for delivery, result in zip(waiting, results[len(held) :], strict=False):
                if result.code == Code.OK and result.handle is not None:
                    self.holdings.renewed(delivery, result.handle)

    async def _give_up_unseen(self) -> None:
        before = clock.monotonic() - SEEN_S
        self._seen = {queue: at for queue, at in self._seen.items() if at >= before}
        async with self._settling:
            handles = [
                handle
                for queue in self.holdings.queues()
                if queue not in self._seen
                for handle in self.holdings.abandon(queue)
            ]
        await self.give_back(handles)

    async def begin(self, queue: Queue) -> int:
        """
        The offset from which the client is to read *queue*, which it has just got.

        A client asks only then. What it was given of the queue before it has dropped without a
        word, if it has not committed it: that comes again.
        """
        self._begun[queue] = self._begun.get(queue, 0) + 1  # its earlier pulls bring nothing more
        async with self._settling:
            handles = self.holdings.abandon(queue)
        await self.give_back(handles)
        return self.holdings.next_offset(queue)

    def leave(self) -> None:
        """The client pulls no more; its last commits may still be on their way."""
        self.is_closed = True
        self._came_back.set()
        self._end_pops()

    async def stop(self) -> None:
        """The client goes elsewhere: what it holds stays hidden until it says so there."""
        self.leave()
        await self._ack_once()
        self.holdings.drain()

    async def close(self) -> None:
        """The client has gone: all it holds goes back to its place."""
        self.leave()
        await self._ack_once()
        async with self._settling:
            handles = self.holdings.drain()
        await self.give_back(handles)

    async def give_back(self, handles: Sequence[ReceiptHandle]) -> None:
        """Back to their places; what a store is not there for later, while it is still hidden."""
        left = await self._give_back_once(handles)
        if not left:
            return
        self._to_give_back = [*self._to_give_back, *left][-self._settings.held_max :]
        if not self._is_giving_back:
            self._is_giving_back = True
            self._tasks.start(self._give_back_later(), name=f"give back {self.group}")

    async def _give_back_later(self) -> None:
        try:
            until = clock.monotonic() + self._settings.invisible_ms / 1000
            while self._to_give_back and clock.monotonic() < until:
                await asyncio.sleep(ACK_AGAIN_S)
                handles, self._to_give_back = self._to_give_back, []
                self._to_give_back += await self._give_back_once(handles)
        finally:
            self._is_giving_back = False

    async def _give_back_once(self, handles: Sequence[ReceiptHandle]) -> list[ReceiptHandle]:
        """Those that a store was not there for."""
        if not handles:
            return []
        try:
            results = await self._services.pipeline.change_invisible_time(
                self._call, [InvisibleTimeChange(handle, 0) for handle in handles]
            )
        except GatewayError as error:
            logger.info("giving back to %s: %s", self.group, error)
            return list(handles)
        return [
            handle
            for handle, result in zip(handles, results, strict=True)
            if result.code == Code.HA_NOT_AVAILABLE
        ]
