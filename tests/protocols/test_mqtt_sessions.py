"""Who owns a client id: epochs, races and takeovers, as a dialogue with the directory."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from protocols import clock
from protocols.canonical import Call
from protocols.directory import Put, PutResult
from protocols.errors import Code, Refused
from protocols.groups import GroupSpec
from protocols.mqtt.records import SessionRecord, SubscriptionRecord
from protocols.mqtt.session import Subscribed
from protocols.mqtt.sessions import RACES_MAX
from tests.support.mqtt_front import until
from tests.support.mqtt_sessions import Holder, World, opening

FREE = SessionRecord(
    tenant="",
    client_id="c",
    gateway="gw-2",
    gateway_epoch=1,
    owner_epoch=7,
    incarnation=5,
    identity="x",
    is_kept=True,
    expiry_s=60,
)
"""A kept session that nobody is connected to."""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World(FREE)
    yield found
    await found.sessions.close()


def elsewhere(world: World, *, by: int) -> SessionRecord:
    """The record as another gateway writes it, *by* so many owner epochs on."""
    record = msgspec.structs.replace(world.record, owner_epoch=world.record.owner_epoch + by)
    world.write(record)
    return record


def dropped_groups(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of those that end from now on."""
    names: list[str] = []

    async def drop(call: Call, spec: GroupSpec) -> None:
        names.append(spec.name)

    monkeypatch.setattr(world.services.streams, "drop_group", drop)
    return names


# ── owner epochs ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("by", "count"), [(1, 1), (0, 0), (-1, 0)])
async def test_only_a_higher_epoch_takes_over(world: World, by: int, count: int) -> None:
    """Its own writes, and old news, are none."""
    holder = Holder()
    await world.sessions.open(opening(expiry_s=60), holder)
    elsewhere(world, by=by)
    assert holder.taken_count == count
    elsewhere(world, by=5)
    assert holder.taken_count == 1  # told once


async def test_a_record_that_is_gone_takes_over(world: World) -> None:
    holder = Holder()
    await world.sessions.open(opening(expiry_s=60), holder)
    world.broker.write(Put(world.key, None), "gw-2", 1)
    assert holder.taken_count == 1


