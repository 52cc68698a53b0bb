"""
grpc.aio as the transport of ``MessagingService``: bytes, metadata, deadlines, cancellation.

The C core closes a connection that has not sent its HTTP/2 preface and settings within
``grpc.server_handshake_timeout_ms``, which is how a silent socket ends.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

from protocols.addresses import join_address, split_bind
from protocols.errors import ConfigError
from protocols.grpc.config import GrpcConfig, TlsFiles, grpc_config
from protocols.grpc.context import Rpc
from protocols.pipeline import Services

if TYPE_CHECKING:
    import grpc
    import grpc.aio

    from protocols.grpc.service import MessagingService

logger = logging.getLogger("tidegate.grpc")

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
STOP_GRACE_S: Final = 1.0
"""How long calls in flight may take to end when the listener closes, in seconds."""

PING_INTERVAL_MS_MIN: Final = 5_000
"""SDKs ping every 30 s or so without calls; more often than this is still tolerated."""

KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000


class GrpcAdapter:
    """One listener of protocol ``grpc``."""

    SETTINGS: Final = GrpcConfig

    def __init__(self, name: str, config: GrpcConfig) -> None:
        self.name = name
        self.config = config

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        return cls(name, grpc_config(name, section))

    async def serve(self, services: Services) -> None:
        """Listen until cancelled; then give calls in flight a second to end."""
        import grpc  # 95 ms: only when there is a gRPC listener
        import grpc.aio

        from protocols.grpc.service import MessagingService

        host, _ = split_bind(self.config.bind)
        service = MessagingService(self.name, self.config, services)
        server = grpc.aio.server(options=channel_options(self.config))
        server.add_generic_rpc_handlers((handlers(grpc, service),))
        port = self._bind(grpc, server)
        service.default_address = join_address(host, port)
        await server.start()
        service.start()
        services.listening(self.name, host, port)
        try:
            await server.wait_for_termination()
        finally:
            service.drain()
            await asyncio.shield(server.stop(STOP_GRACE_S))
            await service.close()

    def _bind(self, grpc: Any, server: "grpc.aio.Server") -> int:
        try:
            if self.config.tls is None:
                return int(server.add_insecure_port(self.config.bind))
            credentials = tls_credentials(grpc, self.config.tls)
            return int(server.add_secure_port(self.config.bind, credentials))
        except RuntimeError as error:
            where = f"listeners.{self.name}.bind"
            raise ConfigError([f"{where}: cannot listen on {self.config.bind}"]) from error


def channel_options(config: GrpcConfig) -> list[tuple[str, int]]:
    """Limits of the C core; names from ``grpc_types.h``."""
    return [
        ("grpc.max_receive_message_length", config.request_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", config.streams_max),
        ("grpc.server_handshake_timeout_ms", int(config.handshake_s_max * 1000)),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


def tls_credentials(grpc: Any, files: TlsFiles) -> Any:
    """Raises ConfigError if a file cannot be read."""
    try:
        pair = (Path(files.key).read_bytes(), Path(files.cert).read_bytes())
        roots = Path(files.client_ca).read_bytes() if files.client_ca else None
    except OSError as error:
        raise ConfigError([f"tls: {error}"]) from error
    return grpc.ssl_server_credentials(
        [pair], root_certificates=roots, require_client_auth=roots is not None
    )


# ── handlers ────────────────────────────────────────────────────────────────────────────


def handlers(grpc: Any, service: "MessagingService") -> Any:
    """
    A handler for every RPC of the service, on raw bytes.

    Requests are parsed here and not by the transport, so that a malformed one is answered
    INVALID_ARGUMENT instead of being logged with a traceback.
    """
    from protocols.grpc.v2 import service_pb2

    descriptor = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
    streams: dict[str, Callable[..., Any]] = {
        "ReceiveMessage": service.receive,
        "PullMessage": service.pull,
    }
    methods: dict[str, Any] = {}
    for method in descriptor.methods:
        request = getattr(service_pb2, method.input_type.name)
        if method.name == "Telemetry":
            behaviour = _telemetry(grpc, service, request)
            methods[method.name] = grpc.stream_stream_rpc_method_handler(behaviour)
        elif method.name in streams:
            behaviour = _server_stream(grpc, streams[method.name], request)
            methods[method.name] = grpc.unary_stream_rpc_method_handler(behaviour)
        else:
            behaviour = _unary(grpc, service, method.name, request)
            methods[method.name] = grpc.unary_unary_rpc_method_handler(behaviour)
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _unary(grpc: Any, service: "MessagingService", name: str, kind: Any) -> Callable[..., Any]:
    async def behave(data: bytes, context: Any) -> bytes:
        request = await _parsed(grpc, kind, data, context)
        answer = await service.unary(name, rpc_of(context), request)
        return answer.SerializeToString()

    return behave


def _server_stream(grpc: Any, handle: Callable[..., Any], kind: Any) -> Callable[..., Any]:
    async def behave(data: bytes, context: Any) -> None:
        request = await _parsed(grpc, kind, data, context)
        responses = handle(rpc_of(context), request)
        try:
            async for response in responses:
                await context.write(response.SerializeToString())
        finally:
            await responses.aclose()

    return behave


def _telemetry(grpc: Any, service: "MessagingService", kind: Any) -> Callable[..., Any]:
    from protocols.grpc.context import StreamFailed

    async def commands(incoming: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async for data in incoming:
            yield await _parsed(grpc, kind, data, context)

    async def behave(incoming: AsyncIterator[bytes], context: Any) -> None:
        answers = service.telemetry(rpc_of(context), commands(incoming, context))
        failure: StreamFailed | None = None
        try:
            async for answer in answers:
                await context.write(answer.SerializeToString())
        except StreamFailed as failed:
            failure = failed
        finally:
            await answers.aclose()  # type: ignore[attr-defined]  # an async generator
        if failure is not None:
            await context.abort(getattr(grpc.StatusCode, failure.status), failure.message)

    return behave


async def _parsed(grpc: Any, kind: Any, data: bytes, context: Any) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError:
        pass
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no {kind.__name__}")


def rpc_of(context: Any) -> Rpc:
    """The envelope of a call, from grpc.aio's context."""
    metadata = {
        name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)
    }
    remaining_s = context.time_remaining()
    has_deadline = remaining_s is not None and remaining_s < 10**8
    return Rpc(
        metadata=metadata,
        peer=peer_of(context.peer()),
        remaining_ms=int(remaining_s * 1000) if has_deadline else None,
    )


def peer_of(text: str) -> str:
    """``ipv4:127.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000`` as ``host:port``."""
    kind, _, address = text.partition(":")
    return unquote(address) if kind in ("ipv4", "ipv6") else text
