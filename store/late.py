"""
Late entries: a message enters light queues after it was stored (semantics: Who gets a publish).

What becomes visible without a gateway (a direct producer's send, a timer that is due, a commit)
stands in the light queue ``$dispatch`` of its store. The gateway that takes it from there answers
with an *index record*: a pointer to the message, with places of its own in the queues that match
today. It is also the ack of the delivery that caused it, in the same block: once, or not at all.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.canonical import is_created_explicitly
from protocols.checksum import crc32
from protocols.errors import Code, Refused
from protocols.remoting.private import IndexItem
from protocols.remoting.settling import AckItem
from store.appender import place_in
from store.core import Core
from store.groups.deliveries import Deliveries
from store.groups.table import GroupTable
from store.index.queues import Queue
from store.log.format import (
    BLOCK,
    ENTRY,
    M32,
    PAIR,
    TARGET,
    EntryFlag,
    Kind,
    entry_extra,
    entry_struct,
    seed,
    state_entry,
)
from store.policies.admission import Admission
from store.policies.handover import Handover
from store.policies.keeper import TOO_LONG, Keeper

NO_ADDRESS: Final = ("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_", "CID_RMQ_SYS_")
NO_ADDRESS_NAMES: Final = frozenset(
    ("TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest",
     "TRANS_CHECK_MAX_TIME_TOPIC"),
)  # fmt: skip

KEPT_FLAGS: Final = int(EntryFlag.QOS | EntryFlag.RETAIN | EntryFlag.HAS_TAG)
"""What an index record takes over from the message it points to."""

OK: Final = int(Code.OK)
STALE: Final = int(Code.INVALID_RECEIPT_HANDLE)
GONE: Final = int(Code.MESSAGE_NOT_FOUND)


def is_addressed(topic: str) -> bool:
    """Whether subscriptions of other protocols can match messages of *topic*."""
    return not (
        topic.startswith(NO_ADDRESS) or topic in NO_ADDRESS_NAMES or topic.endswith("_REPLY_TOPIC")
    )


def usable_lights(core: Core, keys: Sequence[bytes]) -> list[Queue]:
    """The queues of *keys* that are there or may come into being."""
    find = core.queues.find
    return [
        core.new_light_queue(key, "", {}) if queue is None else queue
        for key in keys
        if (queue := find(key)) is not None or not is_created_explicitly(key)
    ]


class Pointer(NamedTuple):
    """One index record to be."""

    target: int
    """Log position of the message."""

    lights: tuple[Queue, ...]
    tag: int
    order: int
    flags: int
    expires_at_ms: int

    @property
    def extra(self) -> bytes:
        """Optional fields of its row."""
        return entry_extra(self.flags, self.expires_at_ms, b"", self.target)

    @property
    def row_bytes(self) -> int:
        return ENTRY.size + PAIR.size * len(self.lights) + len(self.extra)


class LateEntries:
    """Answers gateways that matched what they took from ``$dispatch``."""

    def __init__(
        self,
        core: Core,
        groups: GroupTable,
        deliveries: Deliveries,
        keeper: Keeper,
        handover: Handover,
    ) -> None:
        self._core = core
        self._groups = groups
        self._deliveries = deliveries
        self._keeper = keeper
        self._handover = handover

    def index(self, epoch: int, items: Sequence[IndexItem]) -> list[tuple[int, int]]:
        """
        (grant, code) per item; all that count stand in one block.

        A queue that rejects what is too much takes nothing here either. There is no publisher to
        be told; its dead letters, if it has them, are handed over.
        """
        admission = Admission((), self._keeper.judges, self._core.entries.end, self._core.credit_of)
        results: list[tuple[int, int]] = []
        acks: dict[tuple[int, int], AckItem] = {}
        pointers: list[Pointer] = []
        for target, keys, number, position, grant in items:
            if number and (
                (number, position) in acks or not self._holds(number, position, grant, epoch)
            ):
                results.append((grant, STALE))
                continue
            pointer = self._pointer(target, keys, admission)
            if number:
                acks[number, position] = AckItem(number, position, grant)
            if pointer is None:
                results.append((grant, GONE))
                continue
            results.append((grant, OK))
            if pointer.lights:
                pointers.append(pointer)
        if acks:
            self._deliveries.ack(epoch, list(acks.values()))
        if pointers:
            append_pointers(self._core, pointers)
        for guard, record in admission.dead:
            self._handover.records(guard, [record], TOO_LONG)
        return results

    def _holds(self, number: int, position: int, grant: int, epoch: int) -> bool:
        """As the ack will see it: never one of the two without the other."""
        group = self._groups.get(number)
        batch = group.in_flight.get(position) if group is not None else None
        return batch is not None and batch.is_named_by(grant, epoch, self._core.log.epoch)

    def _pointer(self, target: int, keys: Sequence[bytes], admission: Admission) -> Pointer | None:
        """None: the message is gone."""
        entries = self._core.entries
        columns, at = entries.locate(target)
        if at < 0:
            return None
        lights = tuple(dict.fromkeys(usable_lights(self._core, keys)))
        if not self._keeper.judges.keys().isdisjoint(lights):
            try:
                record = self._core.record_at(target)
            except Refused:
                return None
            lights, _ = admission.admit(lights, memoryview(record))
        flags = columns.flags[at] & KEPT_FLAGS | EntryFlag.HAS_TARGET
        expires_at_ms = entries.expires.get(target, 0)
        if expires_at_ms:
            flags |= EntryFlag.HAS_EXPIRES
        return Pointer(target, lights, columns.tags[at], columns.orders[at], flags, expires_at_ms)


def append_pointers(core: Core, pointers: Sequence[Pointer]) -> list[int]:
    """
    One block of index records; the positions of their entries.

    State that waits (the acks of the deliveries that caused them) goes into the same block.
    """
    log = core.log
    state = log.take_state()
    table_bytes = ENTRY.size * len(state)
    table_bytes += sum([pointer.row_bytes for pointer in pointers])
    payloads = [payload for _, payload in state] + [TARGET.pack(p.target) for p in pointers]
    body = b"".join(payloads)
    position, nonce = log.open_block(BLOCK.size + table_bytes + len(body))
    at = position + BLOCK.size + table_bytes
    table: list[bytes] = []
    for kind, part in state:
        table.append(state_entry(kind, len(part), crc32(part, seed(nonce, at)) & M32))
        at += len(part)
    positions: list[int] = []
    for pointer, payload in zip(pointers, payloads[len(state) :], strict=True):
        crc = crc32(payload, seed(nonce, at)) & M32
        table.append(_entry(core, pointer, at, crc))
        positions.append(at)
        at += len(payload)
    log.close_block(position, b"".join(table), body, len(table), len(table))
    core.appended(dict.fromkeys([light for pointer in pointers for light in pointer.lights]))
    return positions


def _entry(core: Core, pointer: Pointer, position: int, crc: int) -> bytes:
    """The row of an index record, entered in its queues."""
    entries, lights = core.entries, pointer.lights
    tag, order, flags = pointer.tag, pointer.order, pointer.flags
    entries.add(position, TARGET.size, crc, tag, order, flags)
    entries.targets[position] = pointer.target
    if pointer.expires_at_ms:
        entries.expires[position] = pointer.expires_at_ms
    pairs = place_in(lights, position)
    row = entry_struct(len(lights)).pack(
        pointer.row_bytes, Kind.INDEX, 0, flags, len(lights), TARGET.size, crc, tag, order,
        0, 0, *pairs,
    )  # fmt: skip
    return row + pointer.extra
