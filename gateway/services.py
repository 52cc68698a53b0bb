"""What an adapter is handed when it serves: the parts of the gateway behind one object."""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.bans import Ban, Bans
from gateway.clients import ClientTable
from gateway.config import LimitsConfig
from gateway.flapping import Flapping
from gateway.identity import Identities
from gateway.metrics import Registry
from gateway.observing import Observer
from gateway.policy import Policy
from gateway.rules import facts_of
from gateway.throttle import Bucket, Throttle
from protocols import clock
from protocols.canonical import Call, Identity
from protocols.descriptors import for_clients
from protocols.directory import Directory
from protocols.errors import Code, Refused
from protocols.exchanges import Exchange
from protocols.observing import ClientInfo, Draining
from protocols.pipeline import Credentials, DeliveryStreams, Pipeline, Topics
from protocols.rocketmq import Brokers, HeldMessages, Replies
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.services")

JOIN_S_MAX: Final = 30.0
"""An admitted connection that has not joined by then is not counted any more."""


class _Admitted(NamedTuple):
    throttle: Throttle
    buckets: tuple[Bucket, ...]
    at: float


class Rules:
    """
    The rules in force, behind objects that stay the same over a reload.

    ``Permission`` and ``Authenticator`` of the services.
    """

    def __init__(self, policy: Policy, identities: Identities) -> None:
        self.policy = policy
        self.identities = identities

    @property
    def checks_receive(self) -> bool:
        return self.policy.acl.checks_receive

    def is_allowed(
        self,
        call: Call,
        operation: str,
        *,
        subject: str = "",
        topic: str = "",
        group: str = "",
        qos: int = -1,
    ) -> bool:
        return self.policy.acl.is_allowed(
            call, operation, subject=subject, topic=topic, group=group, qos=qos
        )

    def sees_all(self, call: Call, subject_filter: str) -> bool:
        return self.policy.acl.sees_all(call, subject_filter)

    @property
    def version(self) -> int:
        return self.policy.version

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        return await self.identities.authenticate(credentials)

    def recall(self, credentials: Credentials) -> Identity | None:
        return self.identities.recall(credentials)

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        return self.identities.begin(method, credentials)


class GatewayServices:
    """``Services``: plain attributes, and the two calls that are the edge's own."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        streams: DeliveryStreams,
        directory: Directory,
        topics: Topics,
        held: HeldMessages,
        replies: Replies,
        brokers: Brokers,
        rules: Rules,
        metrics: Registry,
        clients: ClientTable,
        bans: Bans,
        draining: Draining,
        observer: Observer,
        limits: LimitsConfig,
        opened: Callable[[str, str, int], None],
    ) -> None:
        self.pipeline = pipeline
        self.streams = streams
        self.directory = directory
        self.topics = topics
        self.held = held
        self.replies = replies
        self.brokers = brokers
        self.rules = rules
        self.authenticator = rules
        self.permission = rules
        self.metrics = metrics
        self.clients = clients
        self.bans = bans
        self.draining = draining
        self.observer = observer
        self._connections_max = min(limits.connections_max, for_clients())
        self._flapping = Flapping(limits.flapping) if limits.flapping is not None else None
        self._tasks = Tasks("services")
        self._opened = opened
        self._admitted: dict[tuple[str, str], _Admitted] = {}
        self._strays_at = 0.0
        self._refused = {
            reason: metrics.counter(
                "connections_refused", "Connections turned away at the door.", reason=reason
            )
            for reason in ("throttled", "full", "banned", "draining")
        }
        clients.on_left(self._left)

    def admit(self, call: Call) -> Code:
        """Bans and connection limits, asked once per connection."""
        if (ban := self.bans.find_call(call)) is not None:
            self._refused["banned"].inc()
            logger.info("%s %s is banned: %s", ban.kind, ban.value, ban.reason)
            return Code.FORBIDDEN
        if self._flapping is not None and self._is_flapping(self._flapping, call):
            self._refused["banned"].inc()
            return Code.FORBIDDEN
        if self.draining.is_on:
            self._refused["draining"].inc()
            return Code.HA_NOT_AVAILABLE
        if len(self.clients) >= self._connections_max:
            self._refused["full"].inc()
            return Code.HA_NOT_AVAILABLE
        throttle = self.rules.policy.throttle
        if not throttle.has_connections:
            return Code.OK
        now = clock.monotonic()
        verdict, buckets = throttle.connect(facts_of(call, "connect"), now)
        if verdict.refused_by:
            self._refused["throttled"].inc()
            logger.info("connection refused by throttle %s", verdict.refused_by)
            quota, rate = Code.LITE_TOPIC_QUOTA_EXCEEDED, Code.TOO_MANY_REQUESTS
            return quota if verdict.is_quota else rate
        if buckets:
            self._forget_strays(now)
            self._admitted[call.listener, call.peer] = _Admitted(throttle, buckets, now)
        return Code.OK

    def is_banned(self, *, peer: str, tenant: str = "", client_id: str = "") -> bool:
        """Before credentials are looked at."""
        found = self.bans.find(peer=peer, tenant=tenant, client_id=client_id)
        if found is not None:
            self._refused["banned"].inc()
        return found is not None

    def _is_flapping(self, flapping: Flapping, call: Call) -> bool:
        """Ban a client that came once too often."""
        if call.protocol != "mqtt" or not call.client_id:
            return False  # other protocols' clients share names
        if not flapping.connects(call.tenant, call.client_id, clock.monotonic()):
            return False
        now_ms = clock.wall_ms()
        ban = Ban(
            kind="client",
            value=call.client_id,
            tenant=call.tenant,
            at_ms=now_ms,
            until_ms=now_ms + flapping.config.ban,
            reason=f"over {flapping.config.connects} connections in its window",
            by="flapping",
        )
        logger.warning("client %s at %s flaps: banned", call.client_id, call.peer)
        self._tasks.start(self._ban(ban), name="ban")
        return True

    async def _ban(self, ban: Ban) -> None:
        try:
            await self.bans.add(ban)
        except Refused as error:
            logger.warning("ban not written: %s", error)

    async def close(self) -> None:
        await self._tasks.close()

    def listening(self, listener: str, host: str, port: int) -> None:
        """The adapter's socket is open."""
        self._opened(listener, host, port)

    def _left(self, info: ClientInfo) -> None:
        admitted = self._admitted.pop((info.listener, info.peer), None)
        if admitted is not None:
            admitted.throttle.disconnect(admitted.buckets)

    def _forget_strays(self, now: float) -> None:
        """Connections that were admitted and went away without joining; looked for at times."""
        if now < self._strays_at:
            return
        self._strays_at = now + JOIN_S_MAX
        present = {(info.listener, info.peer) for _, info in self.clients.items()}
        for key, admitted in list(self._admitted.items()):
            if key not in present and now - admitted.at > JOIN_S_MAX:
                del self._admitted[key]
                admitted.throttle.disconnect(admitted.buckets)
