"""
Gateways that watch the routes: a held request, answered when something changed.

What a watcher lacks is told by change (``changes``), so that a topic among twenty thousand costs
one row; after a restart, or when it is too far behind, it is told everything.
"""

import asyncio
import secrets
import zlib
from typing import Final

import msgspec

from namesrv.members import MemberFile
from namesrv.registry import Registry
from namesrv.routes import MASTER_ID
from protocols import clock
from protocols.errors import PeerError
from protocols.remoting.bodies import QueueData
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import (
    DEFLATED,
    BrokerFacts,
    RouteChanges,
    RouteWatch,
    TopicRow,
    encode_body,
)
from protocols.remoting.peer import Peer

GATHER_S: Final = 0.02
"""Changes of so long a time go in one answer."""

WAIT_S_MAX: Final = 30.0
DEFLATE_BYTES: Final = 64 << 10
"""Answers from this size on are deflated (names repeat: to about a tenth)."""


class _Held:
    """One request that waits."""

    __slots__ = ("command", "timer", "watch")

    def __init__(self, command: RemotingCommand, watch: RouteWatch) -> None:
        self.command = command
        self.watch = watch
        self.timer: asyncio.TimerHandle | None = None


class Watchers:
    """At most one held request for each connection: a second one releases the first."""

    def __init__(self, registry: Registry, members: MemberFile) -> None:
        self.instance = secrets.token_hex(8)
        """Versions of another process say nothing about ours."""

        self._registry = registry
        self._members = members
        self._held: dict[Peer, _Held] = {}
        self._told_version = 0
        self._gather: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._held)

    def ask(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        """The answer if there is news, else None: it is sent later. Raises PeerError."""
        try:
            watch = msgspec.msgpack.decode(command.body, type=RouteWatch)
        except msgspec.MsgspecError as error:
            raise PeerError(f"ROUTE_WATCH: {error}") from error
        self._release(peer)
        version = self._registry.routes.changes.version
        if watch.instance != self.instance or watch.since < version or watch.wait_ms <= 0:
            return self._answer(command, watch)
        held = self._held[peer] = _Held(command, watch)
        held.timer = asyncio.get_running_loop().call_later(
            min(watch.wait_ms / 1000, WAIT_S_MAX), self._release, peer
        )
        return None

    def lost(self, peer: Peer) -> None:
        """Its connection has gone: nothing to answer."""
        held = self._held.pop(peer, None)
        if held is not None and held.timer is not None:
            held.timer.cancel()

    def tell(self) -> None:
        """Call after anything that may have changed the routes."""
        version = self._registry.routes.changes.version
        if version == self._told_version or self._gather is not None:
            return
        self._told_version = version
        if self._held:
            self._gather = asyncio.get_running_loop().call_later(GATHER_S, self._tell_all)

    def close(self) -> None:
        if self._gather is not None:
            self._gather.cancel()
        for peer in list(self._held):
            self.lost(peer)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _tell_all(self) -> None:
        self._gather = None
        self._told_version = self._registry.routes.changes.version
        for peer in list(self._held):
            self._release(peer)

    def _release(self, peer: Peer) -> None:
        held = self._held.get(peer)
        if held is None:
            return
        self.lost(peer)
        peer.send((self._answer(held.command, held.watch),))

    def _answer(self, command: RemotingCommand, watch: RouteWatch) -> RemotingCommand:
        body = encode_body(self._changes(watch))
        if len(body) < DEFLATE_BYTES:
            return command.answer(0, {}, body)
        return command.answer(0, {DEFLATED: "true"}, zlib.compress(body, 1))

    def _changes(self, watch: RouteWatch) -> RouteChanges:
        routes = self._registry.routes
        wanted = {
            name for name, broker in routes.brokers.items() if watch.cluster in ("", broker.cluster)
        }
        pairs = None
        if watch.instance == self.instance:
            pairs = routes.changes.since(watch.since)
        rows: dict[str, list[TopicRow]] = {}
        if pairs is None:
            for topic, queues in routes.tables():
                if queues.broker_name in wanted:
                    rows.setdefault(queues.broker_name, []).append(_row(topic, queues))
        else:
            for name, topic in pairs:
                if name in wanted:
                    rows.setdefault(name, []).append(_row(topic, routes.queues(topic, name)))
        return RouteChanges(
            instance=self.instance,
            version=routes.changes.version,
            is_full=pairs is None,
            brokers=[self._facts(name) for name in sorted(wanted)],
            topics=rows,
            expected=self._members.expected(clock.monotonic(), watch.cluster),
        )

    def _facts(self, name: str) -> BrokerFacts:
        broker = self._registry.routes.brokers[name]
        address = broker.broker_addrs.get(MASTER_ID, "")
        speaker = broker.broker_addrs[min(broker.broker_addrs)]
        version = self._registry.data_version(broker.cluster, speaker)
        return BrokerFacts(
            name=name,
            cluster=broker.cluster,
            address=address,
            zone=broker.zone_name or "",
            table=(version.state_version, version.timestamp, version.counter)
            if version is not None
            else (0, 0, 0),
        )


def _row(topic: str, queues: QueueData | None) -> TopicRow:
    if queues is None:
        return (topic, -1, -1, 0)
    return (topic, queues.read_queue_nums, queues.write_queue_nums, queues.perm)
