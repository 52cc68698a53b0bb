"""
EndTransaction, RecallMessage, and the questions that producers are asked.

A transaction id tells where its half message lies, so any gateway can end it. The producer group
of a transactional message is its topic, as with the Apache proxy: any producer of the topic with
an open telemetry stream may be asked how a transaction ended.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from protocols.canonical import Delivery, ReceiptHandle, SendResult
from protocols.errors import Code, Refused
from protocols.grpc import validation
from protocols.grpc.clients import Client
from protocols.grpc.config import GrpcConfig
from protocols.grpc.mapping import OK, message_out
from protocols.grpc.peers import Peers, qualified
from protocols.grpc.routes import accepted_types
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from protocols.pipeline import Services
from protocols.rocketmq import HalfCheck, HalfPlace

logger = logging.getLogger("tidegate.grpc")

TOPICS_MAX: Final = 100
"""Topics of one producer whose transactions it is asked about."""

ID_VERSION: Final = "t1"
NO_HANDLE: Final = ReceiptHandle("", "", 0, 0, 0, 0)


def transaction_id(result: SendResult) -> str:
    """Of a half message that was stored."""
    return _id(result.cluster, result.broker, result.log_position, result.queue_offset)


def _id(cluster: str, broker: str, position: int, table_offset: int) -> str:
    text = f"{ID_VERSION} {cluster} {broker} {position} {table_offset}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_of(text: str, group: str) -> HalfPlace:
    """Raises Refused(INVALID_TRANSACTION_ID)."""
    try:
        raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode()
        version, cluster, broker, position, table_offset = raw.split(" ")
        if version != ID_VERSION:
            raise ValueError(version)
        return HalfPlace(cluster, broker, int(position), int(table_offset), group)
    except (ValueError, binascii.Error) as error:
        hint = f"'{text[:100]}' is no transaction id of ours"
        raise Refused(Code.INVALID_TRANSACTION_ID, group, hint) from error


class Transactions:
    """Held messages over gRPC."""

    def __init__(self, config: GrpcConfig, services: Services, peers: Peers) -> None:
        self._config = config
        self._services = services
        self._peers = peers

    async def end(
        self, client: Client, request: pb.EndTransactionRequest
    ) -> pb.EndTransactionResponse:
        """Durable when answered. Raises Refused."""
        topic = self._topic_of(client, request)
        place = place_of(request.transaction_id, qualified(client.call.tenant, topic))
        place = place._replace(message_id=request.message_id)
        if request.resolution == v2.TRANSACTION_RESOLUTION_UNSPECIFIED:
            return pb.EndTransactionResponse(status=OK)  # not known yet: it is asked again
        is_commit = request.resolution == v2.COMMIT
        await self._services.held.end_transaction(place, is_commit=is_commit)
        return pb.EndTransactionResponse(status=OK)

    async def recall(
        self, client: Client, request: pb.RecallMessageRequest
    ) -> pb.RecallMessageResponse:
        """Raises Refused: another topic, no such message, or too late."""
        topic = self._topic_of(client, request)
        info = await self._peers.topic(client.call, topic)
        if self._config.validate_message_type and v2.DELAY not in accepted_types(info):
            hint = f"'{topic}' takes no delayed messages"
            raise Refused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, topic, hint)
        stored_topic = qualified(client.call.tenant, topic)
        message_id = await self._services.held.recall(stored_topic, request.recall_handle)
        return pb.RecallMessageResponse(status=OK, message_id=message_id)

    def _topic_of(
        self, client: Client, request: pb.EndTransactionRequest | pb.RecallMessageRequest
    ) -> str:
        """Raises Refused: it cannot be one, or the client may not publish there."""
        topic: str = request.topic.name
        validation.check_topic(topic)
        self._peers.require(client.call, "publish", topic=topic)
        return topic

    # ── questions ───────────────────────────────────────────────────────────────────────

    def serve(self, client: Client, topics: Iterable[str]) -> None:
        """This client may be asked about transactions on *topics*."""
        for topic in topics:
            if topic in client.checks or len(client.checks) >= TOPICS_MAX:
                continue
            group = qualified(client.call.tenant, topic)
            client.checks[topic] = self._services.held.answer_checks(
                group, partial(self._ask, client)
            )

    def stop(self, client: Client) -> None:
        """Its last stream is gone."""
        checks, client.checks = client.checks, {}
        for undo in checks.values():
            undo()

    def _ask(self, client: Client, check: HalfCheck) -> None:
        place = check.place
        message = message_out(Delivery(check.message, NO_HANDLE))
        message.system_properties.ClearField("receipt_handle")
        command = pb.TelemetryCommand(
            recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                message=message,
                transaction_id=_id(place.cluster, place.broker, place.position, place.table_offset),
            )
        )
        try:
            client.outbox.put_nowait(command)
        except asyncio.QueueFull:
            logger.warning("client %s does not take its questions", client.call.client_id)
