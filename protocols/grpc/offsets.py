"""
PullMessage, QueryOffset, UpdateOffset, GetOffset: reading a message queue by offset.

Offsets that a group commits are records of the directory, the same as those of its remoting
members that read by offset. Apache's proxy has none of these RPCs.
"""

from collections.abc import AsyncIterator, Awaitable
from typing import Final

from protocols.canonical import Delivery, ReceiptHandle, StoredMessage
from protocols.directory import Put
from protocols.errors import Code, Refused
from protocols.grpc import telemetry, validation
from protocols.grpc.clients import Client
from protocols.grpc.context import Rpc
from protocols.grpc.mapping import OK, message_out, milliseconds, status
from protocols.grpc.peers import Peers, qualified
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from protocols.pipeline import Services
from protocols.remoting.mapping import Wants
from protocols.tasks import LongPolls

ANSWER_RESERVE_MS: Final = 500
"""Kept of the client's deadline for the way back."""

NO_HANDLE: Final = ReceiptHandle("", "", 0, 0, 0, 0)


class Offsets:
    """A group's reading by offset."""

    def __init__(self, services: Services, peers: Peers, polls: LongPolls) -> None:
        self._services = services
        self._peers = peers
        self._polls = polls

    async def pull(
        self, client: Client, rpc: Rpc, request: pb.PullMessageRequest
    ) -> AsyncIterator[pb.PullMessageResponse]:
        """Status, messages, the offset to go on from. Raises Refused."""
        topic = await self._queue(client, request.message_queue, request.group.name)
        offset, expression = request.offset, request.filter_expression
        tags, sql = validation.tags_of(expression), validation.sql_of(expression)
        if offset < 0:
            raise Refused(Code.ILLEGAL_OFFSET, topic, f"offset {offset}")
        wait_ms = milliseconds(request.long_polling_timeout)
        wait_ms = min(max(wait_ms, 0), telemetry.LONG_POLLING_MS)
        if rpc.remaining_ms is not None:
            wait_ms = min(wait_ms, max(rpc.remaining_ms - ANSWER_RESERVE_MS, 0))
        queue = request.message_queue
        count = min(max(request.batch_size, 1), telemetry.RECEIVE_BATCH_COUNT)
        read = self._services.topics.read(
            topic, queue.broker.name, queue.id, offset, count, wait_ms
        )
        found = await self._polls.wait(_as_list(read))
        messages, smallest, end = found[0] if found else ([], offset, offset)
        if not messages and not smallest <= offset <= end:
            nearest = min(max(offset, smallest), end)
            hint = f"offset {offset}, the queue has {smallest} to {end}"
            yield pb.PullMessageResponse(status=status(Code.ILLEGAL_OFFSET, hint))
            yield pb.PullMessageResponse(next_offset=nearest)
            return
        wants = Wants(tags, sql)
        passed = [message for message in messages if wants.matches(message)]
        missing = status(Code.MESSAGE_NOT_FOUND, "no new message")
        yield pb.PullMessageResponse(status=OK if passed else missing)
        for message in passed:
            out = message_out(Delivery(message, NO_HANDLE))
            out.system_properties.ClearField("receipt_handle")
            yield pb.PullMessageResponse(message=out)
        following = messages[-1].queue_offset + 1 if messages else offset
        yield pb.PullMessageResponse(next_offset=following)

    async def query(self, client: Client, request: pb.QueryOffsetRequest) -> pb.QueryOffsetResponse:
        """The smallest offset, the end, or the first one stored at or after a time."""
        queue, policy = request.message_queue, request.query_offset_policy
        topic = await self._queue(client, queue)
        at_ms = 0 if policy == v2.BEGINNING else -1
        if policy == v2.TIMESTAMP:
            at_ms = max(request.timestamp.ToMilliseconds(), 0)
        offset = await self._services.topics.offset(topic, queue.broker.name, queue.id, at_ms=at_ms)
        return pb.QueryOffsetResponse(status=OK, offset=offset)

    async def update(
        self, client: Client, request: pb.UpdateOffsetRequest
    ) -> pb.UpdateOffsetResponse:
        """Durable when answered."""
        topic = await self._queue(client, request.message_queue, request.group.name)
        if request.offset < 0:
            raise Refused(Code.ILLEGAL_OFFSET, topic, f"offset {request.offset}")
        key = self._key(client, request.group.name, request.message_queue)
        await self._services.directory.put([Put(key, str(request.offset).encode())])
        return pb.UpdateOffsetResponse(status=OK)

    async def get(self, client: Client, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
        topic = await self._queue(client, request.message_queue, request.group.name)
        key = self._key(client, request.group.name, request.message_queue)
        record = self._services.directory.get(key)
        if record is None or not record.value:
            raise Refused(Code.OFFSET_NOT_FOUND, topic, "the group has committed none here")
        return pb.GetOffsetResponse(status=OK, offset=int(record.value))

    async def _queue(self, client: Client, queue: v2.MessageQueue, group: str = "") -> str:
        """The stored name of the queue's topic, if the client may read it. Raises Refused."""
        topic = queue.topic.name
        validation.check_topic(topic)
        if group:
            validation.check_group(group)
        self._peers.require(client.call, "consume", topic=topic, group=group)
        info = await self._peers.topic(client.call, topic)
        if (queue.broker.name, queue.id) not in [place[:2] for place in info.queues]:
            hint = f"no message queue {queue.id} on broker '{queue.broker.name}'"
            raise Refused(Code.BAD_REQUEST, topic, hint)
        return info.name

    @staticmethod
    def _key(client: Client, group: str, queue: v2.MessageQueue) -> str:
        tenant = client.call.tenant
        topic = qualified(tenant, queue.topic.name)
        return f"rmq/offset/{qualified(tenant, group)}/{topic}/{queue.broker.name}/{queue.id}"


async def _as_list(
    read: Awaitable[tuple[list[StoredMessage], int, int]],
) -> list[tuple[list[StoredMessage], int, int]]:
    """A long poll answers with a list: empty when the listener closes."""
    return [await read]
