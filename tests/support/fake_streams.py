"""Standing streams and pops of the fake broker."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from protocols.canonical import Call, QueueRef, ReceiptHandle, StoredMessage
from protocols.errors import Code, Refused
from protocols.groups import GroupSpec, QueueStat
from protocols.pipeline import (
    DeliverySink,
)
from protocols.subjects import matches
from tests.support.fake_broker import (
    BROKER,
    FakeBroker,
    FakeGroup,
    as_runs,
)

if TYPE_CHECKING:
    from tests.support.fake_services import FakeServices


class FakeStream:
    """A standing stream of one group."""

    def __init__(
        self, broker: FakeBroker, gateway: str, group: FakeGroup, sink: DeliverySink, credit: int
    ) -> None:
        self.broker, self.gateway, self.group, self.sink = broker, gateway, group, sink
        self.credit, self.delivered = credit, 0
        self.is_open, self._is_due = True, False
        self.is_retired = False
        self.is_exclusive = False
        self.marks: list[tuple[ReceiptHandle, int, int]] = []
        group.streams.append(self)

    def adopt(self) -> None:
        """Hand over what an earlier owner had in flight, in its order."""
        for flight in list(self.group.in_flight.values()):
            if flight.holder is None:
                flight.holder = self
                self.delivered += 1
                self.sink.deliver([self.broker.delivery(self.group, flight)])

    def pump_soon(self) -> None:
        if not self._is_due and self.is_open:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_due = False
        streams = self.group.streams
        if not self.is_open or not streams:
            return
        if len(streams) > 1:
            self._pump_shared()
            return
        taken = self.broker.take(self.group, self.credit - self.delivered, self)
        self.delivered += len(taken)
        for part in as_runs(taken):
            self.sink.deliver(part)

    def _pump_shared(self) -> None:
        """Members take turns, one message each."""
        streams, idle = self.group.streams, 0
        while idle < len(streams):
            stream = streams[self.group.turn % len(streams)]
            self.group.turn += 1
            room = stream.credit - stream.delivered
            taken = self.broker.take(self.group, 1, stream) if room > 0 else []
            stream.delivered += len(taken)
            idle = 0 if taken else idle + 1
            if taken:
                stream.sink.deliver(taken)

    def end(self, code: Code, hint: str) -> None:
        if self.is_open:
            self.lose()
            self.sink.ended(code, hint)

    def lose(self) -> None:
        """The connection is gone: deliveries return, or wait for the next owner."""
        if not self.is_open:
            return
        self.is_open = False
        self.group.streams.remove(self)
        for position, flight in list(self.group.in_flight.items()):
            if flight.holder is not self:
                continue
            if self.group.spec.is_inherited:
                flight.holder = None
            else:
                del self.group.in_flight[position]
                self.group.returned.append(flight.entry)
        if self.group.spec.is_volatile and not self.group.streams:
            self.broker.groups.pop(self.group.spec.name, None)
        self.broker.wake()

    # DeliveryStream

    def allow(self, total: int) -> None:
        self.credit = max(self.credit, total) if not self.is_retired else self.credit
        self.pump_soon()

    def ack(self, handles: Sequence[ReceiptHandle]) -> None:
        for handle in handles:
            self.broker.done(handle)

    def release(self, handles: Sequence[ReceiptHandle], *, is_sent: bool = True) -> None:
        for handle in handles:
            self.broker.put_back(handle, is_sent=is_sent)

    def reject(self, handles: Sequence[ReceiptHandle]) -> None:
        self.ack(handles)

    async def retire(self) -> None:
        self.credit = self.delivered
        self.is_retired = True
        await asyncio.sleep(0)

    def mark(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> None:
        for handle, packet_id, stage in marks:
            self.marks.append((handle, packet_id, stage))
            if (flight := self.broker.flight_of(handle)) is not None:
                flight.packet_id, flight.stage = packet_id, stage

    async def mark_durably(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> bool:
        self.mark(marks)
        await asyncio.sleep(0)
        return True

    async def mark_or_forget(self, handle: ReceiptHandle, packet_id: int, stage: int) -> bool:
        return await self.mark_durably([(handle, packet_id, stage)])

    def when_unmarked(self, listener: Callable[[Sequence[ReceiptHandle]], None]) -> None:
        """No mark is lost here."""

    async def change_reads(self, spec: GroupSpec) -> None:
        self.broker.open_group(spec)
        await asyncio.sleep(0)
        self.pump_soon()

    async def close(self, *, drop_group: bool = False) -> None:
        self.lose()
        if drop_group:
            self.broker.groups.pop(self.group.spec.name, None)
        await asyncio.sleep(0)


class FakeStreams:
    """Groups, streams and pinned queues."""

    def __init__(self, services: "FakeServices") -> None:
        self._services, self._broker = services, services.broker

    async def open_group(self, call: Call, spec: GroupSpec) -> None:
        await asyncio.sleep(0)
        self._broker.open_group(spec)

    async def open(
        self, call: Call, spec: GroupSpec, sink: DeliverySink, *, credit: int
    ) -> FakeStream:
        await asyncio.sleep(0)
        if self._broker.is_down:
            raise Refused(Code.HA_NOT_AVAILABLE, spec.name, "the store is down")
        group = self._broker.open_group(spec)
        others = [stream for stream in group.streams if not stream.is_retired]
        if any(stream.is_exclusive for stream in others) or (spec.is_exclusive and others):
            raise Refused(Code.FORBIDDEN, spec.name, "in exclusive use")
        if spec.skips_qos0_on_resume:
            group.skip_qos0_below = self._broker.end
        stream = FakeStream(self._broker, self._services.name, group, sink, credit)
        stream.is_exclusive = spec.is_exclusive
        stream.adopt()
        stream.pump_soon()
        return stream

    async def drop_group(self, call: Call, spec: GroupSpec) -> None:
        await asyncio.sleep(0)
        group = self._broker.groups.pop(spec.name, None)
        for stream in list(group.streams) if group else []:
            stream.lose()

    async def create_queue(self, ref: QueueRef, policy: Mapping[str, int | str]) -> QueueRef:
        await asyncio.sleep(0)
        placed = ref._replace(store=ref.store or BROKER)
        self._broker.created.setdefault(placed, dict(policy))
        return placed

    async def delete_queue(self, ref: QueueRef) -> QueueStat:
        await asyncio.sleep(0)
        stat = self._stat(ref)
        self._broker.created.pop(ref, None)
        for group in self._readers(ref):
            del self._broker.groups[group.spec.name]
            for stream in list(group.streams):
                stream.end(Code.NOT_FOUND, "the queue was deleted")
        return stat

    async def reject(self, call: Call, handles: Sequence[ReceiptHandle]) -> None:
        await asyncio.sleep(0)
        for handle in handles:
            self._broker.done(handle)

    async def purge_queue(self, ref: QueueRef, spec: GroupSpec) -> int:
        await asyncio.sleep(0)
        group = self._broker.open_group(spec)
        ready = self._ready(group)
        group.returned.clear()
        group.scanned = self._broker.end
        return ready

    async def stat_queue(self, ref: QueueRef, spec: GroupSpec) -> QueueStat:
        await asyncio.sleep(0)
        self._broker.open_group(spec)
        return self._stat(ref)

    async def retained(self, tenant: str, subject_filters: Sequence[str]) -> list[StoredMessage]:
        await asyncio.sleep(0)
        return [
            message
            for (of, subject), message in self._broker.retained.items()
            if of == tenant and any(matches(one, subject) for one in subject_filters)
        ]

    def _readers(self, ref: QueueRef) -> list[FakeGroup]:
        key = ref.key()
        return [group for group in self._broker.groups.values() if key in group.queue_from]

    def _ready(self, group: FakeGroup) -> int:
        waiting = self._broker.log[group.scanned - self._broker.first_position :]
        return len(group.returned) + sum(
            bool(self._broker.reads_of(group, entry)) for entry in waiting
        )

    def _stat(self, ref: QueueRef) -> QueueStat:
        key = ref.key()
        stored = sum(key in entry.keys for entry in self._broker.log)
        readers = self._readers(ref)
        if not readers:
            return QueueStat(stored, 0, stored)
        streams = [stream for stream in readers[0].streams if not stream.is_retired]
        return QueueStat(self._ready(readers[0]), len(readers[0].in_flight), stored, len(streams))
