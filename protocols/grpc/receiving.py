"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from protocols import clock, dead_letters
from protocols.canonical import Delivery, ReceiptHandle
from protocols.errors import Code, Refused
from protocols.groups import AckResult, GroupSpec, InvisibleTimeChange, PopRequest, Read, Start
from protocols.grpc import telemetry, validation
from protocols.grpc.clients import Client
from protocols.grpc.config import GrpcConfig
from protocols.grpc.context import Rpc
from protocols.grpc.mapping import (
    OK,
    message_out,
    milliseconds,
    status,
    timestamp_of,
)
from protocols.grpc.peers import Peers, group_name, qualified
from protocols.grpc.renewals import INVISIBLE_MS, SCAN_S, Renewals
from protocols.grpc.v2 import service_pb2 as pb
from protocols.pipeline import GroupPolicy, Services, TopicInfo
from protocols.rocketmq_groups import as_configured
from protocols.tasks import LongPolls, Tasks

ANSWER_RESERVE_MS: Final = 500
"""Kept of the client's deadline for the way back: past it an empty list becomes an error."""

RENEW_BATCH_COUNT: Final = 512


class Receiving:
    """Pop and what follows it."""

    def __init__(self, config: GrpcConfig, services: Services, peers: Peers, tasks: Tasks) -> None:
        self._config = config
        self._services = services
        self._peers = peers
        self._tasks = tasks
        self._renewals = Renewals(config.renewals_max)
        self.polls = LongPolls()

    # ── receive ─────────────────────────────────────────────────────────────────────────

    async def receive(
        self, client: Client, rpc: Rpc, request: pb.ReceiveMessageRequest
    ) -> AsyncIterator[pb.ReceiveMessageResponse]:
        """
        Long-poll for a batch: status, messages, delivery time; then the stream ends.

        Messages that the client is not there to take any more return at once.
        """
        pop = await self._pop_request(client, rpc, request)
        deliveries = await self.polls.wait(self._services.pipeline.pop(client.call, pop))
        unsent = list(reversed(deliveries))
        try:
            if not deliveries:
                yield pb.ReceiveMessageResponse(
                    status=status(Code.MESSAGE_NOT_FOUND, "no new message")
                )
            else:
                yield pb.ReceiveMessageResponse(status=OK)
            while unsent:
                delivery = unsent[-1]
                message = message_out(delivery)
                if request.auto_renew:
                    text = message.system_properties.receipt_handle
                    now = clock.monotonic()
                    self._renewals.add(text, delivery.handle, client, now=now)
                yield pb.ReceiveMessageResponse(message=message)
                unsent.pop()
            yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp_of(clock.wall_ms()))
        finally:
            if unsent:
                self._tasks.start(self._put_back(client, unsent), name="return unsent")

    async def _pop_request(
        self, client: Client, rpc: Rpc, request: pb.ReceiveMessageRequest
    ) -> PopRequest:
        group, topic = request.group.name, request.message_queue.topic.name
        validation.check_group(group)
        validation.check_topic(topic)
        tags = validation.tags_of(request.filter_expression)
        sql = validation.sql_of(request.filter_expression)
        if request.auto_renew:
            invisible_ms = INVISIBLE_MS
        else:
            invisible_ms = validation.invisible_ms(milliseconds(request.invisible_duration))
        info = await self._peers.topic(client.call, topic)
        # All stores of all clusters that the routes name, not just the broker that the client
        # happened to choose: nothing waits for its turn at a store nobody polls.
        return PopRequest(
            group=await self.group_spec(client, group, info),
            count=min(max(request.batch_size, 1), telemetry.RECEIVE_BATCH_COUNT),
            invisible_ms=invisible_ms,
            wait_ms=self._wait_ms(rpc, request),
            tags=tags,
            sql=sql,
            attempt_id=request.attempt_id,
        )

    def _wait_ms(self, rpc: Rpc, request: pb.ReceiveMessageRequest) -> int:
        """As asked, at most 20 s, and answered before the client's own deadline."""
        if request.HasField("long_polling_timeout"):
            wait_ms = milliseconds(request.long_polling_timeout)
        else:
            wait_ms = telemetry.LONG_POLLING_MS
        wait_ms = min(max(wait_ms, 0), telemetry.LONG_POLLING_MS)
        if rpc.remaining_ms is None:
            return wait_ms
        room_ms = rpc.remaining_ms - ANSWER_RESERVE_MS
        if room_ms <= 0:
            hint = f"a deadline of {rpc.remaining_ms} ms leaves no time to poll"
            raise Refused(Code.ILLEGAL_POLLING_TIME, request.group.name, hint)
        return min(wait_ms, room_ms)

    async def group_spec(self, client: Client, group: str, info: TopicInfo) -> GroupSpec:
        """The group at the stores: the same for every member, whatever it asks."""
        tenant = client.call.tenant
        topic = info.name
        bare = topic.removeprefix(f"{tenant}%") if tenant else topic
        spec = GroupSpec(
            name=group_name(tenant, group, bare),
            reads=(Read(topic=topic),),
            is_fifo=self._is_listed(group),
            attempts_max=self._config.attempts_max,
            dead_letter_topic=dead_letters.PREFIX + qualified(tenant, group),
            start=Start.EARLIEST if self._config.new_groups == "earliest" else Start.END,
        )
        return as_configured(spec, info, await self.policy(client, group, topic))

    async def policy(self, client: Client, group: str, topic: str) -> GroupPolicy | None:
        """The group as the brokers of *topic* (its stored name) have it."""
        return await self._services.topics.group(qualified(client.call.tenant, group), topic)

    async def is_fifo(self, client: Client, group: str, info: TopicInfo) -> bool:
        """Whether the group keeps the order within each message group."""
        return (await self.group_spec(client, group, info)).is_fifo

    def _is_listed(self, group: str) -> bool:
        return any(fnmatchcase(group, pattern) for pattern in self._config.fifo_groups)

    async def _put_back(self, client: Client, deliveries: Sequence[Delivery]) -> None:
        changes = [InvisibleTimeChange(delivery.handle, 0) for delivery in deliveries]
        for delivery in deliveries:
            self._renewals.remove(delivery.handle.encode())
        await self._services.pipeline.change_invisible_time(client.call, changes)

    # ── ack, change ─────────────────────────────────────────────────────────────────────

    async def ack(self, client: Client, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
        """
        A result per entry. A handle that is none, not of this group, or overtaken is
        INVALID_RECEIPT_HANDLE: push consumers retry everything else for ever.
        """
        if not request.entries:
            raise Refused(Code.BAD_REQUEST, request.group.name, "nothing to acknowledge")
        self._require(client, request.group.name, request.topic.name)
        found = [
            self._handle(client, request.group.name, request.topic.name, entry.receipt_handle)
            for entry in request.entries
        ]
        handles = [handle for handle in found if handle is not None]
        answers = iter(await self._services.pipeline.ack(client.call, handles))
        entries = []
        for entry, handle in zip(request.entries, found, strict=True):
            result = next(answers) if handle is not None else _NO_HANDLE
            if result.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
                self._renewals.remove(entry.receipt_handle)
            entries.append(
                pb.AckMessageResultEntry(
                    message_id=entry.message_id,
                    receipt_handle=entry.receipt_handle,
                    status=status(result.code, result.hint),
                )
            )
        codes = {entry.status.code for entry in entries}
        whole = entries[0].status if len(codes) == 1 else status(Code.MULTIPLE_RESULTS)
        return pb.AckMessageResponse(status=whole, entries=entries)

    async def change(
        self, client: Client, request: pb.ChangeInvisibleDurationRequest
    ) -> pb.ChangeInvisibleDurationResponse:
        """Answers with the handle that counts from now on; on errors with the one it came with."""
        text = request.receipt_handle
        self._require(client, request.group.name, request.topic.name)
        wanted = validation.invisible_ms(milliseconds(request.invisible_duration), least=0)
        handle = self._handle(client, request.group.name, request.topic.name, text)
        if handle is None:
            result = _NO_HANDLE
        else:
            change = InvisibleTimeChange(handle, wanted)
            (result,) = await self._services.pipeline.change_invisible_time(client.call, [change])
        if result.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
            self._renewals.remove(text)  # the consumer has given it up, or lost it
        return pb.ChangeInvisibleDurationResponse(
            status=status(result.code, result.hint),
            receipt_handle=result.handle.encode() if result.handle else text,
        )

    def _require(self, client: Client, group: str, topic: str) -> None:
        validation.check_group(group)
        validation.check_topic(topic)
        self._peers.require(client.call, "consume", topic=topic, group=group)

    def _handle(self, client: Client, group: str, topic: str, text: str) -> ReceiptHandle | None:
        """The handle that counts now, if *text* is one of this group and topic."""
        handle = self._renewals.current(text) or ReceiptHandle.decode(text)
        if handle is None or handle.group_name != group_name(client.call.tenant, group, topic):
            return None
        return handle

    # ── dead letters ────────────────────────────────────────────────────────────────────

    async def forward(
        self, client: Client, request: pb.ForwardMessageToDeadLetterQueueRequest
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """The message goes to ``%DLQ%<group>``, then it is acknowledged."""
        group, topic, text = request.group.name, request.topic.name, request.receipt_handle
        self._require(client, group, topic)
        handle = self._handle(client, group, topic, text)
        result = _NO_HANDLE
        if handle is not None:
            tenant = client.call.tenant
            result = await dead_letters.bury_delivery(
                self._services,
                client.call,
                handle,
                qualified(tenant, topic),
                qualified(tenant, group),
            )
        if result.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
            self._renewals.remove(text)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=status(result.code, result.hint))

    # ── renewal ─────────────────────────────────────────────────────────────────────────

    async def renew_until_cancelled(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Every few seconds: prolong what live push consumers hold, give back the rest."""
        while True:
            await sleep(SCAN_S)
            renew, give_back = self._renewals.due(now=clock.monotonic())
            await self._change_all(renew, INVISIBLE_MS)
            await self._change_all(give_back, 0)

    async def give_back(self, client: Client) -> None:
        """The client said goodbye: what it holds returns at once."""
        await self._change_all(self._renewals.of(client), 0)

    async def _change_all(self, texts: Sequence[str], invisible_ms: int) -> None:
        for start in range(0, len(texts), RENEW_BATCH_COUNT):
            batch = self._renewals.entries(texts[start : start + RENEW_BATCH_COUNT])
            for client in {id(entry.client): entry.client for _, entry in batch}.values():
                mine = [(text, entry.handle) for text, entry in batch if entry.client is client]
                is_renewal = invisible_ms > 0
                changes = [
                    InvisibleTimeChange(handle, invisible_ms, is_renewal) for _, handle in mine
                ]
                try:
                    results = await self._services.pipeline.change_invisible_time(
                        client.call, changes
                    )
                except Refused:
                    continue  # tried again at the next scan; the store decides in the end
                for (text, _), result in zip(mine, results, strict=True):
                    self._renewed(text, result, keeps=invisible_ms > 0)

    def _renewed(self, text: str, result: AckResult, *, keeps: bool) -> None:
        if result.code == Code.OK and keeps:
            self._renewals.renewed(text, result.handle, now=clock.monotonic())
        elif result.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
            self._renewals.remove(text)


_NO_HANDLE: Final = AckResult(
    Code.INVALID_RECEIPT_HANDLE, hint="this handle is expired, or not of this group and topic"
)
