"""What was found, for people."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from store.inspection.facts import Damage, SegmentFacts, Survey


def survey_lines(found: Survey) -> Iterator[str]:
    """The folder, a line per file."""
    end = "closed" if found.was_clean else "not closed"
    yield f"log {found.log_id}  epoch {found.epoch}  end {found.end} ({end})"
    for one in found.segments:
        yield _segment_line(one)
    for snapshot in found.snapshots:
        state = f"covers {snapshot.position}" if snapshot.is_whole else "DAMAGED"
        yield f"{snapshot.file}  {state}"
    yield f"{found.spare_count} spare files"
    for name in found.set_aside:
        yield f"{name}  the next start removes it or sets it aside"
    for name in found.went:
        yield f"{name}  was given up by the running store while it was read"


def _segment_line(one: SegmentFacts) -> str:
    times = f"  {_when(one.first_ms)} to {_when(one.newest_ms)}" if one.block_count else ""
    return (
        f"{one.file}  {one.base} to {one.end}  {one.block_count} blocks  {one.record_count} records"
        f"  {one.message_count} messages  index {one.index}{times}"
    )


def damage_line(one: Damage) -> str:
    place = f" byte {one.offset}," if one.offset else ""
    place = f"{place} log position {one.position}" if one.position >= 0 else ""
    return f"DAMAGE {one.file}{place}: {one.says}" + (f", {one.size} bytes" if one.size else "")


def verdict(found: Survey) -> str:
    """One line at the end."""
    records = sum([one.record_count for one in found.segments])
    blocks = sum([one.block_count for one in found.segments])
    counted = f"{records} records in {blocks} blocks of {len(found.segments)} segments"
    rest = ""
    if found.unacknowledged_bytes:
        rest = f"; {found.unacknowledged_bytes} bytes behind the end were never acknowledged"
    if not found.damage:
        return f"whole: {counted}{rest}"
    lost = sum([one.size for one in found.damage])
    return f"DAMAGED in {len(found.damage)} places, {lost} bytes lost: {counted}{rest}"


def block_lines(facts: dict[str, Any]) -> Iterator[str]:
    """One block, and its records if they were asked for."""
    frame = ""
    if facts["gateway"]:
        frame = f"  gateway {facts['gateway']} epoch {facts['gateway_epoch']}"
        frame += f" frame {facts['frame']} ({facts['items']} items, {facts['refused']} refused)"
    yield (
        f"{facts['position']}  block {facts['block']}  {facts['end'] - facts['position']} bytes"
        f"  epoch {facts['epoch']}  confirmed {facts['confirmed']}  {_when(facts['store_ms'])}"
        f"  {facts['records']} records{frame}"
    )
    for row in facts.get("rows", ()):
        places = "".join([f"  {name} offset {offset}" for name, offset in row.get("places", ())])
        target = f"  points to {row['target']}" if "target" in row else ""
        state = "" if row["is_whole"] else "  DAMAGED"
        yield f"  {row['position']}  {row['kind']}  {row['bytes']} bytes{places}{target}{state}"


def _when(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
