"""Standing streams of one of our stores: opened, fed with credit, closed; where they deliver."""

from collections.abc import Awaitable, Callable, Sequence

from gateway.clusters.batches import known_code
from gateway.clusters.connection import decoded, unpacked
from gateway.clusters.link import StoreLink, StreamPort, refusal_of
from gateway.clusters.receive import deliveries_by_stream
from gateway.clusters.requests import StoreRequests
from protocols.errors import PeerError, Refused
from protocols.groups import GroupSpec
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import (
    PrivateCode,
    StreamClose,
    StreamEnded,
    StreamOpen,
    StreamOpened,
)
from protocols.remoting.settling import encode_credits


class StandingStreams:
    """The streams of ``StoreLink``; *settled* waits until acks made so far are written."""

    def __init__(
        self,
        link: StoreLink,
        requests: StoreRequests,
        *,
        flush_soon: Callable[[], None],
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        self._link = link
        self._requests = requests
        self._flush_soon = flush_soon
        self._settled = settled
        self._ports: dict[int, StreamPort] = {}
        self._names: dict[int, str] = {}
        self._credits: dict[int, int] = {}
        self._next_number = 1

    def lost(self) -> None:
        """The connections are gone, and the streams with them."""
        self._credits.clear()
        ports, self._ports, self._names = self._ports, {}, {}
        for port in ports.values():
            port.lost(self._link)

    def take_credits(self) -> list[tuple[int, int]]:
        """(stream, total) of those that changed since the last call."""
        credits, self._credits = self._credits, {}
        return [*credits.items()]

    def new_number(self) -> int:
        """A number for a stream, kept by it across reconnects."""
        stream, self._next_number = self._next_number, self._next_number + 1
        return stream

    async def open(
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
            answer = await self._requests.request(PrivateCode.STREAM_OPEN, body)
            return unpacked(answer, StreamOpened, spec.name).in_flight_count
        except (Refused, PeerError):
            self._forget(stream)
            raise

    def set_credit(self, stream: int, total: int) -> None:
        self._credits[stream] = total
        self._flush_soon()

    async def reclaim_credit(self, stream: int, total: int) -> None:
        self._credits.pop(stream, None)
        answer = await self._requests.request(
            PrivateCode.STREAM_CREDIT, encode_credits([(stream, total)])
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, self._link.broker)

    async def close(self, stream: int) -> None:
        await self._settled()
        self._credits.pop(stream, None)
        try:
            await self._requests.done(
                PrivateCode.STREAM_CLOSE, StreamClose(stream=stream), self._link.broker
            )
        finally:
            self._forget(stream)

    async def retire(self, stream: int) -> None:
        self._credits.pop(stream, None)
        body = StreamClose(stream=stream, is_retired=True)
        await self._requests.done(PrivateCode.STREAM_CLOSE, body, self._link.broker)

    def deliver(self, command: RemotingCommand) -> None:
        found = deliveries_by_stream(
            command.body, self._link.cluster, self._link.broker, self._names
        )
        for stream, deliveries in found:
            port = self._ports.get(stream)
            if port is not None:  # closed meanwhile: the store takes them back with the close
                port.arrived(self._link, deliveries)

    def ended(self, command: RemotingCommand) -> None:
        ended = decoded(command.body, StreamEnded, self._link.broker)
        port = self._forget(ended.stream)
        if port is not None:
            port.ended(self._link, known_code(ended.code), ended.remark)

    def _forget(self, stream: int) -> StreamPort | None:
        self._names.pop(stream, None)
        return self._ports.pop(stream, None)
