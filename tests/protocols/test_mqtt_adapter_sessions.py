"""Sessions, wills and QoS 2 on real sockets: what outlives a connection, and a gateway."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from protocols.errors import Code
from protocols.mqtt import inbound
from protocols.mqtt.adapter import MqttAdapter
from protocols.mqtt.packet_ids import BLOCK
from protocols.mqtt.packets import (
    NEVER_EXPIRES_S,
    V5,
    V311,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    SubscribeItem,
    Unsuback,
    Unsubscribe,
    Will,
)
from protocols.mqtt.properties import Property
from protocols.mqtt.records import SessionRecord, decode_session, session_key
from tests.support.core import call
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway, until

KEPT = ((int(Property.SESSION_EXPIRY), NEVER_EXPIRES_S),)
Served = tuple[FakeServices, tuple[str, int]]


def is_connected(services: FakeServices, client_id: str) -> bool:
    found = services.directory.get(session_key("", client_id))
    assert found is not None
    assert found.value is not None
    return decode_session(found.value).is_connected


@pytest.fixture
async def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def served(broker: FakeBroker) -> AsyncIterator[Served]:
    async with gateway(broker, "gw-1") as both:
        yield both


async def test_a_durable_session_resumes_with_its_packet_ids(broker: FakeBroker) -> None:
    """At another gateway: the same ids, in order, DUP set; then what was queued meanwhile."""
    connect = Connect(V5, "dur", clean_start=False, properties=KEPT)
    async with gateway(broker, "gw-1") as (_, first), gateway(broker, "gw-2") as (_, second):
        async with MqttClient(first, connect) as client:
            assert not client.connack.session_present
            await client.subscribe(SubscribeItem("d/#", 2))
            await client.publish("d/1", b"1", 1)
            await client.publishes(1, acks=False)
            await client.publish("d/2", b"2", 2)
            (packet,) = await client.publishes(1)
            client.send(Pubrec(packet.packet_id))
            assert await client.receive() == Pubrel(packet.packet_id)
        async with MqttClient(second, Connect(V5, "pub")) as pub:
            await pub.publish("d/3", b"3", 1)
        async with MqttClient(second, connect) as client:
            assert client.connack.session_present
            again = await client.receive()
            assert again == Publish("d/1", b"1", 1, dup=True, packet_id=1)
            assert await client.receive() == Pubrel(2)
            assert await client.receive() == Publish("d/3", b"3", 1, packet_id=3)


@pytest.mark.parametrize("last_qos", [1, 2])
async def test_what_comes_again_does_not_overtake_what_lost_its_mark(
    broker: FakeBroker, last_qos: int
) -> None:
    """The first gateway's marks are no prefix of what it had: the second has no id for one."""
    connect = Connect(V5, "dur", clean_start=False, properties=KEPT)
    async with gateway(broker, "gw-1") as (_, first), gateway(broker, "gw-2") as (_, second):
        async with MqttClient(first, connect) as client:
            await client.subscribe(SubscribeItem("t", 2))
        async with MqttClient(second, Connect(V5, "pub")) as pub:
            for body, qos in ((b"1", 2), (b"2", 2), (b"3", last_qos)):
                await pub.publish("t", body, qos)
        async with MqttClient(first, connect) as client:
            await client.publishes(3, acks=False)
        _, unmarked, _ = broker.groups["mqtt//dur"].in_flight.values()
        unmarked.packet_id = unmarked.stage = 0
        async with MqttClient(second, connect) as client:
            assert await client.publishes(3, acks=False) == [
                Publish("t", b"1", 2, dup=True, packet_id=1),
                Publish("t", b"2", 2, packet_id=4),
                Publish("t", b"3", last_qos, dup=True, packet_id=3),
            ]


