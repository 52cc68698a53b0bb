"""What a store that came up must show, held against the reference."""

from protocols.clock import Now
from protocols.remoting.sending import decode_send_answer
from store.answers import ReadResult, ReadStatus
from store.engine import Engine
from tests.simulation.reference import NOWHERE, Entry, Group, Model, QueueName
from tests.store.engine_kit import body_of

ALL = 100_000
PROBE = 1 << 30
"""Stream of the one that looks."""


class Broken(AssertionError):
    """A promise was not kept."""


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Broken(f"{what}: {str(found)[:400]}, not {str(wanted)[:400]}")


def compare(engine: Engine, model: Model, now: Now, *, may_go: bool) -> None:
    """
    All that can be seen of *engine* is what *model* says. Takes what is ready.

    *may_go*: messages that nobody is owed may be gone, with the segments they were in.
    """
    topics = {name: config.write_queue_count for name, config in engine.catalog.topics.items()}
    expect("topics", topics, model.topics)
    expect("settings", dict(engine.catalog.settings("kv")), model.settings)
    for (group, topic, queue_id), offset in model.offsets.items():
        expect("consumer offset", engine.catalog.query_offset(group, topic, queue_id), offset)
    for name, entries in model.queues.items():
        compare_queue(engine, name, entries, may_go=may_go)
    records, covered = engine.gateways.directory_read(0, ALL)
    rows = {one.key: (one.value, one.version, one.gateway, one.gateway_epoch) for one in records}
    expect("directory", rows, model.directory)
    expect("directory version", covered, model.version)
    bodies = [body_of(record) for record in engine.retained("", "#")]
    kept = sorted(model.retained.values())
    expect("retained", bodies, [entry.body for entry in kept])
    expect("groups", sorted(engine.group_names()), sorted(model.groups))
    for group in model.groups.values():
        compare_group(engine, model, group, now)


def compare_queue(engine: Engine, name: QueueName, entries: list[Entry], *, may_go: bool) -> None:
    """Every message at its offset, with its position and bytes; none twice, none missing."""
    offset = low = _read(engine, name, 0).min_offset if may_go else 0
    found: list[tuple[int, bytes]] = []
    at = offset - 1
    while (result := _read(engine, name, offset)).status == ReadStatus.FOUND:
        for record in result.records:
            found.append((int.from_bytes(record[28:36], "big"), body_of(record)))
            before, at = at, int.from_bytes(record[20:28], "big")
            if isinstance(name, tuple) and (at <= before if may_go else at != before + 1):
                raise Broken(f"queue offset in {name}: {at} behind {before}")
        offset = result.next_offset
    if result.status != ReadStatus.NO_QUEUE:
        expect(f"end of {name!r}", result.max_offset, len(entries))
    segments = engine._core.log.segments
    wanted: list[tuple[int, bytes]] = []
    seen = 0
    for entry in entries[low:]:
        one = (entry.target, entry.body)
        is_there = found[seen : seen + 1] == [one]
        seen += is_there
        may_miss = may_go and entry.position != NOWHERE and segments.find(entry.position) is None
        if is_there or not may_miss:  # segments go in any order: some owe nothing
            wanted.append(one)
    if NOWHERE in [target for target, _ in wanted] and not low:
        found = sorted([(NOWHERE, body) for _, body in found])
        wanted.sort()
    elif NOWHERE in [target for target, _ in wanted]:
        expect(f"messages in {name!r}", len(found), len(wanted))
        return
    if found != wanted:
        for number, (one, other) in enumerate(zip(found, wanted, strict=False)):
            expect(f"{name!r} at {number}", (one[0], one[1][:20]), (other[0], other[1][:20]))
        raise Broken(f"{name!r}: {len(found)} messages, not {len(wanted)}")


def _read(engine: Engine, name: QueueName, offset: int) -> ReadResult:
    if isinstance(name, tuple):
        return engine.read(*name, offset, ALL, 1 << 30)
    return engine.read_light(name, offset, ALL, 1 << 30)


def compare_group(engine: Engine, model: Model, group: Group, now: Now) -> None:
    """What is in flight, what came back, what would come next, and the cursor."""
    number = engine.group_number(group.name)
    state = engine.group_state(number)
    flights = [
        (at, one, group.open[at])
        for at, one in zip(group.in_flight(), state.in_flight, strict=False)
    ]
    expect(
        f"in flight of {group.name}", [one.position for one in state.in_flight], group.in_flight()
    )
    for at, shown, one in flights:
        wanted = (one.grant, one.attempts + 1, *one.mark)
        found = (shown.grant, shown.attempt, shown.packet_id, shown.stage)
        expect(f"delivery {at} of {group.name}", found, wanted)
    expect(f"returned to {group.name}", list(state.returned), group.returned())
    compare_cursor(model, group, state.cursor, engine.confirmed)
    taken = model.plan_take(group, ALL, engine.confirmed)
    granted = engine.take(number, ALL, now, holder=PROBE)
    expect(f"next of {group.name}", [one.position for one in granted], taken.positions)
    targets = {entry.position: entry for entry in taken.looked}
    for one in granted:
        wanted_body = (targets.get(one.position) or group.open[one.position]).body
        expect("bytes", body_of(engine.record_at(one.record_position)), wanted_body)


def compare_cursor(model: Model, group: Group, cursor: int, visible: int) -> None:
    """Everything below the cursor is done, and it lags behind nothing but what is open."""
    owed = [*group.open, *[entry.position for entry in model.fresh(group, visible)]]
    if owed and cursor > min(owed):
        raise Broken(f"cursor {cursor} of {group.name} has passed {min(owed)}, which is not done")


def compare_frames(
    engine: Engine, model: Model, gateway: str, epoch: int, numbers: list[int], now: Now
) -> None:
    """What became of each frame; one that did not run is spent by the question."""
    for number in numbers:
        pending = engine.gateways.settle(gateway, epoch, number, now)
        wanted = model.frames.get(gateway, {}).get(number)
        expect(f"frame {number} ran", pending.value.did_run, wanted is not None)
        if wanted is not None:
            answer = decode_send_answer(pending.value.answer)
            codes = {index: code for index, (code, _) in answer.refused.items()}
            found = (list(answer.positions), list(answer.offsets), codes)
            expect(f"answer of frame {number}", found, wanted)
