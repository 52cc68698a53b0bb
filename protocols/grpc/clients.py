"""
Who is there: calls by client, and when each client was last heard of.

A client is named by its id, but an id proves nothing: the identity and the peer belong to it,
so nobody inherits another's decisions by using its id.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocols.addresses import host_of
from protocols.canonical import Call, Identity
from protocols.grpc.context import CLIENT_LANGUAGE, CLIENT_VERSION, Rpc
from protocols.grpc.v2.service_pb2 import TelemetryCommand

CALLS_MAX: Final = 20_000
"""Calls kept per listener; the one unused for longest goes."""

OUTBOX_MAX: Final = 256
"""Questions that wait to be written to one client; what is dropped is asked again."""

SILENT_S_MAX: Final = 35.0
"""A client that sent nothing for so long is gone (it beats every 10 s)."""


@dataclass(slots=True, kw_only=True)
class Client:
    """What the gateway remembers of a client; all of it can be lost."""

    call: Call
    language: str = ""
    """Of its SDK, as that writes it: ``JAVA``, ``DOTNET``, ``GO`` …"""

    version: str = ""
    """Of its SDK: ``5.0.8``."""

    heard_at: float = 0.0
    """On the monotonic clock."""

    stream_count: int = 0
    """Open telemetry streams."""

    outbox: asyncio.Queue[TelemetryCommand] = field(
        default_factory=lambda: asyncio.Queue(OUTBOX_MAX)
    )
    """What one of its streams is to tell it."""

    checks: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Topics about whose transactions it may be asked, and what ends that."""

    def is_alive(self, now: float) -> bool:
        return self.stream_count > 0 or now - self.heard_at <= SILENT_S_MAX


class ClientTable:
    """Bounded table of clients."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._clients: OrderedDict[tuple[str, str, str, str], Client] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, identity: Identity, rpc: Rpc, *, tenant: str, now: float) -> Client:
        """The client of a request, made on its first one."""
        client_id, peer = rpc.client_id, rpc.peer
        host = host_of(peer)  # SDKs open several connections: the port says nothing
        key = (client_id, identity.name, tenant, host)
        client = self._clients.get(key)
        if client is None or client.call.identity != identity:
            call = Call(
                protocol="grpc",
                listener=self._listener,
                identity=identity,
                tenant=tenant,
                client_id=client_id,
                peer=peer,
            )
            client = self._clients[key] = Client(
                call=call,
                language=rpc.metadata.get(CLIENT_LANGUAGE, ""),
                version=rpc.metadata.get(CLIENT_VERSION, ""),
            )
            while len(self._clients) > CALLS_MAX:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(key)
        client.heard_at = now
        return client