@pytest.mark.parametrize("is_killed", [True, False])
async def test_ids_that_a_store_has_which_is_away_are_not_given_again(
    broker: FakeBroker, *, is_killed: bool
) -> None:
    """Nobody tells the second gateway what is in flight; it may come late."""
    connect = Connect(V5, "dur", clean_start=False, properties=KEPT)
    async with gateway(broker, "gw-1") as (services, first), gateway(broker, "gw-2") as (_, second):
        async with MqttClient(second, Connect(V5, "pub")) as pub, MqttClient(first, connect) as one:
            await one.subscribe(SubscribeItem("t", 2))
            await pub.publish("t", b"1", 2)
            await pub.publish("t", b"2", 2)
            await one.publishes(2, acks=False)
            if is_killed:
                services.is_cut_off = True
                broker.end_lease("gw-1", 1)
        group = broker.groups["mqtt//dur"]
        await until(lambda: not group.streams)
        away = list(group.in_flight.values())
        for flight in away:
            flight.holder = away
        async with (
            MqttClient(second, Connect(V5, "pub")) as pub,
            MqttClient(second, connect) as two,
        ):
            await pub.publish("t", b"3", 2)
            packet_id = BLOCK + 1 if is_killed else 3
            assert await two.publishes(1) == [Publish("t", b"3", 2, packet_id=packet_id)]
            two.send(Pubrec(2))  # the client had it, and waits for the end
            assert await two.receive() == Pubrel(2)
            for flight in away:
                flight.holder = None
            group.streams[0].adopt()
            again = [Publish("t", b"1", 2, dup=True, packet_id=1)]
            assert await two.publishes(1) == again
            assert await two.is_silent()
            left = [flight.packet_id for flight in group.in_flight.values()]
            assert left == [1, packet_id]


async def test_a_durable_session_is_a_member_of_its_shares_again(broker: FakeBroker) -> None:
    """What nobody took meanwhile comes, and what is published from now on."""
    connect = Connect(V5, "dur", clean_start=False, properties=KEPT)
    async with gateway(broker, "gw-1") as (_, first), gateway(broker, "gw-2") as (_, second):
        async with MqttClient(first, connect) as client:
            await client.subscribe(SubscribeItem("$share/g/t", 1))
        async with MqttClient(second, Connect(V5, "pub")) as pub:
            await pub.publish("t", b"away", 1)
            async with MqttClient(second, connect) as client:
                await pub.publish("t", b"here", 1)
                assert [packet.payload for packet in await client.publishes(2)] == [
                    b"away",
                    b"here",
                ]


async def test_whose_retained_value_a_will_is_goes_with_it(broker: FakeBroker) -> None:
    """As with a client's own publishes: by option it is judged when it is handed out."""
    for checks in (True, False):
        will = Will("will", b"gone", 1, retain=True)
        async with (
            gateway(broker, "gw-1", checks_retained_source=checks) as (_, address),
            MqttClient(address, Connect(V5, "w", will=will)),
        ):
            kept = session_of(broker, "w").will
            assert kept is not None
            assert bool(kept.properties) is checks


async def test_a_kept_session_resumed_for_the_last_time(broker: FakeBroker) -> None:
    """With expiry 0 it still gets what waited; then it ends and leaves nothing."""
    async with gateway(broker, "gw-1") as (_, address):
        async with MqttClient(address, Connect(V5, "c", properties=KEPT)) as client:
            await client.subscribe(SubscribeItem("+/+", 2))
        async with MqttClient(address, Connect(V5, "pub")) as pub:
            await pub.publish("a/b", b"waited", 1)
        async with MqttClient(address, Connect(V5, "c", clean_start=False)) as client:
            assert client.connack.session_present
            assert (await client.publishes(1))[0].payload == b"waited"
        await until(lambda: not broker.records and not broker.groups and not broker.rows)
        async with MqttClient(address, Connect(V5, "c", clean_start=False)) as client:
            assert not client.connack.session_present


async def test_take_over_across_gateways(broker: FakeBroker) -> None:
    """The old connection is told 0x8E, wherever it is; the new one has the session."""
    connect = Connect(V5, "one", clean_start=False, properties=KEPT)
    async with (
        gateway(broker, "gw-1") as (_, first),
        gateway(broker, "gw-2") as (_, second),
        MqttClient(first, connect) as old,
    ):
        await old.subscribe(SubscribeItem("t", 1))
        async with MqttClient(second, connect) as new:
            assert new.connack.session_present
            assert await old.receive() == Disconnect(Reason.SESSION_TAKEN_OVER)
            assert await old.receive() is None
            await new.publish("t", b"x", 0)
            assert (await new.publishes(1))[0].payload == b"x"
        async with MqttClient(second, connect) as again:
            assert again.connack.session_present


