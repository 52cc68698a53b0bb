"""
Request and reply: answers to the requests of this gateway's clients, and from them.

A request that passes here names this gateway as who waits, so a broker of any kind pushes its
answer to our link (326); the request's own id then leads to the client. What answers a client
elsewhere goes to the brokers (324), one of which knows it. A gateway forgets a request when its
client has stopped waiting.
"""

import logging
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Final

import msgspec

from gateway.clusters.client import ClusterClient, RunningLink
from gateway.clusters.link import LinkState, StoreLink
from gateway.topics import GatewayTopics
from protocols import clock
from protocols.errors import Code, GatewayError, Refused
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import HeaderError
from protocols.remoting.peer import Peer
from protocols.remoting.replying import reply_of, send_reply
from protocols.rocketmq import Push, Reply
from protocols.tasks import Tasks, every

logger = logging.getLogger("tidegate.replies")

BEAT_S: Final = 30.0
"""How often the stores hear of this gateway as a client (they forget it after 120 s)."""

GROUP: Final = "TIDEGATE_REQUESTS"
"""Producer group under which brokers know this gateway as one that waits for answers."""

WAITING_MAX: Final = 100_000
"""Requests without an answer; more are refused."""

WAIT_MS_MAX: Final = 3600_000
"""No request is remembered for longer, however long its client says it waits."""


class GatewayReplies:
    """Implements ``protocols.pipeline.Replies``."""

    def __init__(
        self, clusters: Mapping[str, ClusterClient], topics: GatewayTopics, gateway: str
    ) -> None:
        self._clusters = clusters
        self._topics = topics
        self._client_id = f"tidegate-requests@{gateway}"
        self._waiting: dict[str, Push] = {}
        self._ends: list[tuple[float, str]] = []
        self._known_at: set[StoreLink] = set()
        """Links whose broker knows us as a client."""

        self._has_asked = False
        self._tasks = Tasks("replies")
        for cluster in clusters.values():
            cluster.listen(self)

    def start(self) -> None:
        self._tasks.start(every(BEAT_S, self._beat), name="beat")

    async def close(self) -> None:
        await self._tasks.close()

    # ── requests ────────────────────────────────────────────────────────────────────────

    async def asking(
        self, topic: str, request_id: str, wait_ms: int, push: Push
    ) -> tuple[str, str]:
        now = clock.monotonic()
        self._forget(now)
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(Code.TOO_MANY_REQUESTS, topic, "too many requests wait for an answer")
        if request_id in self._waiting:
            raise Refused(Code.ILLEGAL_MESSAGE_ID, topic, "this correlation id is in use")
        self._has_asked = True
        for link in self._up_links():
            if link not in self._known_at:
                await self._announce(link)
        self._waiting[request_id] = push
        until = now + min(max(wait_ms, 0), WAIT_MS_MAX) / 1000
        heappush(self._ends, (until, request_id))
        return self._client_id, self._topics.home(topic).routes.broker_cluster

    def _forget(self, now: float) -> None:
        """Requests nobody waits for any more."""
        while self._ends and self._ends[0][0] <= now:
            self._waiting.pop(heappop(self._ends)[1], None)

    # ── answers ─────────────────────────────────────────────────────────────────────────

    async def answer(self, reply: Reply) -> None:
        if reply.to == self._client_id:
            await self._hand_over(reply)
            return
        hint = "no store is up"
        for link in self._up_links():
            try:
                told = await link.ask(send_reply(reply))
            except GatewayError as error:
                hint = str(error)
                continue
            if told.code == ResponseCode.SUCCESS:
                return
            hint = told.remark
        raise Refused(Code.INTERNAL_ERROR, reply.topic, hint)

    async def _hand_over(self, reply: Reply) -> None:
        """Each request has one answer: the first."""
        push = self._waiting.pop(reply.request_id, None)
        if push is None:
            raise Refused(Code.INTERNAL_ERROR, reply.topic, "nobody waits for this answer")
        await push(reply)

    def _pushed(self, peer: Peer, command: RemotingCommand) -> None:
        """A broker hands us an answer."""
        self._tasks.start(self._take(peer, command), name="reply")

    async def _take(self, peer: Peer, command: RemotingCommand) -> None:
        answer = command.answer()
        try:
            await self._hand_over(reply_of(command))
        except (HeaderError, GatewayError) as error:
            answer = command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if not command.is_oneway:
            peer.send((answer,))

    # ── being known ─────────────────────────────────────────────────────────────────────

    def _up_links(self) -> list[RunningLink]:
        return [link for cluster in self._clusters.values() for link in cluster.up_links()]

    async def _beat(self) -> None:
        self._forget(clock.monotonic())
        if self._has_asked:
            for link in self._up_links():
                await self._announce(link)

    async def _announce(self, link: StoreLink) -> None:
        body = {
            "clientID": self._client_id,
            "producerDataSet": [{"groupName": GROUP}],
            "consumerDataSet": [],
        }
        try:
            answer = await link.ask(
                RemotingCommand(RequestCode.HEART_BEAT, None, msgspec.json.encode(body))
            )
        except GatewayError as error:
            logger.info("requests at store %s: %s", link.broker, error)
            return
        if answer.code == ResponseCode.SUCCESS and link.state is LinkState.UP:
            self._known_at.add(link)

    # ── ClusterListener ─────────────────────────────────────────────────────────────────

    def link_changed(self, link: StoreLink) -> None:
        self._known_at.discard(link)
        if link.state is LinkState.UP:
            link.on_reply = self._pushed
            if self._has_asked:
                self._tasks.start(self._announce(link), name=f"requests at {link.broker}")

    def link_cleared(self) -> None:
        """Only publishers care."""

    def routes_changed(self, cluster: ClusterClient) -> None:
        """Links tell what matters here."""

    def reroute(self, runs: object) -> None:
        """Only the pipeline sends."""
