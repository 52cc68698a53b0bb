"""
One of our stores, spoken to by private codes.

``StoreConnection`` keeps the sockets up, ``FrameSender`` numbers the sends, ``AckSender``
coalesces the acks; this class joins them and turns deliveries into canonical form.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from gateway.clusters.acks import AckSender, ack_by_epoch
from gateway.clusters.batches import Run, known_code
from gateway.clusters.connection import Connect, Sign, StoreConnection, decoded, packed, unpacked
from gateway.clusters.frames import Frame, FrameSender
from gateway.clusters.link import (
    ASK_S_MAX,
    TIDEGATE,
    AckAnswered,
    HandlesAnswered,
    LinkState,
    StoreLink,
    StreamPort,
    refusal_of,
)
from gateway.clusters.presence import GatewayPresence
from gateway.clusters.receive import deliveries_by_stream, group_open
from gateway.clusters.standard import create_topic, pull, search_offset
from protocols import clock
from protocols.canonical import Delivery, Properties, QueueRef, ReceiptHandle, StoredMessage
from protocols.driver import flusher
from protocols.errors import Code, PeerError, Refused
from protocols.groups import GroupSpec, PopRequest, QueueStat
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from protocols.remoting.peer import Peer
from protocols.remoting.private import (
    Adopt,
    Fence,
    GroupDrop,
    GroupOpened,
    HelloAnswer,
    Index,
    IndexItem,
    Pop,
    PrivateCode,
    QueueCounts,
    QueueCreate,
    QueueDrop,
    QueuePurge,
    QueueStatRequest,
    Retained,
    Settle,
    SettleAnswer,
    StreamClose,
    StreamEnded,
    StreamOpen,
    StreamOpened,
)
from protocols.remoting.records import NO_HOST, RecordTemplate, decode_records, encode_host
from protocols.remoting.settling import (
    AckItem,
    MarkItem,
    decode_ack_results,
    encode_credits,
    encode_marks,
)

LOST_S_MAX: Final = 3.0
"""How long messages wait for a lost store before they are refused (circuit open)."""

REQUEST_S_MAX: Final = 5.0
FRAME_ANSWER_S_MAX: Final = 10.0
"""A SEND without an answer for so long, while beats are answered: the connection is renewed."""

GROUPS_KEPT_MAX: Final = 10_000
"""Groups whose number is remembered for pops."""


class TidegateLink:
    """Implements ``StoreLink`` for a store that answers HELLO."""

    def __init__(
        self,
        cluster: str,
        broker: str,
        connect: Connect,
        presence: GatewayPresence,
        *,
        changed: Callable[["TidegateLink"], None],
        cleared: Callable[[], None],
        greeted: Callable[["TidegateLink", HelloAnswer], None],
        reroute: Callable[[list[Run]], None],
        before_traffic: Callable[["TidegateLink"], Awaitable[None]],
        sign: Sign | None = None,
    ) -> None:
        self.cluster = cluster
        self.broker = broker
        self.capabilities = TIDEGATE
        self.state = LinkState.DOWN
        self.store_epoch = 0
        self.on_check: Callable[[StoreLink, RemotingCommand], None] | None = None
        self.on_reply: Callable[[Peer, RemotingCommand], None] | None = None
        self.connection = StoreConnection(
            f"{cluster}/{broker}",
            connect,
            presence,
            push=self._receive,
            greeted=lambda hello: greeted(self, hello),
            opened=self._opened,
            lost=self._lost,
            sign=sign,
        )
        self._presence = presence
        self._changed = changed
        self._cleared = cleared
        self._was_congested = False
        self._reroute = reroute
        self._before_traffic = before_traffic
        self._loop = asyncio.get_running_loop()
        self._flush_now = flusher(self._loop)
        self._frames = FrameSender(self._write_frame)
        self.submit: Callable[[Run], None] = self._frames.submit
        self._acks = AckSender(self._write_acks)
        self._marks: dict[int, list[MarkItem]] = {}
        self._credits: dict[int, int] = {}
        self._ports: dict[int, StreamPort] = {}
        self._names: dict[int, str] = {}
        self._groups: dict[str, tuple[GroupSpec, int]] = {}
        self._store_host = NO_HOST
        self._next_stream = 1
        self._is_flush_due = False
        self._down_timer: asyncio.TimerHandle | None = None

    # ── life ────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        try:
            await self.connection.run()
        finally:
            self._go_down()

    async def _opened(self, hello: HelloAnswer) -> None:
        """Both connections stand: settle what was lost, then let traffic flow."""
        self.store_epoch = hello.store_epoch
        self._store_host = encode_host(hello.advertise)
        while self._frames.unsettled:
            frame = self._frames.unsettled[0]
            answer = await self._settle(frame)
            for run in self._frames.settled(frame, answer):
                self._frames.submit(run)  # kept there if the connection goes while others are asked
            self._frames.unsettled.pop(0)
        await self._before_traffic(self)
        self._frames.opened(self._presence.epoch, hello.last_frame)
        self._acks.opened()
        if self._down_timer is not None:
            self._down_timer.cancel()
            self._down_timer = None
        self.state = LinkState.UP
        self._reroute(self._frames.take_pending(everything=True))
        self.flush()
        self._changed(self)

    async def _settle(self, frame: Frame) -> bytes | None:
        """The answer of a frame whose answer was lost; None: it never ran."""
        body = Settle(gateway=self._presence.name, gateway_epoch=frame.epoch, frame=frame.number)
        answer = await self._request(PrivateCode.SETTLE, body)
        settled = unpacked(answer, SettleAnswer, self.connection.name)
        return settled.answer if settled.did_run else None

    def _lost(self) -> None:
        """Both connections are gone: a moment's patience, then the circuit opens."""
        self._frames.lost()
        self._acks.lost()
        self._marks.clear()
        self._credits.clear()
        self._groups.clear()
        ports, self._ports, self._names = self._ports, {}, {}
        for port in ports.values():
            port.lost(self)
        if self.state is LinkState.UP:
            self.state = LinkState.LOST
            self._down_timer = self._loop.call_later(LOST_S_MAX, self._go_down)
            self._changed(self)

    def _go_down(self) -> None:
        if self._down_timer is not None:
            self._down_timer.cancel()
            self._down_timer = None
        self.state = LinkState.DOWN
        self._frames.give_up(
            Code.HA_NOT_AVAILABLE, f"store {self.broker} is away; the outcome is unknown"
        )
        self._changed(self)

    def check(self, now: float) -> None:
        """Once a second: a frame must not wait for ever while beats are answered."""
        sent_at = self._frames.oldest_sent_at
        if sent_at is not None and now - sent_at > FRAME_ANSWER_S_MAX:
            self.connection.reset("a SEND frame was not answered in time")

    # ── sends ───────────────────────────────────────────────────────────────────────────

    @property
    def is_congested(self) -> bool:
        if self._frames.is_congested:
            self._was_congested = True
            return True
        return False

    def template(
        self, topic: str, properties: Properties | bytes, born_host: bytes
    ) -> RecordTemplate:
        return RecordTemplate(topic, properties, born_host=born_host, store_host=self._store_host)

    def take_pending(self, *, everything: bool = False) -> list[Run]:
        return self._frames.take_pending(everything=everything)

    def take_withdrawn(self) -> list[Run]:
        return self._frames.take_withdrawn()

    def flush(self) -> None:
        """Write what there is: one frame of each kind."""
        self._is_flush_due = False
        self._frames.flush(now=clock.monotonic(), wall_ms=clock.wall_ms())
        self._acks.flush()
        data = self.connection.data
        if data is None:
            return
        commands: list[RemotingCommand] = []
        marks, self._marks = self._marks, {}
        for epoch, items in marks.items():
            commands.append(self._oneway(PrivateCode.MARK, encode_marks(epoch, items)))
        if self._credits:
            credits, self._credits = self._credits, {}
            commands.append(
                self._oneway(PrivateCode.STREAM_CREDIT, encode_credits([*credits.items()]))
            )
        if commands:
            data.send_nowait(commands)

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def _oneway(self, code: PrivateCode, body: bytes) -> RemotingCommand:
        return RemotingCommand(code, None, body, flag=ONEWAY_FLAG, is_binary=True)

    def _write_frame(self, frame: Frame, body: bytes) -> None:
        data = self.connection.data
        assert data is not None  # frames flow only between opened and lost
        number = frame.number

        def answered(answer: RemotingCommand | None) -> None:
            if answer is not None:
                self._frame_answered(number, answer)

        data.call(packed(PrivateCode.SEND, body), answered)

    def _frame_answered(self, number: int, answer: RemotingCommand) -> None:
        try:
            if answer.code == ResponseCode.SUCCESS:
                self._frames.answered(number, answer.body)
                if not self._frames.pending_count:  # else the next frame goes first
                    self._flush_now()
            elif answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                # Our presence ended there: HELLO again, then ask what became of the frame.
                self.connection.reset("the store wants a fresh lease")
                return
            else:
                error = refusal_of(answer, self.broker)
                self._frames.refused(number, error.code, error.hint)
                if answer.code in (ResponseCode.GO_AWAY, ResponseCode.ILLEGAL_OPERATION):
                    self._presence.suspect()
        except PeerError as error:
            self.connection.reset(str(error))
            return
        self.flush()
        if self._was_congested and self._frames.is_clear:
            self._was_congested = False
            self._cleared()

    # ── acks ────────────────────────────────────────────────────────────────────────────

    def ack(self, epoch: int, items: Sequence[AckItem], answered: AckAnswered | None) -> None:
        if self.state is LinkState.DOWN and answered is not None:
            self._loop.call_soon(answered, None)
            return
        self._acks.add(epoch, items, answered)
        self._flush_soon()

    def _write_acks(self, frame: int, body: bytes) -> None:
        data = self.connection.data
        assert data is not None  # as for frames

        def answered(answer: RemotingCommand | None) -> None:
            if answer is not None:
                is_done = answer.code == ResponseCode.SUCCESS
                self._acks.answered(frame, answer.body if is_done else None)
                self._acks.flush()

        data.call(packed(PrivateCode.ACK, body), answered)

    def ack_handles(
        self, changes: Sequence[tuple[ReceiptHandle, int, int]], answered: HandlesAnswered
    ) -> None:
        ack_by_epoch(changes, self.ack, answered)

    def mark(self, epoch: int, items: Sequence[MarkItem]) -> None:
        self._marks.setdefault(epoch, []).extend(items)
        self._flush_soon()

    def renew(self, reason: str) -> None:
        self.connection.reset(reason)

    async def mark_durably(self, epoch: int, items: Sequence[MarkItem]) -> bool:
        self.flush()  # earlier marks first
        answer = await self._request(PrivateCode.MARK, encode_marks(epoch, items))
        if answer.code != ResponseCode.SUCCESS:
            return False
        return all(code == Code.OK for _, code in decode_ack_results(answer.body))

    async def index(self, epoch: int, items: Sequence[IndexItem]) -> None:
        """Late entries; a stale item is another gateway's by now. Raises GatewayError."""
        body = Index(store_epoch=epoch, items=list(items))
        answer = await self._request(PrivateCode.INDEX, body)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, self.broker)

    async def release_once(self, keys: Sequence[bytes]) -> None:
        await self._done(PrivateCode.ONCE_RELEASE, b"".join(keys), "once-keys")

    async def find_once(self, keys: Sequence[bytes]) -> Sequence[int]:
        answer = await self._request(PrivateCode.ONCE_FIND, b"".join(keys))
        if answer.code != ResponseCode.SUCCESS or len(answer.body) != len(keys):
            raise refusal_of(answer, "once-keys")
        return bytes(answer.body)

    # ── groups and streams ──────────────────────────────────────────────────────────────

    async def open_group(self, spec: GroupSpec, *, start: str = "") -> int:
        body = group_open(spec, start)
        answer = await self._request(PrivateCode.GROUP_OPEN, body)
        return unpacked(answer, GroupOpened, spec.name).group

    async def drop_group(self, name: str, owner_epoch: int) -> None:
        self._groups.pop(name, None)
        body = GroupDrop(name=name, owner_epoch=owner_epoch)
        await self._done(PrivateCode.GROUP_DROP, body, name, but=Code.CONSUMER_GROUP_NOT_FOUND)

    def new_stream(self) -> int:
        """A number for a stream, kept by it across reconnects."""
        stream, self._next_stream = self._next_stream, self._next_stream + 1
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
        self._ports[stream], self._names[stream] = port, spec.name
        body = StreamOpen(
            group=group,
            stream=stream,
            credit=credit,
            holds=list(holds),
            is_exclusive=spec.is_exclusive,
            priority=spec.stream_priority,
            is_resuming=is_resuming,
            strategy=spec.strategy,
            member=spec.member,
        )
        try:
            answer = await self._request(PrivateCode.STREAM_OPEN, body)
            return unpacked(answer, StreamOpened, spec.name).in_flight_count
        except (Refused, PeerError):
            self._forget_stream(stream)
            raise

    def set_credit(self, stream: int, total: int) -> None:
        self._credits[stream] = total
        self._flush_soon()

    async def reclaim_credit(self, stream: int, total: int) -> None:
        self._credits.pop(stream, None)
        answer = await self._request(PrivateCode.STREAM_CREDIT, encode_credits([(stream, total)]))
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, self.broker)

    async def close_stream(self, stream: int) -> None:
        await self._settled()
        self._credits.pop(stream, None)
        try:
            await self._done(PrivateCode.STREAM_CLOSE, StreamClose(stream=stream), self.broker)
        finally:
            self._forget_stream(stream)

    async def retire_stream(self, stream: int) -> None:
        self._credits.pop(stream, None)
        body = StreamClose(stream=stream, is_retired=True)
        await self._done(PrivateCode.STREAM_CLOSE, body, self.broker)

    async def _settled(self) -> None:
        """Acks and marks made so far are written: what is sent now cannot overtake them."""
        self.flush()
        written = asyncio.Event()
        self._acks.when_written(written.set)
        await written.wait()

    def _receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        """What the store pushes: deliveries, and streams that end."""
        for command in commands:
            try:
                if command.code == PrivateCode.DELIVER:
                    self._deliver(command)
                elif command.code == PrivateCode.STREAM_ENDED:
                    self._stream_ended(command)
                elif command.code == RequestCode.CHECK_TRANSACTION_STATE and self.on_check:
                    self.on_check(self, command)
                elif command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and self.on_reply:
                    self.on_reply(peer, command)
            except PeerError as error:
                self.connection.reset(str(error))

    def _deliver(self, command: RemotingCommand) -> None:
        found = deliveries_by_stream(command.body, self.cluster, self.broker, self._names)
        for stream, deliveries in found:
            port = self._ports.get(stream)
            if port is not None:  # closed meanwhile: the store takes them back with the close
                port.arrived(self, deliveries)

    def _stream_ended(self, command: RemotingCommand) -> None:
        ended = decoded(command.body, StreamEnded, self.broker)
        port = self._forget_stream(ended.stream)
        if port is not None:
            port.ended(self, known_code(ended.code), ended.remark)

    def _forget_stream(self, stream: int) -> StreamPort | None:
        self._names.pop(stream, None)
        return self._ports.pop(stream, None)

    async def pop(self, request: PopRequest, *, count: int, wait_ms: int) -> list[Delivery]:
        spec = request.group
        known = self._groups.get(spec.name)
        if known is None or not _is_as_opened(spec, known[0]):
            known = await self._learn_group(spec)
        body = Pop(
            group=known[1],
            count=count,
            invisible_ms=request.invisible_ms,
            wait_ms=wait_ms,
            topic=spec.reads[0].topic if request.queue_id >= 0 else "",
            queue_id=request.queue_id,
            tags=list(request.tags),
            sql=request.sql,
            attempt_id=request.attempt_id,
            taker=request.taker,
        )
        return await self._take(PrivateCode.POP, body, spec.name, wait_ms / 1000 + 5.0)

    async def adopt(self, spec: GroupSpec, taker: str, invisible_ms: int) -> list[Delivery]:
        number = (await self._learn_group(spec))[1]
        found: list[Delivery] = []
        while True:
            above = found[-1].handle.position if found else -1
            body = Adopt(group=number, taker=taker, invisible_ms=invisible_ms, above=above)
            page = await self._take(PrivateCode.ADOPT, body, spec.name, ASK_S_MAX)
            if not page:
                return found
            found += page

    async def _take(
        self, code: PrivateCode, body: Pop | Adopt, group: str, timeout_s: float
    ) -> list[Delivery]:
        """Deliveries that are hidden from now on. Raises Refused."""
        now_ms = clock.wall_ms()
        answer = await self._request(code, body, timeout_s=timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            self._groups.pop(group, None)
            error = refusal_of(answer, group)
            if error.code == Code.MESSAGE_NOT_FOUND:
                return []
            raise error
        by_stream = deliveries_by_stream(
            answer.body,
            self.cluster,
            self.broker,
            {0: group},
            popped_ms=now_ms,
            invisible_ms=body.invisible_ms,
        )
        return [delivery for _, deliveries in by_stream for delivery in deliveries]

    async def _learn_group(self, spec: GroupSpec) -> tuple[GroupSpec, int]:
        number = await self.open_group(spec)
        if len(self._groups) >= GROUPS_KEPT_MAX:
            del self._groups[next(iter(self._groups))]
        known = self._groups[spec.name] = (spec, number)
        return known

    # ── queues ──────────────────────────────────────────────────────────────────────────

    async def create_queue(self, ref: QueueRef, policy: Mapping[str, int | str]) -> None:
        body = QueueCreate(key=ref.key(), name=ref.name, policy=dict(policy))
        await self._done(PrivateCode.QUEUE_CREATE, body, ref.name)

    async def delete_queue(self, ref: QueueRef, group: str) -> QueueStat:
        self._groups.pop(group, None)
        body = QueueDrop(key=ref.key(), group=group)
        return await self._counts(PrivateCode.QUEUE_DROP, body, ref.name)

    async def purge_queue(self, ref: QueueRef, group: str) -> int:
        body = QueuePurge(key=ref.key(), group=group)
        return (await self._counts(PrivateCode.QUEUE_PURGE, body, ref.name)).ready_count

    async def stat_queue(self, ref: QueueRef, group: str) -> QueueStat:
        body = QueueStatRequest(key=ref.key(), group=group)
        return await self._counts(PrivateCode.QUEUE_STAT, body, ref.name)

    async def _counts(
        self, code: PrivateCode, body: QueueDrop | QueuePurge | QueueStatRequest, name: str
    ) -> QueueStat:
        counts = unpacked(await self._request(code, body), QueueCounts, name)
        return QueueStat(
            counts.ready_count, counts.in_flight_count, counts.stored_count, counts.consumer_count
        )

    async def retained(self, tenant: str, subject_filters: Sequence[str]) -> list[StoredMessage]:
        body = Retained(tenant=tenant, subject_filters=list(subject_filters))
        answer = await self._request(PrivateCode.RETAINED, body)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, self.broker)
        return decode_records(answer.body, cluster=self.cluster, broker=self.broker)

    # ── the rest ────────────────────────────────────────────────────────────────────────

    async def ask(
        self, command: RemotingCommand, *, timeout_s: float = ASK_S_MAX
    ) -> RemotingCommand:
        return await self._client().request(command, timeout_s)

    async def fence(self, gateway: str, gateway_epoch: int) -> None:
        body = Fence(gateway=gateway, gateway_epoch=gateway_epoch)
        answer = await self.connection.request(PrivateCode.FENCE, body)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, gateway)

    async def create_topic(self, topic: str, queue_count: int) -> int:
        return await create_topic(self._client(), topic, queue_count)

    async def read(
        self, topic: str, queue_id: int, offset: int, count: int, wait_ms: int
    ) -> tuple[list[StoredMessage], int, int]:
        client = self._client()
        return await pull(
            client, topic, queue_id, offset, count, wait_ms, self.cluster, self.broker
        )

    async def offset(self, topic: str, queue_id: int, at_ms: int) -> int:
        return await search_offset(self._client(), topic, queue_id, at_ms)

    def _client(self) -> RemotingClient:
        if self.connection.data is None:
            raise Refused(Code.HA_NOT_AVAILABLE, self.broker, "the store cannot be reached")
        return self.connection.data

    async def _request(
        self, code: PrivateCode, body: msgspec.Struct | bytes, *, timeout_s: float = REQUEST_S_MAX
    ) -> RemotingCommand:
        return await self._client().request(packed(code, body), timeout_s)

    async def _done(
        self, code: PrivateCode, body: msgspec.Struct | bytes, subject: str, *, but: Code = Code.OK
    ) -> None:
        """A request whose answer has no body; a refusal with the code *but* is fine too."""
        answer = await self._request(code, body)
        if answer.code != ResponseCode.SUCCESS:
            error = refusal_of(answer, subject)
            if error.code != but:
                raise error


def _is_as_opened(spec: GroupSpec, opened: GroupSpec) -> bool:
    """Where a group began is settled by its first opening."""
    return spec == opened or replace(spec, start=opened.start) == opened