async def test_a_will_is_published_once_when_the_socket_breaks(served: Served) -> None:
    """Not after DISCONNECT 0, but after DISCONNECT 4."""
    _, address = served
    will = Connect(V5, "w", will=Will("will", b"gone", 1))
    async with MqttClient(address, Connect(V5, "s")) as sub:
        await sub.subscribe(SubscribeItem("will", 1))
        async with MqttClient(address, will) as client:
            client.send(Disconnect(0))
            assert await client.receive() is None
        assert await sub.is_silent()
        async with MqttClient(address, will):
            pass
        assert (await sub.publishes(1))[0].payload == b"gone"
        async with MqttClient(address, will) as client:
            client.send(Disconnect(4))
        assert (await sub.publishes(1))[0].payload == b"gone"
        assert await sub.is_silent()


async def test_wills_of_a_dead_gateway_are_published_by_another(broker: FakeBroker) -> None:
    """Once, when its lease has ended."""
    dead = FakeServices(broker, "gw-dead")
    adapter = MqttAdapter.from_config("mqtt", {"bind": "127.0.0.1:0"})
    serving = asyncio.create_task(adapter.serve(dead))
    address = await dead.address("mqtt")
    async with (
        gateway(broker, "gw-2") as (_, second),
        gateway(broker, "gw-3"),
        MqttClient(second, Connect(V5, "s")) as sub,
    ):
        await sub.subscribe(SubscribeItem("will", 1))
        async with MqttClient(address, Connect(V5, "w", will=Will("will", b"gone", 1))):
            dead.is_cut_off = True
            broker.end_lease("gw-dead", 1)
            assert (await sub.publishes(1))[0].payload == b"gone"
            await until(lambda: not broker.live_records("mqtt/session//w"))
            assert await sub.is_silent()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def test_qos_2_is_once_over_gateways(broker: FakeBroker) -> None:
    """A publish sent again at another gateway is the same one until PUBREL; then it is new."""
    first = Connect(V5, "p", clean_start=False, properties=KEPT)
    async with (
        gateway(broker, "gw-1") as (_, at_1),
        gateway(broker, "gw-2") as (services, at_2),
        MqttClient(at_2, Connect(V311, "s")) as subscriber,
    ):
        await subscriber.subscribe(SubscribeItem("t", 0))
        async with MqttClient(at_1, first) as one:
            one.send(Publish("t", b"1", 2, packet_id=7))
            assert await one.receive() == Pubrec(7)
            async with MqttClient(at_2, first) as two:
                assert two.connack.session_present
                two.send(Publish("t", b"1", 2, dup=True, packet_id=7))
                assert await two.receive() == Pubrec(7)
                two.send(Pubrel(7))
                assert await two.receive() == Pubcomp(7)
                two.send(Publish("t", b"1", 2, packet_id=7))
                assert await two.receive() == Pubrec(7)
                # what a resumed session says it sent before is looked for, and nothing else
                assert [message.is_resend for message in services.pipeline.sent] == [True, False]
        assert [packet.payload for packet in await subscriber.publishes(2)] == [b"1", b"1"]
        assert await subscriber.is_silent()


