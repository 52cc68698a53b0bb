"""MQTT sessions over two gateways and two stores, as processes: nothing acknowledged is missed."""

import asyncio
from collections.abc import Iterator

import pytest

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
    Will,
)
from protocols.mqtt.properties import Property
from tests.support.mqtt_client import MqttClient
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons, TwoGateways

pytestmark = pytest.mark.client

KEPT = ((int(Property.SESSION_EXPIRY), NEVER_EXPIRES_S),)


def durable(client_id: str, **options: Will) -> Connect:
    return Connect(V5, client_id, clean_start=False, properties=KEPT, **options)


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoGateways]:
    with Daemons() as daemons:
        yield TwoGateways(daemons)


async def test_a_publish_right_behind_suback_is_never_missed(cluster: TwoGateways) -> None:
    """SUBACK at one gateway; a publish at the other at once: a hundred times, all arrive."""
    async with MqttClient(cluster.two.address("mqtt"), Connect(V5, "barrier-pub")) as pub:
        for number in range(100):
            connect = durable(f"barrier-{number}")
            async with MqttClient(cluster.one.address("mqtt"), connect) as sub:
                await sub.subscribe(SubscribeItem(f"barrier/{number}/+", 1))
                await pub.publish(f"barrier/{number}/x", b"%d" % number, 1)
                (packet,) = await sub.publishes(1)
                assert packet.payload == b"%d" % number


async def test_a_session_goes_on_at_another_gateway(cluster: TwoGateways) -> None:
    """``kill -9`` of its gateway: same packet ids, same order, DUP; then what came meanwhile."""
    victim = cluster.gateway("gw-victim")
    async with (
        MqttClient(victim.address("mqtt"), durable("moves")) as sub,
        MqttClient(cluster.two.address("mqtt"), Connect(V5, "moves-pub")) as pub,
    ):
        await sub.subscribe(SubscribeItem("moves/#", 2), identifier=7)
        await pub.publish("moves/1", b"1", 1)
        await sub.publishes(1, acks=False)
        answer = await pub.publish("moves/2", b"2", 2)
        assert isinstance(answer, Pubrec)
        (packet,) = await sub.publishes(1)
        sub.send(Pubrec(packet.packet_id))
        assert await sub.receive() == Pubrel(packet.packet_id)
        victim.kill()
        await pub.publish("moves/3", b"3", 1)
        async with MqttClient(cluster.one.address("mqtt"), durable("moves")) as again:
            assert again.connack.session_present
            found = [await again.receive(), await again.receive(), await again.receive()]
    assert Publish("moves/1", b"1", 1, dup=True, packet_id=1, properties=((0x0B, 7),)) in found
    assert Pubrel(2) in found
    new = [one for one in found if isinstance(one, Publish) and not one.dup]
    assert [(one.payload, one.packet_id) for one in new] == [(b"3", BLOCK + 1)]


async def test_messages_wait_for_a_session_that_is_away(cluster: TwoGateways) -> None:
    """A thousand of four publishers at both gateways, in order for each; none twice."""
    address = cluster.one.address("mqtt")
    async with MqttClient(address, durable("away")) as sub:
        await sub.subscribe(SubscribeItem("away/+", 1))
        sub.send(Disconnect())
        assert await sub.receive() is None
    gateways = (cluster.one, cluster.two)
    await asyncio.gather(
        *(send_numbers(gateways[number % 2], f"away/{number}", 250) for number in range(4))
    )
    async with MqttClient(cluster.two.address("mqtt"), durable("away")) as sub:
        found = await sub.publishes(1000)
    for number in range(4):
        bodies = [int(one.payload) for one in found if one.topic == f"away/{number}"]
        assert bodies == list(range(250))


async def send_numbers(gateway: Daemon, topic: str, count: int) -> None:
    """Publish 0 … count-1 at QoS 1, all at once, and wait for every PUBACK."""
    connect = Connect(V311, topic.replace("/", "-"))
    async with MqttClient(gateway.address("mqtt"), connect) as pub:
        pub.send(*(Publish(topic, b"%d" % body, 1, packet_id=body + 1) for body in range(count)))
        for body in range(count):
            assert await pub.receive() == Puback(body + 1)


