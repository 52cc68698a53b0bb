"""
One of our stores, spoken to by private codes.

``StoreConnection`` keeps the sockets up, ``FrameSender`` numbers the sends, ``AckSender``
coalesces the acks, ``StoreGroups`` and ``StandingStreams`` know what is open; this class joins
them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gateway.clusters.acks import AckSender, ack_by_epoch
from gateway.clusters.batches import Run
from gateway.clusters.connection import Connect, Sign, StoreConnection, decoded, packed, unpacked
from gateway.clusters.frames import Frame, FrameSender
from gateway.clusters.groups import StoreGroups
from gateway.clusters.link import (
    ASK_S_MAX,
    TIDEGATE,
    AckAnswered,
    HandlesAnswered,
    LinkState,
    StoreLink,
    refusal_of,
)
from gateway.clusters.presence import GatewayPresence
from gateway.clusters.requests import StoreRequests
from gateway.clusters.standard import create_topic, pull, search_offset
from gateway.clusters.standing import StandingStreams
from protocols import clock
from protocols.canonical import Properties, QueueRef, ReceiptHandle, StoredMessage
from protocols.driver import flusher
from protocols.errors import Code, PeerError
from protocols.groups import QueueStat
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from protocols.remoting.peer import Peer
from protocols.remoting.private import (
    Closing,
    Fence,
    HelloAnswer,
    Index,
    IndexItem,
    PrivateCode,
    QueueCounts,
    QueueCreate,
    QueueDrop,
    QueuePurge,
    QueueStatRequest,
    Retained,
    Settle,
    SettleAnswer,
)
from protocols.remoting.records import NO_HOST, decode_records, encode_host
from protocols.remoting.settling import (
    AckItem,
    MarkItem,
    decode_ack_results,
    encode_credits,
    encode_marks,
)
from protocols.remoting.templates import RecordTemplate

LOST_S_MAX: Final = 3.0
"""How long all messages wait for a lost store; then the circuit opens: what may go elsewhere does,
what is bound to it waits on in the pipeline (``storewaits``)."""

FRAME_ANSWER_S_MAX: Final = 10.0
"""A SEND without an answer for so long, while beats are answered: the connection is renewed."""


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
        closing: Callable[["TidegateLink", Closing], None],
        reroute: Callable[[list[Run]], None],
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
        self._closing = closing
        self._was_congested = False
        self._reroute = reroute
        self._loop = asyncio.get_running_loop()
        self._flush_now = flusher(self._loop)
        self._frames = FrameSender(self._write_frame)
        self.submit: Callable[[Run], None] = self._frames.submit
        self._acks = AckSender(self._write_acks)
        self._requests = StoreRequests(self.connection, broker)
        groups = self._groups = StoreGroups(self._requests, cluster, broker)
        self.open_group, self.drop_group = groups.open, groups.drop
        self.pop, self.adopt = groups.pop, groups.adopt
        streams = self._streams = StandingStreams(
            self, self._requests, flush_soon=self._flush_soon, settled=self._settled
        )
        self.new_stream, self.open_stream = streams.new_number, streams.open
        self.set_credit, self.reclaim_credit = streams.set_credit, streams.reclaim_credit
        self.close_stream, self.retire_stream = streams.close, streams.retire
        self._marks: dict[int, list[MarkItem]] = {}
        self._store_host = NO_HOST
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
        answer = await self._requests.request(PrivateCode.SETTLE, body)
        settled = unpacked(answer, SettleAnswer, self.connection.name)
        return settled.answer if settled.did_run else None

    def _lost(self) -> None:
        """Both connections are gone: a moment's patience, then the circuit opens."""
        self._frames.lost()
        self._acks.lost()
        self._marks.clear()
        self._groups.clear()
        self._streams.lost()
        if self.state is LinkState.UP:
            self.state = LinkState.LOST
            self._down_timer = self._loop.call_later(LOST_S_MAX, self._go_down)
            self._changed(self)

    def _go_down(self) -> None:
        if self._down_timer is not None:
            self._down_timer.cancel()
            self._down_timer = None
        self.state = LinkState.DOWN
        self._changed(self)

    def give_up(self, keeps: Callable[[Run], bool]) -> bool:
        hint = f"store {self.broker} is away; the outcome is unknown"
        return self._frames.give_up(keeps, Code.HA_NOT_AVAILABLE, hint)

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

    def template(self, topic: str, text: Properties | bytes, born_host: bytes) -> RecordTemplate:
        return RecordTemplate(topic, text, born_host=born_host, store_host=self._store_host)

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
        if credits := self._streams.take_credits():
            commands.append(self._oneway(PrivateCode.STREAM_CREDIT, encode_credits(credits)))
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
        answer = await self._requests.request(PrivateCode.MARK, encode_marks(epoch, items))
        if answer.code != ResponseCode.SUCCESS:
            return False
        return all(code == Code.OK for _, code in decode_ack_results(answer.body))

    async def index(self, epoch: int, items: Sequence[IndexItem]) -> None:
        """Late entries; a stale item is another gateway's by now. Raises GatewayError."""
        body = Index(store_epoch=epoch, items=list(items))
        answer = await self._requests.request(PrivateCode.INDEX, body)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, self.broker)

    async def release_once(self, keys: Sequence[bytes]) -> None:
        await self._requests.done(PrivateCode.ONCE_RELEASE, b"".join(keys), "once-keys")

    async def find_once(self, keys: Sequence[bytes]) -> Sequence[int]:
        answer = await self._requests.request(PrivateCode.ONCE_FIND, b"".join(keys))
        if answer.code != ResponseCode.SUCCESS or len(answer.body) != len(keys):
            raise refusal_of(answer, "once-keys")
        return bytes(answer.body)

    # ── groups and streams ──────────────────────────────────────────────────────────────

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
                    self._streams.deliver(command)
                elif command.code == PrivateCode.STREAM_ENDED:
                    self._streams.ended(command)
                elif command.code == PrivateCode.CLOSING:
                    self._closing(self, decoded(command.body, Closing, self.connection.name))
                elif command.code == RequestCode.CHECK_TRANSACTION_STATE and self.on_check:
                    self.on_check(self, command)
                elif command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and self.on_reply:
                    self.on_reply(peer, command)
            except PeerError as error:
                self.connection.reset(str(error))

    # ── queues ──────────────────────────────────────────────────────────────────────────

    async def create_queue(self, ref: QueueRef, policy: Mapping[str, int | str]) -> None:
        body = QueueCreate(key=ref.key(), name=ref.name, policy=dict(policy))
        await self._requests.done(PrivateCode.QUEUE_CREATE, body, ref.name)

    async def delete_queue(self, ref: QueueRef, group: str) -> QueueStat:
        self._groups.forget(group)
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
        counts = unpacked(await self._requests.request(code, body), QueueCounts, name)
        return QueueStat(
            counts.ready_count, counts.in_flight_count, counts.stored_count, counts.consumer_count
        )

    async def retained(self, tenant: str, subject_filters: Sequence[str]) -> list[StoredMessage]:
        body = Retained(tenant=tenant, subject_filters=list(subject_filters))
        answer = await self._requests.request(PrivateCode.RETAINED, body)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, self.broker)
        return decode_records(answer.body, cluster=self.cluster, broker=self.broker)

    # ── the rest ────────────────────────────────────────────────────────────────────────

    async def ask(
        self, command: RemotingCommand, *, timeout_s: float = ASK_S_MAX
    ) -> RemotingCommand:
        return await self._requests.client().request(command, timeout_s)

    async def fence(self, gateway: str, gateway_epoch: int) -> None:
        body = Fence(gateway=gateway, gateway_epoch=gateway_epoch)
        answer = await self.connection.request(PrivateCode.FENCE, body)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, gateway)

    async def create_topic(self, topic: str, queue_count: int) -> int:
        return await create_topic(self._requests.client(), topic, queue_count)

    async def read(
        self, topic: str, queue_id: int, offset: int, count: int, wait_ms: int
    ) -> tuple[list[StoredMessage], int, int]:
        client = self._requests.client()
        return await pull(
            client, topic, queue_id, offset, count, wait_ms, self.cluster, self.broker
        )

    async def offset(self, topic: str, queue_id: int, at_ms: int) -> int:
        return await search_offset(self._requests.client(), topic, queue_id, at_ms)
