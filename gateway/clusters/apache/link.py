"""
``StoreLink`` for an unmodified Apache broker.

One connection; a heartbeat keeps it and shows that the broker lives. See ``light`` for what a group
means here and ``fetching`` for how its queues are read.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Final

from gateway.clusters.apache import APACHE, pop, requests
from gateway.clusters.apache.fetching import LightFetching
from gateway.clusters.apache.light import LightGroup, LightStream
from gateway.clusters.apache.mqtt_nodes import Filters
from gateway.clusters.apache.offsets import Offsets
from gateway.clusters.apache.polling import ApachePolls
from gateway.clusters.apache.requests import COMMIT_BIAS
from gateway.clusters.apache.sender import ApacheSender
from gateway.clusters.batches import Run
from gateway.clusters.connection import Connect, Sign
from gateway.clusters.link import (
    ASK_S_MAX,
    AckAnswered,
    HandlesAnswered,
    LinkState,
    StoreLink,
    StreamPort,
    refusal_of,
)
from gateway.clusters.standard import create_topic, pull, search_offset
from protocols import clock
from protocols.canonical import Delivery, Properties, QueueRef, ReceiptHandle, StoredMessage
from protocols.errors import Code, PeerError, Refused
from protocols.groups import GroupSpec, PopRequest, QueueStat
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Answered, Peer
from protocols.remoting.settling import AckAction, AckItem, MarkItem
from protocols.remoting.templates import RecordTemplate
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.clusters")

CHANGES: Final = frozenset((AckAction.CHANGE, AckAction.RENEW))
HEARTBEAT_S: Final = 10.0
REQUEST_S_MAX: Final = 5.0
FETCH_S_MAX: Final = 25.0
"""A pull waits ``PULL_SUSPEND_MS`` at the broker."""

BACK_OFF_S_MIN: Final = 0.05
BACK_OFF_S_MAX: Final = 1.0


class ApacheLink:
    """Implements ``StoreLink`` with standard codes."""

    def __init__(
        self,
        cluster: str,
        broker: str,
        connect: Connect,
        *,
        changed: Callable[["ApacheLink"], None],
        sign: Sign | None = None,
        node_filters: Callable[[], Filters] = dict,
    ) -> None:
        self.cluster = cluster
        self.broker = broker
        self.capabilities = APACHE
        self.state = LinkState.DOWN
        self.store_epoch = 0
        self.on_check: Callable[[StoreLink, RemotingCommand], None] | None = None
        self.on_reply: Callable[[Peer, RemotingCommand], None] | None = None
        self._connect = connect
        self._changed = changed
        self._sign = sign
        self._client: RemotingClient | None = None
        self._sender = ApacheSender(cluster, broker, self._ask, node_filters)
        self._polls = ApachePolls(
            cluster,
            broker,
            lambda command, timeout_s: self._request(command, timeout_s=timeout_s),
            lambda changes: self.ack_handles(changes, lambda results: None),
        )
        self._offsets = Offsets(broker, lambda command: self._request(command))
        self._tasks = Tasks(f"apache/{cluster}/{broker}")
        self._groups: dict[str, LightGroup] = {}
        self._by_number: dict[int, LightGroup] = {}
        self._by_stream: dict[int, LightGroup] = {}
        self._fetching = LightFetching(
            cluster,
            broker,
            lambda command: self._request(command, timeout_s=FETCH_S_MAX),
            is_read=lambda group: self._groups.get(group.spec.name) is group,
            fetched=self._grant,
        )
        self._next_number = 1
        self._is_flush_due = False

    # ── life ────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        back_off = BACK_OFF_S_MIN
        try:
            while True:
                try:
                    await self._live()
                    back_off = BACK_OFF_S_MIN
                except Refused as error:
                    logger.warning("broker %s: %s", self.broker, error)
                await asyncio.sleep(back_off)
                back_off = min(back_off * 2, BACK_OFF_S_MAX)
        finally:
            self._lost()
            await self._polls.close()
            await self._fetching.close()
            await self._tasks.close()

    async def _live(self) -> None:
        """One life of the connection."""
        client = await self._connect(self._pushed)
        try:
            client_id = f"tidegate@{client.peer.local_address or id(client)}"
            await self._beat(client, client_id)
            self._client = client
            self._sender.is_open = self._fetching.is_open = True
            self.state = LinkState.UP
            self._changed(self)
            self._resume()
            while client.is_open:
                await asyncio.sleep(HEARTBEAT_S)
                await self._beat(client, client_id)
        finally:
            self._lost()
            await client.close()

    def _pushed(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        """Questions about transactions, answers to requests; other news are nothing to us."""
        for command in commands:
            if command.code == RequestCode.CHECK_TRANSACTION_STATE and self.on_check:
                self.on_check(self, command)
            elif command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and self.on_reply:
                self.on_reply(peer, command)

    async def ask(
        self, command: RemotingCommand, *, timeout_s: float = ASK_S_MAX
    ) -> RemotingCommand:
        return await self._open_client().request(self._signed(command), timeout_s)

    async def _beat(self, client: RemotingClient, client_id: str) -> None:
        command = self._signed(requests.heart_beat(client_id))
        answer = await client.request(command, REQUEST_S_MAX)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, self.broker)

    def _resume(self) -> None:
        self.flush()
        for group in self._groups.values():
            self._fetching.begin(group)

    def _lost(self) -> None:
        if self.state is LinkState.DOWN:
            return
        self._client = None
        self._sender.is_open = self._fetching.is_open = False
        self.state = LinkState.DOWN
        for stream, group in list(self._by_stream.items()):
            port = group.streams[stream].port
            group.end_stream(stream)
            del self._by_stream[stream]
            port.lost(self)
        self._changed(self)

    def check(self, now: float) -> None:
        """Nothing to look after once a second: the heartbeat does it."""

    # ── sends ───────────────────────────────────────────────────────────────────────────

    @property
    def is_congested(self) -> bool:
        return self._sender.is_congested

    @property
    def is_clear(self) -> bool:
        return not self._sender.is_congested

    def template(self, topic: str, text: Properties | bytes, born_host: bytes) -> RecordTemplate:
        return RecordTemplate(topic, text, born_host=born_host)

    def submit(self, run: Run) -> None:
        self._sender.submit(run)

    def take_pending(self, *, everything: bool = False) -> list[Run]:
        return self._sender.take_pending(everything=everything)

    def give_up(self, keeps: Callable[[Run], bool]) -> bool:
        return False  # refused when the connection was lost: such a broker tells nothing later

    def flush(self) -> None:
        self._is_flush_due = False
        self._sender.flush(clock.wall_ms())

    def _ask(self, command: RemotingCommand, answered: Answered) -> None:
        self._open_client().call(self._signed(command), answered)

    # ── groups and streams ──────────────────────────────────────────────────────────────

    async def open_group(self, spec: GroupSpec, *, start: str = "") -> int:
        if pop.is_popped_by_broker(spec.name):
            return 0  # the broker keeps it, and makes it at the first pop
        group = self._groups.get(spec.name)
        if group is not None and await self._offsets.was_elsewhere(group, spec):
            await self.drop_group(spec.name, spec.owner_epoch)
            group = None
        if group is None:
            group = LightGroup(self._next_number, spec, self.cluster, self.broker)
            self._next_number += 1
            self._groups[spec.name] = self._by_number[group.number] = group
        for topic, tag in group.missing_topics(spec):
            group.add_queue(topic, tag, await self._offsets.start_of(spec, topic))
        group.use(spec)
        return group.number

    async def drop_group(self, name: str, owner_epoch: int) -> None:
        group = self._groups.pop(name, None)
        if group is not None:
            del self._by_number[group.number]

    def new_stream(self) -> int:
        """A number for a stream."""
        stream, self._next_number = self._next_number, self._next_number + 1
        return stream

    async def open_stream(
        self,
        stream: int,
        group: int,
        spec: GroupSpec,
        port: StreamPort,
        *,
        credit: int,
        holds: Sequence[tuple[int, int]],
        is_resuming: bool,
    ) -> int:
        found = self._by_number.get(group)
        if found is None:
            raise Refused(Code.CONSUMER_GROUP_NOT_FOUND, spec.name, "open the group first")
        found.streams[stream] = LightStream(number=stream, port=port, credit=credit)
        self._by_stream[stream] = found
        self._fetching.begin(found)
        self._grant(found)
        return 0

    def set_credit(self, stream: int, total: int) -> None:
        group = self._by_stream.get(stream)
        if group is not None:
            group.streams[stream].credit = total
            self._grant_soon(group)

    async def reclaim_credit(self, stream: int, total: int) -> None:
        group = self._by_stream.get(stream)
        if group is not None:
            group.streams[stream].credit = total

    async def retire_stream(self, stream: int) -> None:
        self.set_credit(stream, 0)

    async def close_stream(self, stream: int) -> None:
        group = self._by_stream.pop(stream, None)
        if group is not None:
            group.end_stream(stream)
            self._grant(group)

    def _grant_soon(self, group: LightGroup) -> None:
        asyncio.get_running_loop().call_soon(self._grant, group)

    def _grant(self, group: LightGroup) -> None:
        """Hand out what is ready, fetch what there is room for."""
        for stream, deliveries in group.grant_streams():
            for _, stretch in groupby(deliveries, lambda delivery: delivery.packet_id > 0):
                stream.port.arrived(self, [*stretch])
        self._fetching.begin(group)

    # ── acks ────────────────────────────────────────────────────────────────────────────

    def ack(self, epoch: int, items: Sequence[AckItem], answered: AckAnswered | None) -> None:
        results: list[tuple[int, int]] = []
        touched: dict[int, LightGroup] = {}
        for item in items:
            group = self._by_number.get(item.group)
            if group is None:
                results.append((item.grant, Code.INVALID_RECEIPT_HANDLE))
                continue
            grant, code = group.settle(item)
            results.append((grant, code))
            touched[item.group] = group
            if item.action in CHANGES and item.delay_ms and code == Code.OK:
                self._expire_later(group, item.position, grant, item.delay_ms)
        for group in touched.values():
            self._commit(group)
            self._grant_soon(group)
        if answered is not None:
            asyncio.get_running_loop().call_soon(answered, results)

    def _expire_later(self, group: LightGroup, position: int, grant: int, delay_ms: int) -> None:
        def expire() -> None:
            group.expire(position, grant)
            self._grant(group)

        asyncio.get_running_loop().call_later(delay_ms / 1000, expire)

    def _commit(self, group: LightGroup) -> None:
        """Write the offsets that moved; an unanswered one costs a redelivery after a crash."""
        name = requests.light_group(group.spec.name)
        for queue, offset in group.due_commits():
            if self._client is not None:
                command = requests.commit(name, queue.topic, offset + COMMIT_BIAS, self.broker)
                self._client.peer.send_oneway(self._signed(command))

    def ack_handles(
        self,
        changes: Sequence[tuple[ReceiptHandle, int, int]],
        answered: HandlesAnswered,
    ) -> None:
        self._tasks.start(self._ack_handles(list(changes), answered), name="ack")

    async def _ack_handles(
        self, changes: Sequence[tuple[ReceiptHandle, int, int]], answered: HandlesAnswered
    ) -> None:
        """(code, new handle) of each (handle, action, delay ms)."""
        answered(await asyncio.gather(*[self._ack_handle(*change) for change in changes]))

    async def _ack_handle(
        self, handle: ReceiptHandle, action: int, delay_ms: int
    ) -> tuple[int, ReceiptHandle | None]:
        if not pop.is_popped_by_broker(handle.group_name):
            item = AckItem(handle.group, handle.position, handle.grant, action, delay_ms)
            results: asyncio.Future[tuple[int, int]]
            results = asyncio.get_running_loop().create_future()
            self.ack(0, [item], lambda found: results.set_result(found[0] if found else (0, 0)))
            grant, code = await results
            return code, handle._replace(grant=grant)
        try:
            if action == AckAction.ACK:
                answer = await self._request(pop.ack(handle))
                is_known = answer.code in (ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE)
                return (Code.OK if is_known else refusal_of(answer, handle.topic).code), None
            answer = await self._request(pop.change(handle, delay_ms))
            if answer.code != ResponseCode.SUCCESS:
                return Code.INVALID_RECEIPT_HANDLE, None
            return Code.OK, pop.changed(handle, answer)
        except Refused as error:
            return error.code, None
        except PeerError:
            return Code.INTERNAL_SERVER_ERROR, None

    def mark(self, epoch: int, items: Sequence[MarkItem]) -> None:
        for item in items:
            group = self._by_number.get(item.group)
            if group is not None:
                group.mark(item)

    def renew(self, reason: str) -> None:
        """Nothing is kept there by connection."""

    async def mark_durably(self, epoch: int, items: Sequence[MarkItem]) -> bool:
        """Only remembered here: an Apache broker has no place for it (see ``APACHE``)."""
        self.mark(epoch, items)
        return True

    # ── pop ─────────────────────────────────────────────────────────────────────────────

    async def pop(self, request: PopRequest, *, count: int, wait_ms: int) -> list[Delivery]:
        if not pop.is_popped_by_broker(request.group.name):
            return await self._pop_light(request, count, wait_ms)
        return await self._polls.pop(request, count, wait_ms)

    async def adopt(self, spec: GroupSpec, taker: str, invisible_ms: int) -> list[Delivery]:
        """An Apache broker does not know who popped what: it comes again when its time is over."""
        return []

    async def _pop_light(self, request: PopRequest, count: int, wait_ms: int) -> list[Delivery]:
        await self.open_group(request.group)
        group = self._groups[request.group.name]
        self._fetching.begin(group)
        deadline = clock.monotonic() + max(wait_ms, 50) / 1000
        while not group.ready_count and (left := deadline - clock.monotonic()) > 0:
            self._fetching.arrived.clear()
            try:
                async with asyncio.timeout(left):
                    await self._fetching.arrived.wait()
            except TimeoutError:
                break
        found = group.take(count, request.invisible_ms, clock.wall_ms())
        for delivery in found:
            handle = delivery.handle
            self._expire_later(group, handle.position, handle.grant, request.invisible_ms)
        return found

    # ── queues ──────────────────────────────────────────────────────────────────────────

    async def create_queue(self, ref: QueueRef, policy: Mapping[str, int | str]) -> None:
        """Light queues come into being with their first message; policies are not kept here."""
        self._open_client()

    async def delete_queue(self, ref: QueueRef, group: str) -> QueueStat:
        counts = await self.stat_queue(ref, group)
        await self.drop_group(group, 0)
        return counts

    async def purge_queue(self, ref: QueueRef, group: str) -> int:
        found = self._groups.get(group)
        counts = await self.stat_queue(ref, group)
        if found is not None:
            found.purge()
            for queue in found.queues.values():
                queue.next_offset = max(queue.next_offset, counts.stored_count)
            self._commit(found)
        return counts.ready_count

    async def stat_queue(self, ref: QueueRef, group: str) -> QueueStat:
        """Counts as of now, from offsets: exact while one gateway reads the queue."""
        topic = requests.light_topic(ref)
        end = await self._offsets.bound(RequestCode.GET_MAX_OFFSET, topic)
        found = self._groups.get(group)
        if found is None:
            start = max(0, await self._offsets.committed(group, topic))
            return QueueStat(max(0, end - start), 0, end)
        queue = found.queues.get(topic)
        unread = max(0, end - queue.next_offset) if queue is not None else 0
        return QueueStat(unread + found.ready_count, found.in_flight_count, end)

    async def retained(self, tenant: str, subject_filters: Sequence[str]) -> list[StoredMessage]:
        return []  # no compacted light queue there: listed in ``APACHE``

    # ── the rest ────────────────────────────────────────────────────────────────────────

    def take_withdrawn(self) -> list[Run]:
        return []  # without once-keys nothing is

    async def release_once(self, keys: Sequence[bytes]) -> None:
        """Apache has no once-keys."""

    async def find_once(self, keys: Sequence[bytes]) -> Sequence[int]:
        return bytes(len(keys))

    async def fence(self, gateway: str, gateway_epoch: int) -> None:
        """Apache has no fences: a woken gateway may still send with an old table."""

    async def create_topic(self, topic: str, queue_count: int) -> int:
        return await create_topic(self._open_client(), topic, queue_count)

    async def read(
        self, topic: str, queue_id: int, offset: int, count: int, wait_ms: int
    ) -> tuple[list[StoredMessage], int, int]:
        client = self._open_client()
        return await pull(
            client, topic, queue_id, offset, count, wait_ms, self.cluster, self.broker
        )

    async def offset(self, topic: str, queue_id: int, at_ms: int) -> int:
        return await search_offset(self._open_client(), topic, queue_id, at_ms)

    def _open_client(self) -> RemotingClient:
        if self._client is None:
            raise Refused(Code.HA_NOT_AVAILABLE, self.broker, "the broker cannot be reached")
        return self._client

    def _signed(self, command: RemotingCommand) -> RemotingCommand:
        if self._sign is not None:
            self._sign(command)
        return command

    async def _request(
        self, command: RemotingCommand, *, timeout_s: float = ASK_S_MAX
    ) -> RemotingCommand:
        return await self._open_client().request(self._signed(command), timeout_s)
