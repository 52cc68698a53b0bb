"""SendMessage."""

from typing import Final

from protocols import clock
from protocols.canonical import Message, SendResult
from protocols.errors import Code, Refused
from protocols.grpc import validation
from protocols.grpc.clients import Client
from protocols.grpc.config import GrpcConfig
from protocols.grpc.mapping import OK, Heads, message_in, message_type, status
from protocols.grpc.peers import Peers, qualified
from protocols.grpc.routes import accepted_types
from protocols.grpc.transactions import Transactions, transaction_id
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from protocols.pipeline import Services, TopicInfo
from protocols.remoting.delays import RecallHandle

INTERNAL_PREFIXES: Final = ("%RETRY%", "%DLQ%")
"""Topics exempt from the type check."""


class Sending:
    """Validates a send as the Apache proxy does and hands it to the pipeline as one batch."""

    def __init__(
        self, config: GrpcConfig, services: Services, peers: Peers, transactions: Transactions
    ) -> None:
        self._transactions = transactions
        self._config = config
        self._services = services
        self._peers = peers
        self._heads = Heads()

    async def send(self, client: Client, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        """Answered after the stores' durability promise holds. Raises Refused."""
        topic = self._one_topic(request)
        validation.check_topic(topic)
        now_ms = clock.wall_ms()
        for message in request.messages:
            validation.check_message(
                message,
                body_bytes_max=self._config.body_bytes_max,
                now_ms=now_ms,
                delay_s_max=self._config.delay_s_max,
            )
        info = await self._peers.topic(client.call, topic, may_create=True)
        for message in request.messages:
            self._check_type(message, info)
        body_bytes_max = self._config.body_bytes_max
        stored_topic = qualified(client.call.tenant, topic)
        is_by_priority = info.message_type.upper() == "PRIORITY"
        messages = [
            message_in(
                message,
                self._heads.get(message, is_by_priority=is_by_priority),
                body_bytes_max=body_bytes_max,
                producer_group=stored_topic,
            )
            for message in request.messages
        ]
        if any([message.producer_group for message in messages]):
            self._transactions.serve(client, (topic,))
        results = await self._services.pipeline.send(client.call, messages)
        entries = [
            entry_of(message, result, stored_topic, now_ms)
            for message, result in zip(messages, results, strict=True)
        ]
        return pb.SendMessageResponse(status=overall(entries), entries=entries)

    def _one_topic(self, request: pb.SendMessageRequest) -> str:
        topics = {message.topic.name for message in request.messages}
        if len(topics) != 1:
            hint = "a send needs messages, all of one topic"
            raise Refused(Code.MESSAGE_CORRUPTED, ",".join(sorted(topics)[:2]), hint)
        return topics.pop()

    def _check_type(self, message: v2.Message, info: TopicInfo) -> None:
        kind = message_type(message)
        topic = message.topic.name
        if not self._config.validate_message_type or topic.startswith(INTERNAL_PREFIXES):
            return
        accepted = accepted_types(info)
        if kind not in accepted:
            names = ", ".join(v2.MessageType.Name(one) for one in accepted)
            hint = f"a {v2.MessageType.Name(kind)} message on a topic for {names}"
            raise Refused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, topic, hint)


def entry_of(message: Message, result: SendResult, topic: str, now_ms: int) -> pb.SendResultEntry:
    """What one message came to, as stored in *topic*; the id is the client's own."""
    if not result.is_stored:
        return pb.SendResultEntry(
            status=status(result.code, result.hint), message_id=message.message_id
        )
    entry = pb.SendResultEntry(
        status=OK,
        message_id=result.message_id or message.message_id,
        offset=max(result.queue_offset, 0),
    )
    if message.producer_group:
        entry.transaction_id = transaction_id(result)
    elif message.deliver_at_ms > now_ms:
        handle = RecallHandle(topic, result.broker, message.deliver_at_ms, entry.message_id)
        entry.recall_handle = handle.encode()
    return entry


def overall(entries: list[pb.SendResultEntry]) -> v2.Status:
    """The code all entries share, or MULTIPLE_RESULTS."""
    codes = {entry.status.code for entry in entries}
    if len(codes) == 1:
        return entries[0].status
    return status(Code.MULTIPLE_RESULTS)