async def test_an_exchange_ends_when_the_gateway_that_had_the_session_knows(
    broker: FakeBroker,
) -> None:
    """
    It may stand still with the same publish unread: stored after the release of its key, that
    would be a second one, and the next message under the packet id would be taken for it.
    """
    connect = Connect(V5, "p", clean_start=False, properties=KEPT)
    async with (
        gateway(broker, "gw-1") as (first, at_1),
        gateway(broker, "gw-2") as (services, at_2),
        MqttClient(at_1, connect) as one,
    ):
        one.send(Publish("t", b"1", 2, packet_id=7))
        assert await one.receive() == Pubrec(7)
        gate = services.directory.barrier_gate = asyncio.Event()
        async with MqttClient(at_2, connect) as two:
            two.send(Publish("t", b"1", 2, dup=True, packet_id=7))
            assert await two.receive() == Pubrec(7)
            two.send(Pubrel(7), Pubrel(8))
            assert await two.is_silent()
            (again,) = services.pipeline.sent
            (late,) = await first.pipeline.send(call(), [again])
            assert (late.code, len(broker.log)) == (Code.OK, 1)
        async with MqttClient(at_2, connect) as two:  # which is no other gateway than before
            two.send(Pubrel(7), Pubrel(8))
            assert await two.is_silent()
            gate.set()
            assert [await two.receive(), await two.receive()] == [Pubcomp(7), Pubcomp(8)]
            asked_count = len(services.directory.barriers)
            two.send(Publish("t", b"2", 2, packet_id=7), Pubrel(7))
            assert [await two.receive(), await two.receive()] == [Pubrec(7), Pubcomp(7)]
            assert len(services.directory.barriers) == asked_count
    assert [entry.message.body for entry in broker.log] == [b"1", b"2"]


@pytest.mark.parametrize("goes_on_at", [1, 2])
async def test_what_a_client_sent_last_is_not_stored_after_it_ended_that_exchange_elsewhere(
    broker: FakeBroker, goes_on_at: int
) -> None:
    """It left while its store was away: what it sent last waits, and counts unless sent again."""
    connect = Connect(V5, "p", clean_start=False, properties=KEPT)
    async with gateway(broker, "gw-1") as (first, at_1), gateway(broker, "gw-2") as (second, at_2):
        first.pipeline.is_store_away = True
        async with MqttClient(at_1, connect) as one:
            one.send(Publish("t", b"1", 2, packet_id=7))
            await until(lambda: bool(first.pipeline.waiting))
        await until(lambda: not is_connected(second, "p"))
        first.pipeline.is_store_away = False
        gate = second.directory.barrier_gate = first.directory.barrier_gate = asyncio.Event()
        async with MqttClient((at_1, at_2)[goes_on_at - 1], connect) as two:
            assert not first.pipeline.waiting
            two.send(Publish("t", b"1", 2, dup=True, packet_id=7))
            assert await two.receive() == Pubrec(7)
            two.send(Pubrel(7))
            assert await two.is_silent()  # nobody knows yet that the first has heard of it
            gate.set()
            assert await two.receive() == Pubcomp(7)
        first.pipeline.store_comes_back()
    assert [entry.message.body for entry in broker.log] == [b"1"]


async def test_what_a_client_sent_last_counts(broker: FakeBroker) -> None:
    connect = Connect(V5, "p", clean_start=False, properties=KEPT)
    async with gateway(broker, "gw-1") as (services, at_1):
        services.pipeline.is_store_away = True
        async with MqttClient(at_1, connect) as one:
            one.send(Publish("t", b"1", 2, packet_id=7))
            await until(lambda: bool(services.pipeline.waiting))
        await until(lambda: not is_connected(services, "p"))
        services.pipeline.store_comes_back()
    assert [entry.message.body for entry in broker.log] == [b"1"]


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_a_pubrel_that_an_absent_store_does_not_hear(
    broker: FakeBroker, is_resumed: bool
) -> None:
    """PUBCOMP all the same; what comes under the id, at any gateway, is no repeat there."""
    connect = Connect(V5, "p", clean_start=False, properties=KEPT)
    async with (
        gateway(broker, "gw-1") as (_, at_1),
        gateway(broker, "gw-2") as (_, at_2),
        MqttClient(at_2, Connect(V311, "s")) as subscriber,
    ):
        await subscriber.subscribe(SubscribeItem("t", 0))
        async with MqttClient(at_1, connect) as client:
            client.send(*(Publish("t", b"%d" % number, 2, packet_id=number) for number in (1, 2)))
            assert [await client.receive(), await client.receive()] == [Pubrec(1), Pubrec(2)]
            if is_resumed:
                client.drop()
                client = await MqttClient(at_1, connect).__aenter__()
            broker.is_down, broker.loss_count = True, 1
            client.send(Pubrel(1))
            assert await client.receive() == Pubcomp(1)
            broker.is_down = False
            async with MqttClient(at_2, connect) as other:
                for body, is_again in ((b"3", False), (b"3", True)):
                    other.send(Publish("t", body, 2, packet_id=1, dup=is_again))
                    assert await other.receive() == Pubrec(1)
                other.send(Publish("t", b"2", 2, packet_id=2, dup=True))
                assert await other.receive() == Pubrec(2)
            async with MqttClient(at_1, connect) as other:
                other.send(Publish("t", b"3", 2, packet_id=1, dup=True))
                assert await other.receive() == Pubrec(1)
                other.send(Pubrel(1))
                assert await other.receive() == Pubcomp(1)
                other.send(Publish("t", b"4", 2, packet_id=1))
                assert await other.receive() == Pubrec(1)
            client.drop()
        assert [one.payload for one in await subscriber.publishes(4)] == [b"1", b"2", b"3", b"4"]
        assert await subscriber.is_silent()


