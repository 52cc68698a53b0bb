"""Wills over takeovers, lost races and stores that are away: none twice, none lost, none wrong."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from protocols import clock
from protocols.directory import Put, PutResult
from protocols.mqtt import wills
from protocols.mqtt.packets import V5, Connect
from protocols.mqtt.records import SessionRecord, WillRecord, decode_session, encode_session
from tests.support.fake_services import FakeBroker
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway, until
from tests.support.mqtt_sessions import Holder, World, opening

WILL = WillRecord(topic="w", payload=b"dead", qos=1)
HELD = SessionRecord(
    tenant="",
    client_id="c",
    gateway="gw-dead",  # without a lease: nobody waits for its last words
    gateway_epoch=1,
    owner_epoch=7,
    incarnation=7,
    is_connected=True,
    will=WILL,
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World(HELD)
    yield found
    await found.sessions.close()


async def test_who_loses_the_race_sends_no_will(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last connection wrote down an orderly end while the next one took over."""
    put = world.services.directory.put

    async def late(puts: Sequence[Put]) -> list[PutResult]:
        monkeypatch.setattr(world.services.directory, "put", put)
        world.write(msgspec.structs.replace(HELD, is_connected=False, will=None))
        return await put(puts)

    monkeypatch.setattr(world.services.directory, "put", late)
    owned = await world.sessions.open(opening(), Holder())
    assert world.sent == []
    assert owned.version == world.broker.records[world.key].version


async def test_a_takeover_sends_the_will_once(world: World) -> None:
    owned = await world.sessions.open(opening(), Holder())
    assert (world.sent, world.record.owed) == ([b"dead"], ())
    assert owned.version == world.broker.records[world.key].version
    assert [call.client_id for call in world.broker.forgotten] == ["c"]


async def test_a_gateway_that_dies_before_it_sends_the_will_leaves_it_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(services: object, record: SessionRecord) -> SessionRecord:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(wills, "publish_owed", dies)
        with pytest.raises(asyncio.CancelledError):
            await world.sessions.open(opening(), Holder())
    (owed,) = world.record.owed
    assert (world.sent, owed.owner_epoch) == ([], HELD.owner_epoch)
    world.broker.live.clear()
    world.sessions.start()
    await until(lambda: world.sent == [b"dead"])
    await until(lambda: world.is_over)


async def test_a_will_waits_for_its_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session is over, it is not."""
    monkeypatch.setattr(wills, "AGAIN_MS", 1)
    world.broker.is_down = True
    owned = await world.sessions.open(opening(), Holder())
    assert [owed.will for owed in owned.record.owed] == [WILL]
    await world.sessions.disconnected(owned, owned.record, sends_will=True)
    world.sessions.start()
    await until(lambda: len(world.sent) > 2)
    world.broker.is_down = False
    await until(lambda: world.is_over)
    assert len(world.broker.log) == 1


async def test_a_will_does_not_wait_for_the_next_connection_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is published when its store is back, and no more when the connection ends."""
    monkeypatch.setattr(wills, "AGAIN_MS", 1)
    broker = FakeBroker()
    async with gateway(broker, "gw-1") as (_, address):
        key = HELD.key
        broker.write(Put(key, encode_session(HELD)), "gw-1", 1)
        broker.is_down = True
        async with MqttClient(address, Connect(V5, "c")):
            assert len(decode_session(broker.records[key].value or b"").owed) == 1
            broker.is_down = False
            await until(lambda: not decode_session(broker.records[key].value or b"").owed)
            assert len(broker.log) == 1
        await until(lambda: key not in broker.records)
        assert len(broker.log) == 1


async def test_a_will_does_not_wait_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.broker.is_down = True
    owned = await world.sessions.open(opening(), Holder())
    now_ms = clock.wall_ms()
    monkeypatch.setattr(clock, "wall_ms", lambda: now_ms + wills.KEPT_MS_MAX + 1)
    settled = await wills.publish_owed(world.services, owned.record)
    assert settled.owed == ()


def test_a_record_keeps_so_many_wills() -> None:
    record = HELD
    for number in range(wills.OWED_MAX + 1):
        owed = wills.taken_over(record, is_present=False, wall_ms=number + 1)
        record = msgspec.structs.replace(HELD, owed=owed)
    assert [item.due_ms for item in record.owed] == list(range(2, wills.OWED_MAX + 2))


def test_a_delayed_will_is_cancelled_by_who_resumes() -> None:
    kept = msgspec.structs.replace(HELD, expiry_s=60, will=msgspec.structs.replace(WILL, delay_s=5))
    assert wills.taken_over(kept, is_present=True, wall_ms=1) == ()
    assert len(wills.taken_over(kept, is_present=False, wall_ms=1)) == 1
    for changes in ({"will": WILL}, {"expiry_s": 0}):  # no delay, or none that its end waits for
        assert (
            len(
                wills.taken_over(
                    msgspec.structs.replace(kept, **changes), is_present=True, wall_ms=1
                )
            )
            == 1
        )