async def test_take_over_at_another_gateway(cluster: TwoGateways) -> None:
    """The old connection hears 0x8E; the new one has the session and its messages."""
    async with MqttClient(cluster.one.address("mqtt"), durable("mover")) as old:
        await old.subscribe(SubscribeItem("mover", 1))
        async with MqttClient(cluster.two.address("mqtt"), durable("mover")) as new:
            assert new.connack.session_present
            assert await old.receive() == Disconnect(Reason.SESSION_TAKEN_OVER)
            await new.publish("mover", b"x", 0)
            assert (await new.publishes(1))[0].payload == b"x"


async def test_the_will_of_a_dead_gateways_client(cluster: TwoGateways) -> None:
    """Published once, by another gateway, when the lease has ended."""
    victim = cluster.gateway("gw-doomed")
    async with MqttClient(cluster.one.address("mqtt"), Connect(V5, "heir")) as sub:
        await sub.subscribe(SubscribeItem("wills/#", 1))
        connect = Connect(V5, "doomed", will=Will("wills/doomed", b"gone", 1))
        async with MqttClient(victim.address("mqtt"), connect):
            victim.kill()
            (packet,) = await sub.publishes(1)
            assert packet.payload == b"gone"
        await asyncio.sleep(1)  # a second gateway would have tried by now
        assert await sub.is_silent()


async def test_unacknowledged_retained_values_outlive_their_gateway(cluster: TwoGateways) -> None:
    """Sent by a gateway that was killed then: another one sends them when the session goes on."""
    victim = cluster.gateway("gw-retaining")
    async with MqttClient(cluster.one.address("mqtt"), Connect(V5, "keeper")) as keeper:
        await keeper.publish("retained-cut/a", b"kept", 1, retain=True)
    async with MqttClient(victim.address("mqtt"), durable("retained-cut")) as sub:
        await sub.subscribe(SubscribeItem("retained-cut/#", 1), identifier=5)
        (first,) = await sub.publishes(1, acks=False)
        victim.kill()
        async with MqttClient(cluster.two.address("mqtt"), durable("retained-cut")) as again:
            assert again.connack.session_present
            (found,) = await again.publishes(1)
            assert found._replace(packet_id=first.packet_id) == first
        async with MqttClient(cluster.one.address("mqtt"), durable("retained-cut")) as third:
            assert await third.is_silent()  # it was acknowledged, and put down in order


async def test_retained_values_are_everywhere(cluster: TwoGateways) -> None:
    """Kept at one gateway, read at the other, of both stores, gone when emptied."""
    async with (
        MqttClient(cluster.one.address("mqtt"), Connect(V5, "keeper")) as keeper,
        MqttClient(cluster.two.address("mqtt"), Connect(V5, "reader")) as reader,
    ):
        for number in range(8):
            await keeper.publish(f"kept/{number}", b"v", 1, retain=True)
        await reader.subscribe(SubscribeItem("kept/+", 1))
        found = await reader.publishes(8)
        assert all(packet.retain for packet in found)
        for number in range(8):
            await keeper.publish(f"kept/{number}", b"", 1, retain=True)
        await reader.publishes(8)
        await reader.subscribe(SubscribeItem("kept/+", 1))
        assert await reader.is_silent()