async def test_a_pubrel_that_nobody_can_write_down_waits(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store and directory are away: PUBCOMP when they are back, and the connection lives."""
    monkeypatch.setattr(inbound, "RELEASE_AGAIN_S", 0.01)
    connect = Connect(V5, "p", clean_start=False, properties=KEPT)
    async with gateway(broker) as (services, address), MqttClient(address, connect) as client:
        client.send(Publish("t", b"1", 2, packet_id=1))
        assert await client.receive() == Pubrec(1)
        services.is_cut_off, broker.loss_count = True, 1
        client.send(Pubrel(1))
        assert await client.is_silent()
        await asyncio.sleep(0.03)
        assert await client.is_silent()
        services.is_cut_off = False
        assert await client.receive() == Pubcomp(1)
        client.send(Publish("t", b"2", 2, packet_id=1))
        assert await client.receive() == Pubrec(1)
    assert len(broker.log) == 2


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_what_one_of_two_stores_refused_leaves_its_packet_id_free(
    broker: FakeBroker, is_deaf: bool
) -> None:
    """
    The next message under the id is no repeat at the store that has the first, even if that cannot
    be told; and no other PUBREC overtakes that of the refusal [MQTT-4.6.0-3].
    """
    connect = Connect(V5, "p", clean_start=False, properties=KEPT)
    async with gateway(broker) as (_, address), MqttClient(address, connect) as client:
        broker.half_refused_count, broker.is_deaf = 1, is_deaf
        client.send(*(Publish("t", b"%d" % number, 2, packet_id=number) for number in (1, 2)))
        refused = Pubrec(1, Reason.QUOTA_EXCEEDED)
        assert [await client.receive(), await client.receive()] == [refused, Pubrec(2)]
        client.send(Publish("t", b"3", 2, packet_id=1))
        assert await client.receive() == Pubrec(1)
    assert [entry.message.body for entry in broker.log] == [b"1", b"2", b"3"]


def session_of(broker: FakeBroker, client_id: str) -> SessionRecord:
    value = broker.records[session_key("", client_id)].value
    assert value is not None
    return decode_session(value)


async def test_what_was_released_at_a_gateway_that_died_is_new_at_the_next(
    broker: FakeBroker,
) -> None:
    """The record of a session in hand does not say what was stored before it was resumed."""
    connect = Connect(V5, "p", clean_start=False, properties=KEPT)
    async with gateway(broker, "gw-1") as (_, at_1), gateway(broker, "gw-2") as (_, at_2):
        async with MqttClient(at_1, connect) as client:
            client.send(Publish("t", b"1", 2, packet_id=1))
            assert await client.receive() == Pubrec(1)
        await until(lambda: not session_of(broker, "p").is_connected)
        async with MqttClient(at_1, connect) as client:
            client.send(Pubrel(1))
            assert await client.receive() == Pubcomp(1)
            async with MqttClient(at_2, connect) as other:
                other.send(Publish("t", b"2", 2, packet_id=1))
                assert await other.receive() == Pubrec(1)
    assert [entry.message.body for entry in broker.log] == [b"1", b"2"]


async def test_a_repeat_of_qos_2_is_answered_but_not_for_ever(served: Served) -> None:
    """The same id before PUBREL gets its PUBREC again, whatever is in it; not the same for ever."""
    _, address = served
    async with MqttClient(address, Connect(V5, "p")) as client:
        for body in (b"1", b"2", b"1", b""):
            client.send(Publish("t", body, 2, packet_id=7))
            assert await client.receive() == Pubrec(7)
        client.send(Publish("t", b"", 2, packet_id=7))
        assert await client.receive() == Disconnect(0x82)


@pytest.mark.parametrize("qos", [1, 2])
async def test_an_acknowledgement_comes_before_the_message_itself(served: Served, qos: int) -> None:
    """Who is subscribed to what it publishes gets PUBACK or PUBREC first."""
    _, address = served
    async with MqttClient(address, Connect(V5, "p")) as client:
        await client.subscribe(SubscribeItem("t", qos))
        for packet_id in range(1, 20):
            client.send(Publish("t", b"x", qos, packet_id=packet_id))
            answer = await client.receive()
            assert isinstance(answer, Puback if qos == 1 else Pubrec)
            assert isinstance(await client.receive(), Publish)


async def test_an_orderly_end_has_no_will_however_soon_the_next_connect(served: Served) -> None:
    """DISCONNECT and CONNECT in one breath: nobody hears a will."""
    _, address = served
    with_will = Connect(V311, "w", clean_start=False, will=Will("will/t", b"dead"))
    async with MqttClient(address, Connect(V311, "s")) as subscriber:
        await subscriber.subscribe(SubscribeItem("will/#", 0))
        for _ in range(5):
            async with MqttClient(address, with_will) as client:
                client.send(Disconnect())
        async with MqttClient(address, with_will) as client:
            client.send(Disconnect())
            assert await client.receive() is None
        assert await subscriber.is_silent()


async def test_a_session_ends_when_its_expiry_is_over(broker: FakeBroker) -> None:
    """Record, rows and group go."""
    connect = Connect(V5, "c", properties=((int(Property.SESSION_EXPIRY), 1),))
    async with gateway(broker, "gw-1") as (_, address):
        async with MqttClient(address, connect) as client:
            await client.subscribe(SubscribeItem("t", 1))
        await until(lambda: not broker.records and not broker.groups and not broker.rows)


async def test_the_limit_of_expiry_is_disconnects_too(broker: FakeBroker) -> None:
    """Who asks for little at first and for more at the end gets no more."""
    asked, more = (((int(Property.SESSION_EXPIRY), expiry_s),) for expiry_s in (50, 1000))
    async with gateway(broker, "gw-1", session_expiry_s_max=100) as (_, address):
        async with MqttClient(address, Connect(V5, "c", properties=asked)) as client:
            assert session_of(broker, "c").expiry_s == 50
            client.send(Disconnect(Reason.SUCCESS, more))
            assert await client.receive() is None
        await until(lambda: session_of(broker, "c").expiry_s == 100)


async def test_a_clean_session_leaves_nothing(served: Served) -> None:
    """Neither a group nor a row nor a record."""
    services, address = served
    async with MqttClient(address, Connect(V5, "c")) as client:
        await client.subscribe(SubscribeItem("t", 1))
        assert services.broker.groups
    broker = services.broker
    await until(lambda: not broker.records and not broker.groups and not broker.rows)


async def test_a_kept_session_follows_system_topics(broker: FakeBroker) -> None:
    """The subscription is in the record, not in any store, and goes on after a reconnect."""
    connect = Connect(V5, "ops", clean_start=False, properties=KEPT)
    async with gateway(broker, "gw-1", system_interval_s=0.05) as (_, address):
        async with MqttClient(address, connect) as client:
            await client.subscribe(SubscribeItem("$SYS/broker/clients/connected", 0))
            await client.publishes(1)
        assert not broker.groups
        assert not broker.rows
        async with MqttClient(address, connect) as client, MqttClient(address, Connect(V5, "x")):
            assert client.connack.session_present
            assert (await client.publishes(1))[0].topic == "$SYS/broker/clients/connected"
            client.send(Unsubscribe(9, ("$SYS/broker/clients/connected",)))
            while not isinstance(packet := await client.receive(), Unsuback):
                pass
            assert packet.reasons == (0,)