async def test_an_epoch_is_above_all_that_were(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the clock stands still, or the last owner's was ahead."""
    now_ms = clock.wall_ms()
    monkeypatch.setattr(clock, "wall_ms", lambda: now_ms)
    first = await world.sessions.open(opening(expiry_s=60), Holder())
    second = await world.sessions.open(opening(expiry_s=60), Holder())
    assert (first.record.owner_epoch, second.record.owner_epoch) == (now_ms, now_ms + 1)
    ahead = elsewhere(world, by=1_000_000)
    third = await world.sessions.open(opening(expiry_s=60), Holder())
    assert third.record.owner_epoch == ahead.owner_epoch + 1
    world.broker.write(Put(world.key, None), "gw-2", 1)
    fourth = await world.sessions.open(opening(expiry_s=60), Holder())
    assert fourth.record.owner_epoch > third.record.owner_epoch


async def test_who_was_taken_over_cannot_save(world: World) -> None:
    owned = await world.sessions.open(opening(expiry_s=60), Holder())
    again = await world.sessions.save(owned, owned.record)
    with pytest.raises(Refused) as refused:
        await world.sessions.save(owned, owned.record)  # with the version before
    assert refused.value.code == Code.PRECONDITION_FAILED
    taken = elsewhere(world, by=1)
    with pytest.raises(Refused):
        await world.sessions.save(again, again.record)
    assert world.record == taken


async def test_who_was_taken_over_writes_no_end(world: World) -> None:
    """Neither keeps nor deletes what is another's now."""
    owned = await world.sessions.open(opening(expiry_s=60), Holder())
    taken = elsewhere(world, by=1)
    for expiry_s in (60, 0):
        record = msgspec.structs.replace(owned.record, expiry_s=expiry_s)
        await world.sessions.disconnected(owned, record, sends_will=False)
        assert world.record == taken


# ── opening ─────────────────────────────────────────────────────────────────────────────


async def test_the_connection_before_is_waited_for(world: World) -> None:
    """It lets go of the streams before the next one opens its own."""
    first, second = Holder(), Holder()
    first.gone.clear()
    await world.sessions.open(opening(expiry_s=60), first)
    version = world.broker.version
    opened = asyncio.create_task(world.sessions.open(opening(expiry_s=60), second))
    await until(lambda: first.taken_count == 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (opened.done(), world.broker.version) == (False, version)
    first.gone.set()
    owned = await opened
    assert (owned.is_present, first.taken_count, second.taken_count) == (True, 1, 0)
    assert not owned.is_cut  # it put aside what it had under way


async def test_a_session_of_another_identity_is_left_alone(world: World) -> None:
    holder = Holder()
    await world.sessions.open(opening(expiry_s=60), holder)
    record = world.record
    with pytest.raises(Refused) as refused:
        await world.sessions.open(opening(expiry_s=60, identity="y", guarded=True), Holder())
    assert refused.value.code == Code.FORBIDDEN
    assert (holder.taken_count, world.record) == (0, record)
    await world.sessions.open(opening(expiry_s=60, identity="x", guarded=True), Holder())
    assert holder.taken_count == 1


async def test_a_refused_opening_does_not_hold_up_the_next(world: World) -> None:
    """The turn goes on, whatever became of it."""
    world.services.is_cut_off = True
    with pytest.raises(Refused) as refused:
        await world.sessions.open(opening(expiry_s=60), Holder())
    assert refused.value.code == Code.HA_NOT_AVAILABLE
    world.services.is_cut_off = False
    async with asyncio.timeout(5):
        assert (await world.sessions.open(opening(expiry_s=60), Holder())).is_present


@pytest.mark.parametrize("losses", [RACES_MAX - 1, RACES_MAX])
async def test_races_are_run_so_many_times(
    world: World, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    put, left = world.services.directory.put, [losses]

    async def late(puts: Sequence[Put]) -> list[PutResult]:
        if left[0]:
            left[0] -= 1
            world.write(world.record)  # somebody is faster
        return await put(puts)

    monkeypatch.setattr(world.services.directory, "put", late)
    holder = Holder()
    if losses < RACES_MAX:
        owned = await world.sessions.open(opening(expiry_s=60), holder)
        assert owned.version == world.broker.records[world.key].version
        return
    with pytest.raises(Refused) as refused:
        await world.sessions.open(opening(expiry_s=60), holder)
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    elsewhere(world, by=1)
    assert holder.taken_count == 0  # it never had it


@pytest.mark.parametrize(
    ("changes", "is_present", "is_cut"),
    [
        ({}, True, False),
        ({"is_connected": True}, True, True),  # its gateway has died: nothing was put aside
        ({"is_cut": True}, True, True),
        ({"expiry_s": 0}, False, False),
        ({"ends_at_ms": 1}, False, False),  # over, and not swept yet
    ],
)
async def test_what_is_resumed(changes: dict[str, object], is_present: bool, is_cut: bool) -> None:
    world = World(msgspec.structs.replace(FREE, received=(3,), **changes))
    owned = await world.sessions.open(opening(expiry_s=60, clean=False), Holder())
    assert (owned.is_present, owned.is_cut, owned.record.is_contested) == (
        is_present,
        is_cut,
        is_cut,
    )
    assert owned.received == ((3,) if is_present else ())
    assert owned.record.received == ()  # should this gateway die
    assert (owned.record.incarnation == FREE.incarnation) is is_present
    await world.sessions.close()


async def test_a_clean_start_forgets_the_session_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows and its group; one that is resumed keeps them."""
    dropped = dropped_groups(world, monkeypatch)
    item = SubscriptionRecord(topic_filter="t/#", subject_filter="t/#", tag=1)
    world.write(msgspec.structs.replace(FREE, subscriptions=(item,)))
    resumed = await world.sessions.open(opening(expiry_s=60, clean=False), Holder())
    assert (resumed.record.subscriptions, dropped) == ((item,), [])
    owned = await world.sessions.open(opening(expiry_s=60, clean=True), Holder())
    assert (owned.is_present, owned.received, owned.record.subscriptions) == (False, (), ())
    assert owned.record.incarnation == owned.record.owner_epoch
    assert dropped == ["mqtt//c"]


@pytest.mark.parametrize(
    ("found", "expiry_s", "is_kept"),
    [(0, 0, False), (0, 1, True), (60, 0, True)],  # found: what the session before asked for
)
async def test_what_is_kept(found: int, expiry_s: int, is_kept: bool) -> None:
    """What ends with its connection ends with its gateway's lease, too."""
    world = World(msgspec.structs.replace(FREE, expiry_s=found))
    await world.sessions.open(opening(expiry_s=expiry_s, clean=False), Holder())
    record = world.broker.records[world.key]
    assert (world.record.is_kept, record.gateway == "") == (is_kept, is_kept)
    await world.sessions.close()


# ── letting go ──────────────────────────────────────────────────────────────────────────


async def test_who_lets_go_late_takes_nothing_from_the_next(world: World) -> None:
    """The one that holds it now is still told of a takeover."""
    first, second = Holder(), Holder()
    call = opening().call
    owned = await world.sessions.open(opening(expiry_s=60), first)
    await world.sessions.open(opening(expiry_s=60), second)
    world.sessions.let_go(owned, first, call)
    elsewhere(world, by=1)
    assert second.taken_count == 1


async def test_who_has_let_go_is_told_nothing(world: World) -> None:
    holder, call = Holder(), opening().call
    owned = await world.sessions.open(opening(expiry_s=60), holder)
    world.sessions.let_go(owned, holder, call)
    elsewhere(world, by=1)
    assert holder.taken_count == 0
    assert world.broker.forgotten == [call]


def sent_last(world: World, call: Call) -> list[int]:
    """What *call* posted waits for its store: so many results, in the end."""
    stored: list[int] = []
    world.services.pipeline.waiting[call] = [lambda: stored.append(1)]
    return stored


@pytest.mark.parametrize(("by", "is_stored"), [(0, True), (-1, True), (1, False)])
async def test_what_was_sent_last_is_withdrawn_when_its_client_is_elsewhere(
    world: World, by: int, is_stored: bool
) -> None:
    """There it is sent again; a write that is no takeover changes nothing."""
    holder, call = Holder(), opening().call
    owned = await world.sessions.open(opening(expiry_s=60), holder)
    stored = sent_last(world, call)
    world.sessions.let_go(owned, holder, call)
    elsewhere(world, by=by)
    world.services.pipeline.store_comes_back()
    assert bool(stored) is is_stored


# ── what is due for sessions that nobody holds ──────────────────────────────────────────


async def test_sessions_of_a_live_gateway_are_left_alone(world: World) -> None:
    """Those of a dead one are disconnected, once."""
    connected = msgspec.structs.replace(FREE, is_connected=True)
    world.broker.live.add(("gw-2", 1))
    world.write(connected)
    world.sessions.start()
    await world.sessions._settle(connected, world.broker.records[world.key].version)
    assert world.record == connected
    world.broker.live.discard(("gw-2", 1))
    await until(lambda: not world.record.is_connected)
    assert world.record.is_cut


async def test_a_session_ends_when_it_is_due_and_not_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group with it."""
    now_ms, dropped = clock.wall_ms(), dropped_groups(world, monkeypatch)
    monkeypatch.setattr(clock, "wall_ms", lambda: now_ms)
    for ends_at_ms, is_over in ((now_ms + 1, False), (now_ms, True)):
        record = msgspec.structs.replace(FREE, ends_at_ms=ends_at_ms, has_group=True)
        world.write(record)
        await world.sessions._settle(record, world.broker.records[world.key].version)
        assert (world.is_over, world.sessions.expired_count) == (is_over, int(is_over))
        assert dropped == ["mqtt//c"] * is_over


async def test_who_loses_the_race_to_end_a_session_counts_nothing(world: World) -> None:
    record = msgspec.structs.replace(FREE, ends_at_ms=1)
    await world.sessions._settle(record, world.broker.records[world.key].version - 1)
    assert (world.is_over, world.sessions.expired_count) == (False, 0)


# ── exclusive and shared subscriptions ──────────────────────────────────────────────────


async def test_an_exclusive_filter_has_one_session(world: World) -> None:
    mine, other = FREE, msgspec.structs.replace(FREE, client_id="d")
    assert await world.sessions.claim(mine, "a/b")
    assert await world.sessions.claim(mine, "a/b")  # once more, of the same client
    assert not await world.sessions.claim(other, "a/b")
    assert await world.sessions.claim(other, "a/c")
    await world.sessions.give_up(other, "a/b")  # not its own
    assert not await world.sessions.claim(other, "a/b")
    await world.sessions.give_up(mine, "a/b")
    assert await world.sessions.claim(other, "a/b")


async def test_the_last_member_takes_its_share_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = dropped_groups(world, monkeypatch)
    other = msgspec.structs.replace(FREE, client_id="d")
    item = Subscribed("$share/s/a/b", "s", "a/b", 1, False, False, 0, tag=1)
    for record in (FREE, other):
        await world.sessions.join_share(record, item)
    await world.sessions.leave_share(FREE, item)
    assert dropped == []
    await world.sessions.leave_share(other, item)
    assert dropped == ["share//s/a/b"]
