"""What a look at a store's folder tells: plain data, ready for text and JSON."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from store.log.format import Kind
from store.log.recovery import ScannedBlock
from store.log.state import unpack

_NAMES: Final = {int(kind): kind.name for kind in Kind}


class Damage(NamedTuple):
    """Something that does not verify and should."""

    part: str
    """``record``, ``block``, ``segment``, ``index`` or ``snapshot``."""

    file: str
    says: str
    segment: int = 0
    """Number of the segment; 0: none."""

    offset: int = 0
    """Byte in the file."""

    position: int = -1
    """Log position; -1: none."""

    block: int = 0
    """Sequence number of the (first) block; 0: none."""

    size: int = 0
    """Bytes that are lost; 0: nothing is, the file is made anew from the log."""


@dataclass(slots=True)
class SegmentFacts:
    """One segment, counted."""

    number: int
    file: str
    base: int
    end: int
    file_bytes: int
    block_count: int = 0
    record_count: int = 0
    message_count: int = 0
    first_ms: int = 0
    newest_ms: int = 0
    index: str = "none"
    """``none``, ``whole`` or ``damaged``."""


class SnapshotFacts(NamedTuple):
    file: str
    position: int
    is_whole: bool


@dataclass(slots=True)
class Survey:
    """The whole folder."""

    log_id: str = ""
    epoch: int = 0
    end: int = 0
    """Log position where the log ends, as the next start would see it."""

    confirmed: int = 0
    """Highest position that is known to have been durable."""

    was_clean: bool = False
    """The last block closes the log."""

    unacknowledged_bytes: int = 0
    """Behind the end, and not whole: being written now, or cut off by a crash."""

    segments: list[SegmentFacts] = field(default_factory=list)
    snapshots: list[SnapshotFacts] = field(default_factory=list)
    spare_count: int = 0
    set_aside: list[str] = field(default_factory=list)
    """Files that the next start removes or sets aside."""

    damage: list[Damage] = field(default_factory=list)
    went: list[str] = field(default_factory=list)
    """Segments that a running store gave up while they were read."""


class QueueNames:
    """Queue number → what people call it."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def load(self, state: dict[str, Any]) -> None:
        """From a snapshot."""
        for number, key, name, _, topic, queue_id, *_ in state["queues"]:
            self._note(number, key, name, topic, queue_id)

    def feed(self, kind: int, record: memoryview) -> None:
        """From the log."""
        if kind == Kind.QUEUE:
            number, key, name, _, topic, queue_id = unpack(record)
            self._note(number, key, name, topic, queue_id)

    def _note(self, number: int, key: bytes, name: str, topic: str, queue_id: int) -> None:
        light = f"light queue {name or key.hex()}"
        self._names[number] = f"queue {queue_id} of topic {topic}" if topic else light

    def __getitem__(self, number: int) -> str:
        return self._names.get(number, f"queue number {number}")

    def places(self, pairs: Iterable[tuple[int, int]]) -> str:
        """(queue number, offset) of one entry, in words."""
        return ", ".join([f"{self[number]} offset {offset}" for number, offset in pairs])


def block_facts(block: ScannedBlock, names: QueueNames, *, with_records: bool) -> dict[str, Any]:
    """One block for ``inspect``; never a body, never the nonce."""
    header = block.header
    facts: dict[str, Any] = {
        "segment": block.segment.number,
        "position": block.position,
        "end": block.end,
        "block": header.sequence,
        "epoch": header.epoch,
        "confirmed": header.confirmed,
        "store_ms": header.store_ms,
        "gateway": header.gateway,
        "gateway_epoch": header.gateway_epoch,
        "frame": header.frame,
        "items": header.item_count,
        "refused": header.refused_count,
        "records": header.record_count,
    }
    if not with_records:
        return facts
    rows: list[dict[str, Any]] = []
    at = block.records_at
    for entry in block.entries():
        record = block.record(at, entry)
        row: dict[str, Any] = {
            "position": at,
            "kind": kind_name(entry.kind),
            "bytes": entry.length,
            "is_whole": record is not None,
        }
        if record is not None:
            names.feed(entry.kind, record)
        if places := places_of(entry.queue, entry.offset, entry.pairs):
            row["places"] = [[names[number], offset] for number, offset in places]
        if entry.expires_at_ms:
            row["expires_at_ms"] = entry.expires_at_ms
        if entry.target >= 0:
            row["target"] = entry.target
        rows.append(row)
        at += entry.length
    return {**facts, "rows": rows}


def kind_name(kind: int) -> str:
    return _NAMES.get(kind, f"KIND {kind}")


def places_of(queue: int, offset: int, pairs: tuple[int, ...]) -> list[tuple[int, int]]:
    """(queue number, offset) of every queue that an entry is in."""
    rest = iter(pairs)
    lights = list(zip(rest, rest, strict=True))
    return [(queue, offset), *lights] if queue else lights
