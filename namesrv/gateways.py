"""The gateways that told this name server about themselves; for people, nothing routes by it."""

from typing import Final, NamedTuple

import msgspec

from protocols.errors import Code, PeerError, Refused
from protocols.remoting.private import GatewayList, GatewayRegister, encode_body

GATEWAYS_MAX: Final = 10_000


class _Entry(NamedTuple):
    gateway: GatewayRegister
    connection: object
    ends_at: float


class Gateways:
    """Name → what the gateway last said."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def register(self, body: bytes | memoryview, connection: object, now: float) -> None:
        """Raises PeerError, and Refused beyond ``GATEWAYS_MAX``."""
        try:
            gateway = msgspec.msgpack.decode(body, type=GatewayRegister)
        except msgspec.MsgspecError as error:
            raise PeerError(f"GATEWAY_REGISTER: {error}") from error
        self._forget_ended(now)
        if gateway.gateway not in self._entries and len(self._entries) >= GATEWAYS_MAX:
            raise Refused(Code.TOO_MANY_REQUESTS, gateway.gateway, "too many gateways")
        ends_at = now + max(gateway.lease_ms, 1000) / 1000
        self._entries[gateway.gateway] = _Entry(gateway, connection, ends_at)

    def connection_lost(self, connection: object) -> None:
        self._entries = {
            name: entry
            for name, entry in self._entries.items()
            if entry.connection is not connection
        }

    def encode_list(self, now: float) -> bytes:
        """Body of GATEWAY_LIST's answer, by name."""
        self._forget_ended(now)
        return encode_body(
            GatewayList(gateways=[self._entries[name].gateway for name in sorted(self._entries)])
        )

    def _forget_ended(self, now: float) -> None:
        for name in [name for name, entry in self._entries.items() if entry.ends_at <= now]:
            del self._entries[name]

    def __len__(self) -> int:
        return len(self._entries)