async def test_shared_subscriptions_over_gateways(cluster: TwoGateways) -> None:
    """Members at both gateways share; what one leaves unacknowledged the other gets."""
    one = MqttClient(cluster.one.address("mqtt"), Connect(V5, "member-1"))
    two = MqttClient(cluster.two.address("mqtt"), Connect(V311, "member-2"))
    async with one, two, MqttClient(cluster.one.address("mqtt"), Connect(V5, "sharer")) as pub:
        for member in (one, two):
            await member.subscribe(SubscribeItem("$share/team/shared/#", 1))
        pub.send(*(Publish(f"shared/{n}", b"", 1, packet_id=n + 1) for n in range(20)))
        got: list[str] = []
        left: list[str] = []

        async def read(member: MqttClient, into: list[str], acks: bool) -> None:
            while True:
                into += [packet.topic for packet in await member.publishes(1, acks=acks)]

        reading = [asyncio.create_task(read(one, got, True))]
        late = asyncio.create_task(read(two, left, False))
        async with asyncio.timeout(PATIENCE_S):
            while len(got) + len(left) < 20:  # noqa: ASYNC110 # processes, not our state
                await asyncio.sleep(0.01)
        late.cancel()
        two.drop()
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < 20:  # noqa: ASYNC110 # processes, not our state
                await asyncio.sleep(0.01)
        reading[0].cancel()
        await asyncio.gather(late, *reading, return_exceptions=True)
    assert sorted(got) == sorted(f"shared/{n}" for n in range(20))


async def test_qos_2_is_stored_once_though_its_gateway_is_killed(cluster: TwoGateways) -> None:
    """``kill -9`` between PUBREC and PUBREL: the resend is the same publish, the next is not."""
    victim = cluster.gateway("gw-qos2")
    publisher = durable("once-pub")
    async with MqttClient(cluster.two.address("mqtt"), Connect(V5, "once-sub")) as sub:
        await sub.subscribe(SubscribeItem("once/#", 0))
        async with MqttClient(victim.address("mqtt"), publisher) as pub:
            for number in range(1, 9):
                pub.send(Publish("once/t", b"%d" % number, 2, packet_id=number))
            assert [await pub.receive() for _ in range(8)] == [Pubrec(n) for n in range(1, 9)]
            victim.kill()
        async with MqttClient(cluster.one.address("mqtt"), publisher) as pub:
            assert pub.connack.session_present
            for number in range(1, 9):
                again = Publish("once/t", b"%d" % number, 2, dup=True, packet_id=number)
                pub.send(again, Pubrel(number))
            answers = [await pub.receive() for _ in range(16)]
            assert sorted(answer for answer in answers if isinstance(answer, Pubcomp)) == [
                Pubcomp(n) for n in range(1, 9)
            ]
            for number in range(1, 9):
                pub.send(Publish("once/t", b"+%d" % number, 2, packet_id=number))
            assert [await pub.receive() for _ in range(8)] == [Pubrec(n) for n in range(1, 9)]
        bodies = sorted(packet.payload for packet in await sub.publishes(16))
        wanted = [b"%d" % n for n in range(1, 9)] + [b"+%d" % n for n in range(1, 9)]
        assert bodies == sorted(wanted)
        assert await sub.is_silent()


async def test_an_orderly_end_has_no_will_though_the_client_is_elsewhere_at_once(
    cluster: TwoGateways,
) -> None:
    """DISCONNECT at one gateway, CONNECT at the other in the same breath; a break has its will."""
    async with MqttClient(cluster.two.address("mqtt"), Connect(V5, "breath-sub")) as sub:
        await sub.subscribe(SubscribeItem("breath/#", 1))
        for number in range(4):
            with_will = durable("breath", will=Will("breath/will", b"%d" % number))
            async with MqttClient(cluster.one.address("mqtt"), with_will) as first:
                if number < 3:
                    first.send(Disconnect())
                async with MqttClient(cluster.two.address("mqtt"), durable("breath")) as second:
                    assert second.connack.session_present
        assert [packet.payload for packet in await sub.publishes(1)] == [b"3"]


async def test_a_session_that_ended_at_one_gateway_has_ended_at_the_other(
    cluster: TwoGateways,
) -> None:
    """DISCONNECT with Session Expiry 0, CONNECT in the same breath."""
    for _ in range(3):
        async with MqttClient(cluster.one.address("mqtt"), durable("ended")) as first:
            assert not first.connack.session_present
            await first.subscribe(SubscribeItem("ended/#", 1))
            first.send(Disconnect(0, ((int(Property.SESSION_EXPIRY), 0),)))
            again = Connect(V5, "ended", clean_start=False)
            async with MqttClient(cluster.two.address("mqtt"), again) as second:
                assert not second.connack.session_present
