"""
Gateways as a store knows them: numbered frames run once, fenced epochs, refused order keys.

A frame's number and refusals are in its block, so all of this is rebuilt from the log; the answer
of a frame that ran before a restart is read back from its block (store page, rule 11).
"""

from array import array
from collections import OrderedDict
from typing import Any, NamedTuple

from protocols.errors import Code, Refused
from protocols.remoting.sending import SendAnswer
from store.core import Core
from store.log.format import BLOCK, BlockHeader, Kind, block_bytes, decode_block_head
from store.log.recovery import ScannedBlock
from store.log.state import pack, unpack


class GatewayFrames:
    """What is known of one gateway's frames."""

    __slots__ = ("epoch", "fenced", "last_frame", "name", "number", "refused_orders", "results")

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.epoch = 0
        self.fenced = 0
        """Frames of this and earlier epochs are refused."""

        self.last_frame = 0
        self.results: OrderedDict[int, tuple[int, SendAnswer | None]] = OrderedDict()
        """Frame → (log position of its block, its answer if it ran in this run)."""

        self.refused_orders: dict[int, int] = {}
        """Order hash → frame in which an item of it was refused."""


class FrameTable:
    """All gateways that ever sent here."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_name: dict[str, GatewayFrames] = {}
        self._by_number: dict[int, GatewayFrames] = {}

    def get(self, name: str) -> GatewayFrames:
        """The gateway; a new one gets a number."""
        gateway = self._by_name.get(name)
        if gateway is None:
            number = len(self._by_number) + 1
            self._core.log.state(Kind.GATEWAY, pack(number, name))
            gateway = self.apply_gateway(number, name)
        return gateway

    def find(self, name: str) -> GatewayFrames | None:
        return self._by_name.get(name)

    def enter(self, gateway: GatewayFrames, epoch: int) -> None:
        """A request of *epoch*. Raises Refused if that epoch has ended."""
        if epoch <= gateway.fenced or epoch < gateway.epoch:
            raise Refused(Code.PRECONDITION_FAILED, gateway.name, "this gateway epoch has ended")
        if epoch > gateway.epoch:
            _new_epoch(gateway, epoch)

    def ran(
        self, gateway: GatewayFrames, frame: int, position: int, answer: SendAnswer | None
    ) -> None:
        gateway.last_frame = max(gateway.last_frame, frame)
        gateway.results[frame] = (position, answer)
        while len(gateway.results) > self._core.config.frame_results_max:
            gateway.results.popitem(last=False)

    def answered(self, gateway: GatewayFrames, frame: int) -> None:
        """The gateway has all answers up to *frame*: forget them, lift refusals it has seen."""
        results = gateway.results
        while results and next(iter(results)) <= frame:
            results.popitem(last=False)
        if gateway.refused_orders:
            orders = gateway.refused_orders.items()
            gateway.refused_orders = {order: at for order, at in orders if at > frame}

    def result(self, gateway: GatewayFrames, frame: int) -> SendAnswer | None:
        """The answer that a frame had; None: it did not run, or its answer was received."""
        if frame not in gateway.results:
            return None
        position, answer = gateway.results[frame]
        return answer if answer is not None else read_answer(self._core, position)

    # ── replay ──────────────────────────────────────────────────────────────────────────

    def apply_gateway(self, number: int, name: str) -> GatewayFrames:
        gateway = self._by_name.get(name)
        if gateway is None:
            gateway = self._by_name[name] = self._by_number[number] = GatewayFrames(number, name)
        return gateway

    def apply_block(self, header: BlockHeader, position: int) -> None:
        gateway = self._by_number.get(header.gateway)
        if gateway is not None:
            if header.gateway_epoch > gateway.epoch:
                _new_epoch(gateway, header.gateway_epoch)
            self.ran(gateway, header.frame, position, None)

    def apply_facts(self, header: BlockHeader, payload: bytes | memoryview) -> None:
        gateway = self._by_number.get(header.gateway)
        if gateway is not None:
            if header.gateway_epoch > gateway.epoch:
                _new_epoch(gateway, header.gateway_epoch)
            for _, _, _, order in FrameFacts._make(unpack(payload)).refused:
                if order:
                    gateway.refused_orders[order] = header.frame

    def apply_settled(self, number: int, epoch: int, frame: int) -> None:
        gateway = self._by_number[number]
        if epoch > gateway.epoch:
            _new_epoch(gateway, epoch)
        gateway.last_frame = max(gateway.last_frame, frame)

    def apply_fence(self, number: int, epoch: int) -> None:
        gateway = self._by_number[number]
        gateway.fenced = max(gateway.fenced, epoch)

    def dump(self) -> list[Any]:
        return [
            (
                gateway.number,
                gateway.name,
                gateway.epoch,
                gateway.fenced,
                gateway.last_frame,
                [(frame, position) for frame, (position, _) in gateway.results.items()],
                list(gateway.refused_orders.items()),
            )
            for gateway in self._by_number.values()
        ]

    def load(self, rows: list[Any]) -> None:
        for number, name, epoch, fenced, last_frame, results, refused in rows:
            gateway = self.apply_gateway(number, name)
            gateway.epoch, gateway.fenced, gateway.last_frame = epoch, fenced, last_frame
            gateway.results = OrderedDict((frame, (at, None)) for frame, at in results)
            gateway.refused_orders = dict(refused)


class FrameFacts(NamedTuple):
    """Payload of a FRAME_RESULT record: what the entry table does not say."""

    refused: list[tuple[int, int, str, int]]
    """(item, code, hint, order hash)."""

    partial: list[tuple[int, bytes, int]]
    repeats: list[tuple[int, int, int]]
    """(item, position, offset) of items whose once-key was known; position -1 - i: as item i."""


def _new_epoch(gateway: GatewayFrames, epoch: int) -> None:
    gateway.epoch, gateway.last_frame = epoch, 0
    gateway.results.clear()
    gateway.refused_orders.clear()


def read_answer(core: Core, position: int) -> SendAnswer | None:
    """
    The answer of the frame whose block is at *position*, verified.

    None: the block is gone or rot. Nobody knows then what became of the items: the gateway sends
    them again, which may store some twice but loses none.
    """
    block = _read_block(core, position)
    if block is None:
        return None
    at = block.records_at
    facts = FrameFacts([], [], [])
    stored: list[tuple[int, int]] = []
    for entry in block.entries():
        if entry.kind == Kind.MESSAGE:
            stored.append((at, entry.offset if entry.queue else -1))
        elif entry.kind == Kind.FRAME_RESULT:
            payload = block.record(at, entry)
            if payload is None:
                return None
            facts = FrameFacts._make(unpack(payload))
        at += entry.length
    return make_answer(block.header.frame, block.header.item_count, stored, facts)


def _read_block(core: Core, position: int) -> ScannedBlock | None:
    segment = core.log.segments.find(position)
    if segment is None:
        return None
    offset, bytes_max = segment.file_offset(position), core.config.block_bytes_max
    try:
        head = core.disk.read(segment.name, offset, BLOCK.size)
        if len(head) < BLOCK.size:
            return None
        size = min(block_bytes(BlockHeader._make(BLOCK.unpack(head))), bytes_max)
        data = memoryview(core.disk.read(segment.name, offset, size))
    except OSError:
        return None
    header = decode_block_head(data, 0, segment.nonce, position, bytes_max)
    return ScannedBlock(segment, position, header, data) if header is not None else None


def make_answer(
    frame: int, count: int, stored: list[tuple[int, int]], facts: FrameFacts
) -> SendAnswer:
    """Put (position, offset) of stored items and the facts about the others in item order."""
    refused = {index: (code, hint) for index, code, hint, _ in facts.refused}
    repeats = {index: (position, offset) for index, position, offset in facts.repeats}
    following = iter(stored)
    positions, offsets = array("Q"), array("q")
    for index in range(count):
        if index in refused:
            position, offset = 0, -1
        else:
            position, offset = repeats.get(index) or next(following)
            if position < 0:
                first = -1 - position
                position, offset = positions[first], offsets[first]
        positions.append(position)
        offsets.append(offset)
    partial = [(index, bytes(key), code) for index, key, code in facts.partial]
    return SendAnswer(frame, positions, offsets, refused, partial)
