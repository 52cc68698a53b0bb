"""What all connections of one remoting listener share."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from protocols import clock
from protocols.canonical import Call
from protocols.errors import Code, GatewayError, Refused
from protocols.pipeline import Services, TopicInfo
from protocols.remoting.batching import BatchTopics
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.mapping import is_retry_topic, qualified
from protocols.remoting.members import Members
from protocols.remoting.numbering import Numbering
from protocols.remoting.peer import Peer
from protocols.remoting.session import Session
from protocols.remoting.settings import RemotingSettings
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.remoting")

MISSING_S: Final = 1.0
"""How long a topic that was not there is not looked for again."""

MISSING_MAX: Final = 10_000

OFFSETS_S: Final = 1.0
"""How often committed offsets are written down (Apache: 5 s)."""

TEMPLATE: Final = "TBW102"
"""Topic whose route a producer takes for one that it does not find."""


class Front:
    """The listener's handler: a ``Session`` for each connection."""

    def __init__(self, listener: str, settings: RemotingSettings, services: Services) -> None:
        self.listener = listener
        self.settings = settings
        self.services = services
        self.tasks = Tasks(f"remoting/{listener}")
        self.members = Members(services.directory, self._group_changed)
        self.batch_topics = BatchTopics()
        self.numbering = Numbering(services.directory, services.topics)
        self.sessions: dict[Peer, Session] = {}
        self._made: set[str] = set()
        self._missing: dict[str, float] = {}
        self._sent = services.metrics.counter(
            "remoting_requests", "Requests of RocketMQ remoting clients.", listener=listener
        )

    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        session = self.sessions.get(peer)
        if session is None:
            session = self.sessions[peer] = Session(self, peer)
            peer.on_lost(self._lost)
        self._sent.inc(len(commands))
        session.receive(commands)

    def clients(self) -> list[Session]:
        return list(self.sessions.values())

    def _lost(self, peer: Peer) -> None:
        session = self.sessions.pop(peer, None)
        if session is not None:
            self.tasks.start(session.close(), name="close")

    async def close(self) -> None:
        """Clients keep what they hold for another gateway; then everything ends."""
        for session in list(self.sessions.values()):
            await session.end()
        self.sessions.clear()
        await self.members.write_offsets()
        self.members.close()
        await self.tasks.close()

    def _group_changed(self, group: str) -> None:
        """All members here are told to share the queues out again (40, oneway)."""
        for peer, session in self.sessions.items():
            if group in session.consumers:
                session.consumers[group].members_changed()
                fields = {"consumerGroup": group}
                peer.send_oneway(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields))

    def is_elsewhere(self, session: Session, group: str) -> bool:
        """The same client consumes for *group* over another connection to this gateway."""
        return any(
            other is not session and other.client_id == session.client_id
            for other in self.sessions.values()
            if group in other.consumers
        )

    def may_keep_batches(self, call: Call, topic: str) -> bool:
        return self.batch_topics.may_keep(qualified(call.tenant, topic))

    # ── topics ──────────────────────────────────────────────────────────────────────────

    async def topic(self, call: Call, name: str) -> TopicInfo | None:
        """The topic, made now if that is allowed; None if there is none. Raises Refused."""
        full = qualified(call.tenant, name)
        now = clock.monotonic()
        if self._missing.get(full, 0.0) > now:
            return None
        info = await self.services.topics.find(full, with_type=False)
        if info is not None:
            return info
        if self._may_make(call, name, full):
            self._made.add(full)  # many may ask at once
            logger.info("topic %s made for %s", full, call.client_id or call.peer)
            try:
                return await self.services.topics.create(full)
            except Refused as error:
                if error.code != Code.ILLEGAL_TOPIC:
                    raise
        if len(self._missing) >= MISSING_MAX:
            self._missing.clear()
        self._missing[full] = now + MISSING_S
        return None

    def _may_make(self, call: Call, name: str, full: str) -> bool:
        if not self.settings.auto_create_topics or is_retry_topic(name) or name == TEMPLATE:
            return False
        if full not in self._made and len(self._made) >= self.settings.auto_topics_max:
            return False
        return any(
            self.services.permission.is_allowed(call, operation, subject=name, topic=name)
            for operation in ("publish", "consume")
        )

    # ── time ────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Renew what clients hold and write offsets, until cancelled."""
        period_s = self.settings.invisible_ms / 3000
        renewed_at = clock.monotonic()
        while True:
            await asyncio.sleep(OFFSETS_S)
            await self.members.write_offsets()
            if clock.monotonic() >= renewed_at + period_s:
                renewed_at = clock.monotonic()
                await self._renew()

    async def _renew(self) -> None:
        for session in list(self.sessions.values()):
            for consumer in list(session.consumers.values()):
                try:
                    await consumer.renew()
                except GatewayError as error:
                    logger.info("renewal for %s: %s", consumer.group, error)
