"""
The gateways that told this name server about themselves: for clients that look for one.

No route is made of it. A client asks for a protocol, its zone, a topic; it gets the gateways
that serve them, those of its zone first, the least loaded first among them.
"""

from typing import Final, NamedTuple

import msgspec

from namesrv.routes import Routes
from protocols.errors import Code, PeerError, Refused
from protocols.remoting.codes import Permission
from protocols.remoting.discovery import GatewayList, GatewayRegister

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

    def find(
        self, now: float, routes: Routes, *, protocol: str = "", zone: str = "", topic: str = ""
    ) -> GatewayList:
        """Those that fit; an empty wish is none."""
        self._forget_ended(now)
        partitions = _partitions(routes, topic) if topic else []
        clusters = {cluster for cluster, _, _ in partitions}
        found = [
            gateway
            for gateway, _, _ in self._entries.values()
            if (not protocol or _speaks(gateway, protocol))
            and (not topic or clusters.intersection(gateway.clusters))
            and not (gateway.is_draining and (protocol or topic))
        ]
        found.sort(
            key=lambda item: (bool(zone) and item.zone != zone, item.connection_count, item.gateway)
        )
        return GatewayList(gateways=found, partitions=partitions)

    def _forget_ended(self, now: float) -> None:
        for name in [name for name, entry in self._entries.items() if entry.ends_at <= now]:
            del self._entries[name]

    def __len__(self) -> int:
        return len(self._entries)


def _speaks(gateway: GatewayRegister, protocol: str) -> bool:
    return any(protocol in (item.protocol, item.name) for item in gateway.listeners)


def _partitions(routes: Routes, topic: str) -> list[tuple[str, str, int]]:
    """(broker cluster, broker, writable queues) of a topic."""
    route = routes.find(topic)
    if route is None:
        return []
    homes = {broker.broker_name: broker.cluster for broker in route.broker_datas}
    return [
        (
            homes.get(item.broker_name, ""),
            item.broker_name,
            item.write_queue_nums if item.perm & Permission.WRITE else 0,
        )
        for item in route.queue_datas
    ]
