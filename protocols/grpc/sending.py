"""SendMessage."""

from typing import Final

from protocols import clock
from protocols.canonical import SendResult
from protocols.errors import Code, Refused
from protocols.grpc import validation
from protocols.grpc.clients import Client
from protocols.grpc.config import GrpcConfig
from protocols.grpc.mapping import OK, Heads, message_in, message_type, status
from protocols.grpc.peers import Peers
from protocols.grpc.routes import accepted_types
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from protocols.pipeline import Services, TopicInfo

INTERNAL_PREFIXES: Final = ("%RETRY%", "%DLQ%")
"""Topics exempt from the type check."""


class Sending:
    """Validates a send as the Apache proxy does and hands it to the pipeline as one batch."""

    def __init__(self, config: GrpcConfig, services: Services, peers: Peers) -> None:
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
                message, body_bytes_max=self._config.body_bytes_max, now_ms=now_ms
            )
        info = await self._peers.topic(client.call, topic, may_create=True)
        for message in request.messages:
            self._check_type(message, info, now_ms=now_ms)
        body_bytes_max = self._config.body_bytes_max
        messages = [
            message_in(message, self._heads.get(message), body_bytes_max=body_bytes_max)
            for message in request.messages
        ]
        results = await self._services.pipeline.send(client.call, messages)
        entries = [
            entry_of(message, result)
            for message, result in zip(request.messages, results, strict=True)
        ]
        return pb.SendMessageResponse(status=overall(entries), entries=entries)

    def _one_topic(self, request: pb.SendMessageRequest) -> str:
        topics = {message.topic.name for message in request.messages}
        if len(topics) != 1:
            hint = "a send needs messages, all of one topic"
            raise Refused(Code.MESSAGE_CORRUPTED, ",".join(sorted(topics)[:2]), hint)
        return topics.pop()

    def _check_type(self, message: v2.Message, info: TopicInfo, *, now_ms: int) -> None:
        kind = message_type(message)
        topic = message.topic.name
        if kind == v2.TRANSACTION:
            raise Refused(Code.NOT_IMPLEMENTED, topic, "transactions are not supported")
        deliver = message.system_properties.delivery_timestamp
        if kind == v2.DELAY and deliver.ToMilliseconds() > now_ms:
            raise Refused(Code.NOT_IMPLEMENTED, topic, "delayed delivery is not supported")
        if not self._config.validate_message_type or topic.startswith(INTERNAL_PREFIXES):
            return
        accepted = accepted_types(info)
        if kind not in accepted:
            names = ", ".join(v2.MessageType.Name(one) for one in accepted)
            hint = f"a {v2.MessageType.Name(kind)} message on a topic for {names}"
            raise Refused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, topic, hint)


def entry_of(message: v2.Message, result: SendResult) -> pb.SendResultEntry:
    """What one message came to; the id is the client's own."""
    if result.is_stored:
        return pb.SendResultEntry(
            status=OK,
            message_id=result.message_id or message.system_properties.message_id,
            offset=max(result.queue_offset, 0),
        )
    return pb.SendResultEntry(
        status=status(result.code, result.hint),
        message_id=message.system_properties.message_id,
    )


def overall(entries: list[pb.SendResultEntry]) -> v2.Status:
    """The code all entries share, or MULTIPLE_RESULTS."""
    codes = {entry.status.code for entry in entries}
    if len(codes) == 1:
        return entries[0].status
    return status(Code.MULTIPLE_RESULTS)
