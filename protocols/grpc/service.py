"""
``apache.rocketmq.v2.MessagingService`` without a transport: messages in, messages out.

A refusal is a ``status`` in the response, with gRPC status OK; only Telemetry fails with a gRPC
status (``StreamFailed``), as clients expect.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import Message as Proto

from protocols import clock
from protocols.errors import Code, Refused
from protocols.grpc import routes, telemetry, validation
from protocols.grpc.clients import Client
from protocols.grpc.config import GrpcConfig
from protocols.grpc.context import Rpc, StreamFailed
from protocols.grpc.mapping import OK, status
from protocols.grpc.offsets import Offsets
from protocols.grpc.peers import Peers, qualified
from protocols.grpc.receiving import Receiving
from protocols.grpc.sending import Sending
from protocols.grpc.transactions import Transactions
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from protocols.observing import ClientInfo, Meter
from protocols.pipeline import GroupPolicy, Services
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.grpc")

Request = TypeVar("Request", bound=Proto)
Response = TypeVar("Response", bound=Proto)
Handler = Callable[[Client, Any], Awaitable[Any]]

STREAM_STATUS: Final = {
    Code.UNAUTHORIZED: "UNAUTHENTICATED",
    Code.FORBIDDEN: "PERMISSION_DENIED",
    Code.CLIENT_ID_REQUIRED: "INVALID_ARGUMENT",
    Code.ILLEGAL_TOPIC: "INVALID_ARGUMENT",
    Code.ILLEGAL_CONSUMER_GROUP: "INVALID_ARGUMENT",
    Code.BAD_REQUEST: "INVALID_ARGUMENT",
    Code.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
    Code.LITE_TOPIC_QUOTA_EXCEEDED: "RESOURCE_EXHAUSTED",
    Code.NOT_IMPLEMENTED: "UNIMPLEMENTED",
}
"""How a refusal ends a Telemetry stream; anything else is INTERNAL (proxy: ``ClientActivity``)."""

UNSUPPORTED: Final[dict[str, type[Proto]]] = {
    "SyncLiteSubscription": pb.SyncLiteSubscriptionResponse,
}
"""Answered NOT_IMPLEMENTED."""


class MessagingService:
    """The RPCs of one listener."""

    def __init__(self, name: str, config: GrpcConfig, services: Services) -> None:
        self.name = name
        self.tasks = Tasks(f"grpc/{name}")
        self.default_address = config.bind
        """``host:port`` of routes when a client does not say what it dialled."""

        self._config = config
        self._services = services
        self._peers = Peers(name, config, services)
        self._transactions = Transactions(config, services, self._peers)
        self._sending = Sending(config, services, self._peers, self._transactions)
        self._receiving = Receiving(config, services, self._peers, self.tasks)
        self._offsets = Offsets(services, self._peers, self._receiving.polls)
        self._meters: dict[tuple[str, int], Meter] = {}
        self._unary: dict[str, tuple[type[Any], Handler]] = {
            "QueryRoute": (pb.QueryRouteResponse, self._query_route),
            "Heartbeat": (pb.HeartbeatResponse, self._heartbeat),
            "SendMessage": (pb.SendMessageResponse, self._sending.send),
            "QueryAssignment": (pb.QueryAssignmentResponse, self._query_assignment),
            "AckMessage": (pb.AckMessageResponse, self._receiving.ack),
            "ForwardMessageToDeadLetterQueue": (
                pb.ForwardMessageToDeadLetterQueueResponse,
                self._receiving.forward,
            ),
            "EndTransaction": (pb.EndTransactionResponse, self._transactions.end),
            "RecallMessage": (pb.RecallMessageResponse, self._transactions.recall),
            "QueryOffset": (pb.QueryOffsetResponse, self._offsets.query),
            "UpdateOffset": (pb.UpdateOffsetResponse, self._offsets.update),
            "GetOffset": (pb.GetOffsetResponse, self._offsets.get),
            "NotifyClientTermination": (pb.NotifyClientTerminationResponse, self._terminate),
            "ChangeInvisibleDuration": (
                pb.ChangeInvisibleDurationResponse,
                self._receiving.change,
            ),
        }
        services.metrics.gauge(
            "grpc_clients", "Clients known to the listener", self._client_count, listener=name
        )

    def start(self) -> None:
        """Begin to renew invisible times."""
        self.tasks.start(self._receiving.renew_until_cancelled(asyncio.sleep), name="renew")

    def drain(self) -> None:
        """Answer the long polls: the listener closes."""
        self._receiving.polls.close()

    async def close(self) -> None:
        await self.tasks.close()

    # ── unary ───────────────────────────────────────────────────────────────────────────

    async def unary(self, name: str, rpc: Rpc, request: Proto) -> Proto:
        """Answer one unary RPC; refusals and our own faults are answers too."""
        if name in UNSUPPORTED:
            response = UNSUPPORTED[name]
            return self._answered(name, _failed(response, Code.NOT_IMPLEMENTED, f"no {name} here"))
        response, handler = self._unary[name]
        try:
            client = await self._peers.client_of(rpc)
            answer: Proto = await handler(client, request)
        except Refused as refusal:
            answer = _failed(response, refusal.code, refusal.hint)
        except Exception:
            logger.exception("%s failed", name)
            answer = _failed(response, Code.INTERNAL_SERVER_ERROR, "the gateway has a fault")
        return self._answered(name, answer)

    def _answered(self, name: str, answer: Proto) -> Proto:
        self._count(name, _code_of(answer))
        return answer

    def _count(self, name: str, code: int) -> None:
        meter = self._meters.get((name, code))
        if meter is None:
            meter = self._meters[name, code] = self._services.metrics.counter(
                "grpc_requests",
                "RPCs answered, by code of apache.rocketmq.v2",
                listener=self.name,
                rpc=name,
                code=v2.Code.Name(code),
            )
        meter.inc()

    async def _query_route(
        self, client: Client, request: pb.QueryRouteRequest
    ) -> pb.QueryRouteResponse:
        topic = request.topic.name
        validation.check_topic(topic)
        may_publish = self._may(client, "publish", topic)
        if not may_publish and not self._may(client, "consume", topic):
            raise Refused(Code.FORBIDDEN, topic, f"'{client.call.identity.name}' may not use it")
        info = await self._peers.topic(client.call, topic, may_create=True)
        endpoints = self._endpoints(request.endpoints)
        queues = routes.message_queues(
            request.topic,
            info,
            endpoints,
            reads_all=routes.reads_all_types(client.language, client.version),
        )
        return pb.QueryRouteResponse(status=OK, message_queues=queues)

    async def _query_assignment(
        self, client: Client, request: pb.QueryAssignmentRequest
    ) -> pb.QueryAssignmentResponse:
        topic, group = request.topic.name, request.group.name
        validation.check_topic(topic)
        validation.check_group(group)
        self._peers.require(client.call, "consume", topic=topic, group=group)
        info = await self._peers.topic(client.call, topic)
        endpoints = self._endpoints(request.endpoints)
        keeps_order = await self._receiving.is_fifo(client, group, info)
        found = routes.assignments(
            request.topic,
            info,
            endpoints,
            is_fifo=keeps_order,
            reads_all=routes.reads_all_types(client.language, client.version),
        )
        if not found:
            raise Refused(Code.FORBIDDEN, topic, "no readable queue")
        return pb.QueryAssignmentResponse(status=OK, assignments=found)

    async def _heartbeat(
        self, client: Client, request: pb.HeartbeatRequest
    ) -> pb.HeartbeatResponse:
        if request.HasField("group") and request.group.name:
            validation.check_group(request.group.name)
        return pb.HeartbeatResponse(status=OK)

    async def _terminate(
        self, client: Client, request: pb.NotifyClientTerminationRequest
    ) -> pb.NotifyClientTerminationResponse:
        await self._receiving.give_back(client)
        return pb.NotifyClientTerminationResponse(status=OK)

    def _may(self, client: Client, operation: str, topic: str) -> bool:
        permission = self._services.permission
        return permission.is_allowed(client.call, operation, subject=topic, topic=topic)

    def _endpoints(self, dialled: v2.Endpoints) -> v2.Endpoints:
        if self._config.advertise:
            return routes.endpoints_of(self._config.advertise)
        if dialled.addresses and dialled.scheme != v2.ADDRESS_SCHEME_UNSPECIFIED:
            return dialled
        return routes.endpoints_of(self.default_address)

    def _client_count(self) -> float:
        return len(self._peers.clients)

    # ── server streams ──────────────────────────────────────────────────────────────────

    def receive(
        self, rpc: Rpc, request: pb.ReceiveMessageRequest
    ) -> AsyncIterator[pb.ReceiveMessageResponse]:
        """ReceiveMessage: closing this iterator early returns what was not taken."""
        kind = pb.ReceiveMessageResponse
        return self._stream("ReceiveMessage", kind, self._receiving.receive, rpc, request)

    def pull(
        self, rpc: Rpc, request: pb.PullMessageRequest
    ) -> AsyncIterator[pb.PullMessageResponse]:
        """PullMessage."""
        return self._stream("PullMessage", pb.PullMessageResponse, self._offsets.pull, rpc, request)

    async def _stream(
        self,
        name: str,
        kind: type[Response],
        handler: Callable[[Client, Rpc, Request], AsyncIterator[Response]],
        rpc: Rpc,
        request: Request,
    ) -> AsyncIterator[Response]:
        """The responses of *handler*; a refusal and a fault are the last one's status."""
        code = int(Code.OK)
        try:
            client = await self._peers.client_of(rpc)
            async for response in handler(client, rpc, request):
                if response.HasField("status"):
                    code = _code_of(response)
                yield response
        except Refused as refusal:
            last = _failed(kind, refusal.code, refusal.hint)
            code = _code_of(last)
            yield last
        except Exception:
            logger.exception("%s failed", name)
            code = int(Code.INTERNAL_SERVER_ERROR)
            yield _failed(kind, Code.INTERNAL_SERVER_ERROR, "the gateway has a fault")
        self._count(name, code)

    # ── telemetry ───────────────────────────────────────────────────────────────────────

    async def telemetry(
        self, rpc: Rpc, commands: AsyncIterator[pb.TelemetryCommand]
    ) -> AsyncIterator[pb.TelemetryCommand]:
        """
        Answer each settings command with merged settings, for as long as the client stays.

        Ends by itself only when an operator disconnects the client. Raises StreamFailed.
        """
        try:
            client = await self._peers.client_of(rpc)
            admission = self._services.admit(client.call)
            if admission != Code.OK:
                raise Refused(admission, client.call.client_id, "too many connections")
        except Refused as refusal:
            raise _stream_failed(refusal) from refusal
        kicked = asyncio.Event()
        left = self._services.clients.joined(self._info(client), kicked.set)
        client.stream_count += 1
        try:
            async for command, is_ours in until(commands, client.outbox, kicked, self.tasks):
                if is_ours:
                    yield command
                elif command.HasField("settings"):
                    answer = await self._settings(client, command.settings)
                    if telemetry.may_miss_settings(command.settings):
                        self.tasks.start(_repeat(client, answer), name="settings")
                    yield answer
        except Refused as refusal:
            raise _stream_failed(refusal) from refusal
        finally:
            client.stream_count -= 1
            if not client.stream_count:
                self._transactions.stop(client)
                self._services.pipeline.forget(client.call)
            client.heard_at = clock.monotonic()
            left()

    def _info(self, client: Client) -> ClientInfo:
        call = client.call
        return ClientInfo(
            call.protocol,
            call.listener,
            call.client_id,
            call.identity.name,
            call.peer,
            clock.wall_ms(),
            call.tenant,
        )

    async def _settings(self, client: Client, settings: v2.Settings) -> pb.TelemetryCommand:
        if settings.WhichOneof("pub_sub") is None:
            raise Refused(Code.BAD_REQUEST, "settings", "neither publishing nor subscription")
        if settings.client_type in telemetry.LITE_CONSUMERS:
            group = settings.subscription.group.name
            raise Refused(Code.NOT_IMPLEMENTED, group, "there are no lite topics here")
        client.heard_at = clock.monotonic()
        is_consumer = telemetry.is_consumer(settings)
        group = settings.subscription.group.name if is_consumer else ""
        if group:
            validation.check_group(group)
        operation = "consume" if is_consumer else "publish"
        keeps_order, policy = False, None
        for topic in telemetry.topics_of(settings):
            validation.check_topic(topic)
            self._peers.require(client.call, operation, topic=topic, group=group)
            if is_consumer:
                keeps_order = keeps_order or await self._is_fifo(client, group, topic)
                stored_topic = qualified(client.call.tenant, topic)
                policy = policy or await self._receiving.policy(client, group, stored_topic)
        if not is_consumer:
            self._transactions.serve(client, telemetry.topics_of(settings))
        merged = telemetry.merged(
            settings,
            is_fifo=keeps_order,
            policy=policy or GroupPolicy(self._config.attempts_max),
            body_bytes_max=self._config.body_bytes_max,
            validates_type=self._config.validate_message_type,
        )
        return telemetry.settings_command(merged)

    async def _is_fifo(self, client: Client, group: str, topic: str) -> bool:
        try:
            info = await self._peers.topic(client.call, topic)
            return await self._receiving.is_fifo(client, group, info)
        except Refused:
            return False


