"""What an adapter is handed when it serves: the parts of the gateway behind one object."""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.clients import ClientTable
from gateway.identity import Identities
from gateway.metrics import Registry
from gateway.policy import Policy
from gateway.rules import facts_of
from gateway.throttle import Bucket, Throttle
from protocols import clock
from protocols.canonical import Call, Identity
from protocols.errors import Code
from protocols.pipeline import (
    ClientInfo,
    Credentials,
    DeliveryStreams,
    Directory,
    Pipeline,
    Topics,
)

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


class GatewayServices:
    """``Services``: plain attributes, and the two calls that are the edge's own."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        streams: DeliveryStreams,
        directory: Directory,
        topics: Topics,
        rules: Rules,
        metrics: Registry,
        clients: ClientTable,
        connections_max: int,
        opened: Callable[[str, str, int], None],
    ) -> None:
        self.pipeline = pipeline
        self.streams = streams
        self.directory = directory
        self.topics = topics
        self.rules = rules
        self.authenticator = rules
        self.permission = rules
        self.metrics = metrics
        self.clients = clients
        self._connections_max = connections_max
        self._opened = opened
        self._admitted: dict[tuple[str, str], _Admitted] = {}
        self._refused = {
            reason: metrics.counter(
                "connections_refused", "Connections turned away at the door.", reason=reason
            )
            for reason in ("throttled", "full")
        }
        clients.on_left(self._left)

    def admit(self, call: Call) -> Code:
        """Connection limits: OK or TOO_MANY_REQUESTS, asked once per connection."""
        if len(self.clients) >= self._connections_max:
            self._refused["full"].inc()
            return Code.TOO_MANY_REQUESTS
        throttle = self.rules.policy.throttle
        now = clock.monotonic()
        verdict, buckets = throttle.connect(facts_of(call, "connect"), now)
        if verdict.refused_by:
            self._refused["throttled"].inc()
            logger.info("connection refused by throttle %s", verdict.refused_by)
            return Code.TOO_MANY_REQUESTS
        if buckets:
            self._forget_strays(now)
            self._admitted[call.listener, call.peer] = _Admitted(throttle, buckets, now)
        return Code.OK

    def listening(self, listener: str, host: str, port: int) -> None:
        """The adapter's socket is open."""
        self._opened(listener, host, port)

    def _left(self, info: ClientInfo) -> None:
        admitted = self._admitted.pop((info.listener, info.peer), None)
        if admitted is not None:
            admitted.throttle.disconnect(admitted.buckets)

    def _forget_strays(self, now: float) -> None:
        """Connections that were admitted and went away without joining."""
        present = {(info.listener, info.peer) for _, info in self.clients.items()}
        for key, admitted in list(self._admitted.items()):
            if key not in present and now - admitted.at > JOIN_S_MAX:
                del self._admitted[key]
                admitted.throttle.disconnect(admitted.buckets)
