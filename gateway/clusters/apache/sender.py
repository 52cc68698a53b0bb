"""
Sends to an Apache broker: one request a message, one message of a publisher at a time; a batch to
a topic that keeps batches together goes as one.

A broker's send threads may reorder what is pipelined, so the next message of a call leaves when
the one before it is answered; publishers do not wait for one another. A lost answer leaves the
fate of its message unknown: it is refused, and the client's retry may be a duplicate.
"""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway.clusters.apache import mqtt_nodes, requests
from gateway.clusters.batches import Run
from gateway.clusters.items import encode_extra, packing_of
from gateway.clusters.link import refusal_of
from protocols.canonical import Call, QueueKind, QueueRef, StoredMessage
from protocols.errors import Code, Refused
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.inner_batches import MARK, read_mark
from protocols.remoting.peer import Answered
from protocols.remoting.records import decode_record
from protocols.remoting.sending import SendAnswer

IN_FLIGHT_MAX: Final = 256
PENDING_COUNT_HIGH: Final = 4096

UNLISTED: Final = (QueueKind.RETAINED, QueueKind.DISPATCH)
"""Light queues that only our stores keep."""

Ask = Callable[[RemotingCommand, Answered], None]


class ApacheSender:
    """What waits for one Apache broker and what is in flight to it."""

    def __init__(
        self,
        cluster: str,
        broker: str,
        ask: Ask,
        node_filters: Callable[[], mqtt_nodes.Filters] = dict,
    ) -> None:
        self._cluster = cluster
        self._broker = broker
        self._ask = ask
        self._node_filters = node_filters
        self._lanes: dict[Call, deque[Run]] = {}
        self._busy: set[Call] = set()
        self.is_open = False
        self.pending_count = 0

    @property
    def is_congested(self) -> bool:
        return self.pending_count > PENDING_COUNT_HIGH

    def submit(self, run: Run) -> None:
        self._lanes.setdefault(run.batch.call, deque()).append(run)
        self.pending_count += run.count

    def take_pending(self, *, everything: bool = False) -> list[Run]:
        """Remove what is not in flight, to route it again; copies of others stay."""
        taken: list[Run] = []
        for call, lane in list(self._lanes.items()):
            kept = deque(run for run in lane if not everything and not run.copy.is_only)
            taken += [run for run in lane if everything or run.copy.is_only]
            if kept:
                self._lanes[call] = kept
            else:
                del self._lanes[call]
        self.pending_count -= sum(run.count for run in taken)
        return taken

    def flush(self, wall_ms: int) -> None:
        """Send the first message of every publisher that waits for none."""
        if not self.is_open:
            return
        for call in [call for call in self._lanes if call not in self._busy]:
            if len(self._busy) >= IN_FLIGHT_MAX:
                return
            self._send_next(call, wall_ms)

    def _send_next(self, call: Call, wall_ms: int) -> None:
        lane = self._lanes[call]
        parts = _take_next(lane)
        if not lane:
            del self._lanes[call]
        self.pending_count -= sum(part.count for part in parts)
        try:
            command = self._command(parts, wall_ms)
        except Refused as error:
            for part in parts:
                part.fail(error.code, error.hint)
            return
        self._busy.add(call)

        def answered(answer: RemotingCommand | None) -> None:
            self._busy.discard(call)
            self._settle(parts, answer)
            if call in self._lanes and call not in self._busy and self.is_open:
                self._send_next(call, wall_ms)

        self._ask(command, answered)

    def _command(self, parts: Sequence[Run], wall_ms: int) -> RemotingCommand:
        """The request of one message, or of one batch. Raises Refused if it fits no record."""
        records = [
            _record(part, index, wall_ms)
            for part in parts
            for index in range(part.start, part.stop)
        ]
        batch_id, _ = _batch_of(parts[0])
        if batch_id:
            return requests.send_batch(self._broker, records, batch_id)
        copy = parts[0].copy
        names, extra = [requests.light_topic(queue) for queue in _listed(parts[0])], ""
        if copy.is_primary and (address := mqtt_nodes.origin_of(copy.head, copy.topic)):
            names += mqtt_nodes.queue_names(address, self._node_filters())
            extra = mqtt_nodes.extra_of(copy.head)
        return requests.send(self._broker, records[0], names, extra)

    def _settle(self, parts: Sequence[Run], answer: RemotingCommand | None) -> None:
        if answer is None:
            _fail(parts, Code.HA_NOT_AVAILABLE, "the connection to the broker was lost")
            return
        if answer.code != ResponseCode.SUCCESS:
            # 10, 11 and 12 mean stored, but not as durably as the broker is set to promise.
            refusal = refusal_of(answer, parts[0].copy.topic)
            _fail(parts, refusal.code, refusal.hint)
            return
        try:
            position, offset = int(answer.fields["msgId"][-16:], 16), answer.fields["queueOffset"]
            place = _places(position, int(offset), sum(part.count for part in parts))
        except (KeyError, ValueError, OverflowError) as error:
            hint = f"{self._broker}: answer to a send: {error}"
            _fail(parts, Code.INTERNAL_SERVER_ERROR, hint)
            return
        at = 0
        for part in parts:
            part.batch.answered(part, part.count, place, at)
            at += part.count


def _places(position: int, offset: int, count: int) -> SendAnswer:
    """Of one record; the members of a batch have an offset each."""
    offsets = array("q", range(offset, offset + count))
    return SendAnswer(0, array("Q", (position,)) * count, offsets, {})


def _fail(parts: Sequence[Run], code: Code, hint: str) -> None:
    for part in parts:
        part.fail(code, hint)


def _take_next(lane: deque[Run]) -> list[Run]:
    """The first message, or the first batch that stays together, which may be of several runs."""
    batch_id, left = _batch_of(lane[0])
    parts: list[Run] = []
    while left and lane and (not parts or _batch_of(lane[0])[0] == batch_id):
        run = lane[0]
        parts.append(lane.popleft() if run.count <= left else run.cut(left))
        left -= parts[-1].count
    return parts


def _batch_of(run: Run) -> tuple[str, int]:
    """
    (id, members) of the batch that the topic keeps together; ("", 1): each message goes alone.

    So it does where light queues list it: an Apache broker lists no inner batch elsewhere.
    """
    if run.copy.is_primary and not _listed(run):
        for name, value in run.copy.head.properties:
            if name == MARK and (batch := read_mark(value))[1] > 0:
                return batch
    return "", 1


def _listed(run: Run) -> list[QueueRef]:
    return [queue for queue in run.copy.queues if queue.kind not in UNLISTED]


def _record(part: Run, index: int, wall_ms: int) -> StoredMessage:
    copy, message = part.copy, part.batch.messages[index]
    pieces: list[bytes | memoryview] = []
    copy.template.add(
        pieces,
        message.body,
        part.batch.ids[index],
        max(0, copy.queue_id),
        message.born_ms or wall_ms,
        encode_extra(message),
        packing_of(message),
    )
    record = decode_record(b"".join(pieces))
    record.flag = message.flag
    if not copy.is_primary:
        record.topic = requests.LIGHT_TOPIC
        record.queue_id = 0
    return record