async def until(
    commands: AsyncIterator[pb.TelemetryCommand],
    outbox: "asyncio.Queue[pb.TelemetryCommand]",
    stop: asyncio.Event,
    tasks: Tasks,
) -> AsyncIterator[tuple[pb.TelemetryCommand, bool]]:
    """(item of *commands* or *outbox*, whether it is the latter's), until the end or *stop*."""
    stopping = tasks.start(stop.wait(), name="kick")
    coming: asyncio.Task[pb.TelemetryCommand | None] | None = None
    going: asyncio.Task[pb.TelemetryCommand] | None = None
    try:
        while not stop.is_set():
            coming = coming or tasks.start(_next(commands), name="telemetry")
            going = going or tasks.start(outbox.get(), name="questions")
            await asyncio.wait((coming, going, stopping), return_when=asyncio.FIRST_COMPLETED)
            if coming.cancelled() or going.cancelled():
                return
            if going.done():
                asked, going = going.result(), None
                yield asked, True
            if coming.done():
                command, coming = coming.result(), None
                if command is None:
                    return
                yield command, False
    finally:
        for task in (stopping, coming, going):
            if task is not None and not task.done():
                task.cancel()


async def _repeat(client: Client, command: pb.TelemetryCommand) -> None:
    for pause_s in telemetry.AGAIN_S:
        await asyncio.sleep(pause_s)
        if client.stream_count and not client.outbox.full():
            client.outbox.put_nowait(command)


async def _next(commands: AsyncIterator[pb.TelemetryCommand]) -> pb.TelemetryCommand | None:
    return await anext(commands, None)


def _stream_failed(refusal: Refused) -> StreamFailed:
    return StreamFailed(STREAM_STATUS.get(refusal.code, "INTERNAL"), str(refusal))


def _code_of(response: Any) -> int:
    """Every response has a status."""
    return int(response.status.code)


def _failed(response: type[Any], code: Code, hint: str) -> Any:
    return response(status=status(code, hint))
