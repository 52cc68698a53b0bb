"""
Held messages: the gateway's part in transactions and recalls.

Where a half message lies is told to its producer, so any gateway can end its transaction. Stores
ask how one ended at connections whose heartbeat names its producer group; a gateway names the
groups of the producers that are connected to it, and hands the questions on to one of them. All of
it by standard codes (34, 35, 37, 39, 370), so that Apache's brokers take part.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from gateway.clusters.apache.ends import Ends
from gateway.clusters.client import ClusterClient, RunningLink
from gateway.clusters.link import LinkState, StoreLink, refusal_of
from protocols.errors import Code, GatewayError, PeerError, Refused
from protocols.remoting.codes import RequestCode, ResponseCode, SysFlag
from protocols.remoting.command import RemotingCommand
from protocols.remoting.delays import parse_recall_handle
from protocols.remoting.headers import HeaderError, int_field
from protocols.remoting.records import decode_record
from protocols.rocketmq import HalfCheck, HalfPlace
from protocols.tasks import Tasks, every

logger = logging.getLogger("tidegate.held")

BEAT_S: Final = 30.0
"""How often the stores hear of producer groups (they forget them after 120 s)."""

GROUPS_MAX: Final = 10_000
"""Producer groups announced; transactions of more are not asked about here."""

Check = Callable[[HalfCheck], None]


class GatewayHeld:
    """Implements ``protocols.pipeline.HeldMessages``."""

    def __init__(self, clusters: Mapping[str, ClusterClient], gateway: str) -> None:
        self._clusters = clusters
        self._client_id = f"tidegate@{gateway}"
        self._checks: dict[str, list[Check]] = {}
        self._turn = 0
        self._ends = Ends()
        self._tasks = Tasks("held")
        self._is_announcing = False
        for cluster in clusters.values():
            cluster.listen(self)

    def start(self) -> None:
        self._tasks.start(every(BEAT_S, self._announce), name="producers")

    async def close(self) -> None:
        await self._tasks.close()

    # ── ends ────────────────────────────────────────────────────────────────────────────

    async def end_transaction(self, place: HalfPlace, *, is_commit: bool) -> None:
        how = SysFlag.TRANSACTION_COMMIT if is_commit else SysFlag.TRANSACTION_ROLLBACK
        table_offset = place.table_offset if place.table_offset >= 0 else place.position
        fields = {
            "producerGroup": place.group,
            "tranStateTableOffset": str(table_offset),
            "commitLogOffset": str(place.position),
            "commitOrRollback": str(int(how)),
            "fromTransactionCheck": "false",
            "bname": place.broker,
        }
        link = self._link(place.broker, place.cluster)
        command = RemotingCommand(RequestCode.END_TRANSACTION, fields)
        if link.capabilities.is_tidegate:
            await self._done(link, command, place.group)
            return
        place = place._replace(cluster=link.cluster)
        end = self._ends.begin(place)
        if end.is_first:
            try:
                await self._done(link, command, place.group)
            except BaseException:
                self._ends.forget(place)
                raise
            end.is_done = True
        elif end.has_left_a_copy(place):
            fields["commitOrRollback"] = str(int(SysFlag.TRANSACTION_ROLLBACK))
            await self._done(link, command, place.group)

    async def recall(self, topic: str, handle: str) -> str:
        told = parse_recall_handle(handle)
        if told is None or told.topic != topic:
            hint = "the recall handle is none of this topic's"
            raise Refused(Code.PRECONDITION_FAILED, topic, hint)
        fields = {
            "producerGroup": self._client_id,
            "topic": topic,
            "recallHandle": handle,
            "bname": told.broker,
        }
        link = self._link(told.broker)
        await self._done(link, RemotingCommand(RequestCode.RECALL_MESSAGE, fields), topic)
        return told.message_id

    async def _done(self, link: RunningLink, command: RemotingCommand, subject: str) -> None:
        answer = await link.ask(command)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, subject)

    def _link(self, broker: str, cluster: str = "") -> RunningLink:
        for name, client in self._clusters.items():
            if cluster in ("", name) and broker in client.links:
                return client.link(broker)
        raise Refused(Code.HA_NOT_AVAILABLE, broker, f"store {broker} is away")

    # ── questions ───────────────────────────────────────────────────────────────────────

    def answer_checks(self, group: str, check: Check) -> Callable[[], None]:
        checks = self._checks.get(group)
        if checks is None:
            if len(self._checks) >= GROUPS_MAX:
                logger.warning("producer group %s is not announced: too many", group)
                return lambda: None
            checks = self._checks[group] = []
            self._announce_soon()
        checks.append(check)
        return partial(self._stop, group, check)

    def _stop(self, group: str, check: Check) -> None:
        checks = self._checks.get(group, [])
        if check in checks:
            checks.remove(check)
        if not checks and self._checks.pop(group, None) is not None:
            fields = {"clientID": self._client_id, "producerGroup": group}
            for link in self._up_links():
                command = RemotingCommand(RequestCode.UNREGISTER_CLIENT, dict(fields))
                self._tasks.start(self._tell(link, command), name="leave")

    def _checked(self, link: StoreLink, command: RemotingCommand) -> None:
        """A store's question, to one of the producers of the group."""
        try:
            message = decode_record(bytes(command.body), cluster=link.cluster, broker=link.broker)
            position = int_field(command.fields, "commitLogOffset")
            table_offset = int_field(command.fields, "tranStateTableOffset")
        except (PeerError, HeaderError) as error:
            logger.warning("store %s asks what cannot be read: %s", link.broker, error)
            return
        group = message.properties.get("PGROUP", "")
        checks = self._checks.get(group)
        if not checks:
            return  # the last of them has just gone: the store asks again, perhaps elsewhere
        self._turn += 1
        place = HalfPlace(
            link.cluster, link.broker, position, table_offset, group, message.message_id
        )
        checks[self._turn % len(checks)](HalfCheck(place, message))

    # ── announcing ──────────────────────────────────────────────────────────────────────

    def _up_links(self) -> list[RunningLink]:
        return [link for cluster in self._clusters.values() for link in cluster.up_links()]

    def _announce_soon(self) -> None:
        """One heartbeat for all groups that appear in a tick."""
        if not self._is_announcing:
            self._is_announcing = True
            self._tasks.start(self._announce(), name="announce")

    async def _announce(self) -> None:
        self._is_announcing = False
        for link in self._up_links():
            await self._announce_at(link)

    async def _announce_at(self, link: StoreLink) -> None:
        if not self._checks:
            return
        body = {
            "clientID": self._client_id,
            "producerDataSet": [{"groupName": group} for group in self._checks],
            "consumerDataSet": [],
        }
        data = msgspec.json.encode(body)
        await self._tell(link, RemotingCommand(RequestCode.HEART_BEAT, None, data))

    async def _tell(self, link: StoreLink, command: RemotingCommand) -> None:
        try:
            await link.ask(command)
        except GatewayError as error:
            logger.info("producers at store %s: %s", link.broker, error)

    # ── ClusterListener ─────────────────────────────────────────────────────────────────

    def link_changed(self, link: StoreLink) -> None:
        if link.state is LinkState.UP:
            link.on_check = self._checked
            self._tasks.start(self._announce_at(link), name=f"producers at {link.broker}")

    def link_cleared(self) -> None:
        """Only publishers care."""

    def routes_changed(self, cluster: ClusterClient) -> None:
        """Links tell what matters here."""

    def reroute(self, runs: object) -> None:
        """Only the pipeline sends."""
