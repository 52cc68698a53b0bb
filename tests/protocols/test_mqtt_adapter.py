"""The adapter on real sockets over Services in memory."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from protocols.addresses import socket_address
from protocols.driver import Driver
from protocols.mqtt.client import Client
from protocols.mqtt.connection import TURN_PACKETS_MAX, MqttConnection
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.feed import Feed
from protocols.mqtt.inbound import Inbound
from protocols.mqtt.opened import Opened
from protocols.mqtt.outbox import Outbox
from protocols.mqtt.packets import (
    NEVER_EXPIRES_S,
    V5,
    V31,
    V311,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    SubscribeItem,
    Unsuback,
    Unsubscribe,
    Will,
)
from protocols.mqtt.properties import Property, find_int
from protocols.mqtt.system import Load
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway, until

KEPT = ((int(Property.SESSION_EXPIRY), NEVER_EXPIRES_S),)
PARTS = (Client, Driver, MqttConnection, Opened, Inbound, Outbox, Feed)


@pytest.fixture
async def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def served(
    broker: FakeBroker,
) -> AsyncIterator[tuple[FakeServices, tuple[str, int]]]:
    async with gateway(broker, "gw-1") as both:
        yield both


Served = tuple[FakeServices, tuple[str, int]]


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_publish_arrives(served: Served, version: int, qos: int) -> None:
    """Every version, every QoS, with wildcards."""
    _, address = served
    async with (
        MqttClient(address, Connect(version, "sub")) as sub,
        MqttClient(address, Connect(version, "pub")) as pub,
    ):
        assert await sub.subscribe(SubscribeItem("a/+/#", qos)) == (qos,)
        answer = await pub.publish("a/b/c", b"hello", qos)
        if qos == 1:
            assert isinstance(answer, Puback)
        if qos == 2:
            assert isinstance(answer, Pubrec)
            pub.send(Pubrel(answer.packet_id))
            assert isinstance(await pub.receive(), Pubcomp)
        packet = await sub.receive()
        assert isinstance(packet, Publish)
        assert (packet.topic, packet.payload, packet.qos) == ("a/b/c", b"hello", qos)
        assert not packet.retain
        if qos == 2:
            sub.send(Pubrec(packet.packet_id))
            assert await sub.receive() == Pubrel(packet.packet_id)
            sub.send(Pubcomp(packet.packet_id))
        assert await sub.is_silent()


async def test_properties_come_back_as_they_were(served: Served) -> None:
    """User properties in order with repeats, reserved names, separators, binary correlation."""
    _, address = served
    properties = (
        (int(Property.PAYLOAD_FORMAT), 1),
        (int(Property.CONTENT_TYPE), "text/plain"),
        (int(Property.RESPONSE_TOPIC), "reply/here"),
        (int(Property.CORRELATION_DATA), b"\x00\x01\xff"),
        (int(Property.USER_PROPERTY), ("b", "2")),
        (int(Property.USER_PROPERTY), ("a", "1")),
        (int(Property.USER_PROPERTY), ("b", "3")),
        (int(Property.USER_PROPERTY), ("TAGS", "mine")),
        (int(Property.USER_PROPERTY), ("", "")),
        (int(Property.USER_PROPERTY), ("x\x01y", "\x02=%")),
        (int(Property.USER_PROPERTY), ("TG_U_q", "z")),
    )
    async with (
        MqttClient(address, Connect(V5, "sub")) as sub,
        MqttClient(address, Connect(V5, "pub")) as pub,
    ):
        await sub.subscribe(SubscribeItem("t", 1))
        pub.send(Publish("t", b"x", 1, packet_id=1, properties=properties))
        (packet,) = await sub.publishes(1)
        assert packet.properties == properties


async def test_message_expiry_is_counted_down(served: Served) -> None:
    """A live message is forwarded with what is left of its expiry, rounded up."""
    _, address = served
    async with MqttClient(address, Connect(V5, "c")) as client:
        await client.subscribe(SubscribeItem("t", 0))
        client.send(Publish("t", b"x", properties=((int(Property.MESSAGE_EXPIRY), 60),)))
        (packet,) = await client.publishes(1)
        assert packet.properties in (((2, 60),), ((2, 59),))


async def test_who_has_left_is_no_garbage(served: Served) -> None:
    """All parts of a connection let go of one another: none of them waits for a collection."""
    services, address = served
    gc.collect()
    gc.disable()
    try:
        for properties in ((), KEPT):
            async with (
                MqttClient(address, Connect(V5, "sub", properties=properties)) as sub,
                MqttClient(address, Connect(V5, "pub")) as pub,
            ):
                await sub.subscribe(SubscribeItem("a/#", 2), SubscribeItem("$share/s/b", 1))
                for topic, qos in (("a", 0), ("a", 1), ("a", 2), ("b", 1)):
                    await pub.publish(topic, b"x", qos)
                await sub.publishes(4)  # and none is acknowledged
            services.clients.leaving.clear()
        await until(lambda: not any(type(item) in PARTS for item in gc.get_objects()))
    finally:
        gc.enable()


async def test_overlapping_subscriptions_make_one_publish(served: Served) -> None:
    """One copy with the highest QoS and every identifier [MQTT-3.3.4-2 and following]."""
    _, address = served
    async with MqttClient(address, Connect(V5, "c")) as client:
        await client.subscribe(SubscribeItem("a/+", 1), identifier=1)
        await client.subscribe(SubscribeItem("a/b", 2), identifier=2)
        await client.publish("a/b", b"x", 2)
        (packet,) = await client.publishes(1)
        assert packet.qos == 2
        assert packet.properties == ((0x0B, 1), (0x0B, 2))


async def test_no_local_and_retain_as_published(served: Served) -> None:
    """Own messages stay away where no-local is set; the retain flag is kept where asked for."""
    _, address = served
    async with (
        MqttClient(address, Connect(V5, "one")) as one,
        MqttClient(address, Connect(V5, "two")) as two,
    ):
        await one.subscribe(SubscribeItem("t", 0, no_local=True))
        await two.subscribe(SubscribeItem("t", 0, retain_as_published=True))
        await one.publish("t", b"x", 0, retain=True)
        (packet,) = await two.publishes(1)
        assert packet.retain
        assert await one.is_silent()


async def test_retained_comes_after_suback(served: Served) -> None:
    """With the flag set, once per SUBSCRIBE as retain handling says, gone after an empty one."""
    _, address = served
    async with MqttClient(address, Connect(V5, "c")) as client:
        await client.publish("r/1", b"kept", 1, retain=True)
        assert await client.subscribe(SubscribeItem("r/#", 1)) == (1,)
        (packet,) = await client.publishes(1)
        assert (packet.payload, packet.retain, packet.qos) == (b"kept", True, 1)
        await client.subscribe(SubscribeItem("r/#", 1, retain_handling=1))
        await client.subscribe(SubscribeItem("r/+", 1, retain_handling=2))
        assert await client.is_silent()
        await client.publish("r/1", b"", 0, retain=True)
        (packet,) = await client.publishes(1)
        assert not packet.retain
        await client.subscribe(SubscribeItem("r/1", 1))
        assert await client.is_silent()


async def test_suback_waits_for_the_barrier(served: Served) -> None:
    """And what follows on the connection waits behind it, pings excepted."""
    services, address = served
    async with MqttClient(address, Connect(V5, "c")) as client:
        services.directory.barrier_gate = asyncio.Event()
        client.send(Subscribe(1, (SubscribeItem("t", 1),)))
        client.send(Publish("t", b"later", 1, packet_id=2))
        assert await client.is_silent()
        services.directory.barrier_gate.set()
        assert isinstance(await client.receive(), Suback)
        kinds = {type(await client.receive()), type(await client.receive())}
        assert kinds == {Puback, Publish}


async def test_unsubscribe_stops_it(served: Served) -> None:
    """0x00 for what was there, 0x11 for what was not."""
    _, address = served
    async with MqttClient(address, Connect(V5, "c")) as client:
        await client.subscribe(SubscribeItem("t", 0))
        client.send(Unsubscribe(9, ("t", "other")))
        assert await client.receive() == Unsuback(9, (0, 0x11))
        await client.publish("t", b"x", 0)
        assert await client.is_silent()


async def test_shared_subscriptions_share(served: Served) -> None:
    """Each message goes to one member; what a member leaves unacknowledged goes to another."""
    services, address = served
    async with (
        MqttClient(address, Connect(V5, "m1")) as one,
        MqttClient(address, Connect(V311, "m2")) as two,
        MqttClient(address, Connect(V5, "pub")) as pub,
    ):
        for member in (one, two):
            await member.subscribe(SubscribeItem("$share/g/s/#", 1))
        for number in range(4):
            await pub.publish(f"s/{number}", b"x", 1)
        first = [packet.topic for packet in await one.publishes(2)]
        second = [packet.topic for packet in await two.publishes(2, acks=False)]
        assert sorted(first + second) == ["s/0", "s/1", "s/2", "s/3"]
        two.drop()
        again = [packet.topic for packet in await one.publishes(2)]
        assert sorted(again) == sorted(second)
    await until(lambda: not services.broker.groups)


async def test_a_share_has_its_members_subscription_identifier(served: Served) -> None:
    """The member's own, beside those of its other subscriptions."""
    _, address = served
    async with MqttClient(address, Connect(V5, "m")) as member:
        await member.subscribe(SubscribeItem("$share/g/t", 0), identifier=7)
        await member.subscribe(SubscribeItem("t", 0), identifier=9)
        await member.publish("t", b"x", 0)
        told = [packet.properties for packet in await member.publishes(2)]
        assert sorted(told) == [((0x0B, 7),), ((0x0B, 9),)]


async def test_receive_maximum_of_the_client_is_kept(served: Served) -> None:
    """With 2 unacknowledged the third waits; QoS 0 passes it."""
    _, address = served
    properties = ((int(Property.RECEIVE_MAXIMUM), 2),)
    async with MqttClient(address, Connect(V5, "c", properties=properties)) as client:
        await client.subscribe(SubscribeItem("t", 1))
        async with MqttClient(address, Connect(V5, "pub")) as pub:
            for number in range(3):
                await pub.publish("t", b"%d" % number, 1)
            await pub.publish("t", b"zero", 0)
        found = await client.publishes(3, acks=False)
        assert [packet.payload for packet in found] == [b"0", b"1", b"zero"]
        client.send(Puback(found[0].packet_id))
        assert (await client.publishes(1))[0].payload == b"2"


async def test_outbound_topic_aliases(served: Served) -> None:
    """The first publish names and defines, the next ones only refer."""
    _, address = served
    properties = ((int(Property.TOPIC_ALIAS_MAXIMUM), 1),)
    async with MqttClient(address, Connect(V5, "c", properties=properties)) as client:
        await client.subscribe(SubscribeItem("#", 0))
        for topic in ("t", "t", "u"):
            await client.publish(topic, b"x", 0)
        found = await client.publishes(3)
        assert [(packet.topic, packet.properties) for packet in found] == [
            ("t", ((0x23, 1),)),
            ("", ((0x23, 1),)),
            ("u", ()),
        ]


async def test_an_alias_is_given_by_what_is_sent(served: Served) -> None:
    """Neither by a publish too large for the client nor by one that others overtake."""
    _, address = served
    limits = ((int(Property.TOPIC_ALIAS_MAXIMUM), 2), (int(Property.MAXIMUM_PACKET_SIZE), 60))
    async with MqttClient(address, Connect(V5, "c", properties=(*KEPT, *limits))) as client:
        await client.subscribe(SubscribeItem("#", 2))
        await client.publish("t", b"x" * 60, 0)
        await client.publish("t", b"fits", 0)
        (found,) = await client.publishes(1)
        assert (found.topic, found.payload, found.properties) == ("t", b"fits", ((0x23, 1),))
        client.send(Publish("u", b"2", 2, packet_id=7), Publish("u", b"0", 0))
        names = {1: "t"}
        packets = [await client.receive() for _ in range(3)]
        assert Pubrec(7) in packets
        for packet in packets:
            if isinstance(packet, Publish):
                alias = find_int(packet.properties, Property.TOPIC_ALIAS, 0)
                assert (packet.topic or names.get(alias)) == "u"
                names[alias] = "u"


async def test_what_needs_no_mark_goes_in_its_place(served: Served) -> None:
    """QoS 2 behind QoS 1 that goes out at once: an alias is named before it stands alone."""
    _, address = served
    limits = ((int(Property.TOPIC_ALIAS_MAXIMUM), 2), (int(Property.RECEIVE_MAXIMUM), 2))
    async with (
        MqttClient(address, Connect(V5, "c", properties=limits)) as client,
        MqttClient(address, Connect(V5, "pub")) as publisher,
    ):
        await client.subscribe(SubscribeItem("#", 2))
        sent = [("t", 1), ("t", 1), ("u", 1), ("u", 2)]
        for number, (topic, qos) in enumerate(sent, 1):
            publisher.send(Publish(topic, b"%d" % number, qos, packet_id=number))
            await publisher.receive()
        first = await client.publishes(2, acks=False)
        client.send(*[Puback(packet.packet_id) for packet in first])
        found = await client.publishes(2)
        assert [(packet.topic, packet.payload) for packet in found] == [("u", b"3"), ("", b"4")]


async def test_a_denied_publish(served: Served) -> None:
    """5.0 is told; 3.1.1 is acknowledged, since sending again is useless."""
    services, address = served
    services.denied.add(("publish", "t"))
    async with (
        MqttClient(address, Connect(V5, "new")) as new,
        MqttClient(address, Connect(V311, "old")) as old,
    ):
        assert await new.publish("t", b"x", 1) == Puback(1, 0x87)
        assert await old.publish("t", b"x", 1) == Puback(1)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_publish_that_no_store_takes_is_not_answered(served: Served, qos: int) -> None:
    """The connection ends, so that the client sends again."""
    services, address = served
    async with (
        MqttClient(address, Connect(V5, "new")) as new,
        MqttClient(address, Connect(V311, "old")) as old,
    ):
        services.broker.is_down = True
        assert await new.publish("t", b"x", qos) == Disconnect(0x89)
        assert await old.publish("t", b"x", qos) is None


async def test_a_denied_filter(served: Served) -> None:
    """The other filters of the SUBSCRIBE are granted."""
    services, address = served
    services.denied.add(("consume", "secret/#"))
    items = (SubscribeItem("secret/#", 1), SubscribeItem("open", 1))
    async with MqttClient(address, Connect(V5, "new")) as new:
        assert await new.subscribe(*items) == (0x87, 1)
    async with MqttClient(address, Connect(V311, "old")) as old:
        assert await old.subscribe(*items) == (0x80, 1)


async def test_connect_refusals(served: Served) -> None:
    """Wrong password, none at all, no client id where one is due."""
    services, address = served
    services.users["u"] = b"p"
    for connect, connack in [
        (Connect(V5, "c", user="u", password=b"q"), Connack(0x86)),
        (Connect(V5, "c"), Connack(0x87)),
        (Connect(V311, "c", user="u", password=b"q"), Connack(4)),
        (Connect(V311, "c"), Connack(5)),
        (Connect(V311, "", clean_start=False), Connack(2)),
        (Connect(V31, ""), Connack(2)),
        (Connect(V5, "c", properties=((0x15, "SCRAM"),)), Connack(0x8C)),
    ]:
        async with MqttClient(address, connect) as client:
            assert client.connack == connack
            assert await client.receive() is None


async def test_an_assigned_client_id(served: Served) -> None:
    """An empty one is filled in and told; the limits are told in Mosquitto 2.1's order."""
    _, address = served
    async with MqttClient(address, Connect(V5, "")) as client:
        names = [name for name, _ in client.connack.properties]
        assert names == [0x22, 0x12, 0x27, 0x21]


async def test_server_keep_alive() -> None:
    """Who asks for more than the listener allows is told its value."""
    async with gateway(FakeBroker(), "gw-1", server_keep_alive_s_max=60) as (_, address):
        for asked, told in ((120, 60), (0, 60), (30, None)):
            async with MqttClient(address, Connect(V5, "c", keep_alive_s=asked)) as client:
                assert dict(client.connack.properties).get(0x13) == told


async def test_a_malformed_packet_ends_that_connection_only(served: Served) -> None:
    """Its neighbour on the same listener goes on."""
    _, address = served
    async with (
        MqttClient(address, Connect(V5, "bad")) as bad,
        MqttClient(address, Connect(V5, "good")) as good,
    ):
        bad._writer.write(b"\x36\x03\x00\x01a")  # QoS 3
        assert await bad.receive() == Disconnect(Reason.MALFORMED_PACKET)
        assert await bad.receive() is None
        assert await good.is_silent()


async def test_last_words_arrive_though_the_client_goes_on_sending(served: Served) -> None:
    """Over the Receive Maximum with a megabyte behind it: still 0x93, then the end."""
    _, address = served
    async with MqttClient(address, Connect(V5, "flood")) as client:
        client.send(*(Publish("t", b"", 2, packet_id=number) for number in range(1, 1026)))
        client.send(*(Publish("t", bytes(1024), 0) for _ in range(1024)))
        packet = await client.receive()
        while isinstance(packet, Pubrec):
            packet = await client.receive()
        assert packet == Disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED)
        assert await client.receive() is None


@pytest.mark.parametrize("is_orderly", [True, False])
async def test_all_that_a_client_said_before_it_left_counts(
    served: Served, is_orderly: bool
) -> None:
    """More than a turn takes, and the socket closed behind it: stored all the same."""
    _, address = served
    count, will = 2 * TURN_PACKETS_MAX, Will("will", b"gone", 0)
    async with MqttClient(address, Connect(V5, "sub")) as sub:
        await sub.subscribe(SubscribeItem("#", 0))
        async with MqttClient(address, Connect(V5, "hasty", will=will)) as hasty:
            user = ((Property.USER_PROPERTY, ("a", "b")),)
            said = encode_packet(Publish("t", b"1", 0, properties=user), V5) * count
            last = encode_packet(Publish("t", b"last", 0), V5)
            hasty._writer.write(said + last + (encode_packet(Disconnect(), V5) * is_orderly))
            hasty._writer.close()
            await hasty._writer.wait_closed()
        heard = await sub.publishes(count + 1 if is_orderly else count + 2)
        assert heard[count].payload == b"last"
        assert is_orderly or heard[-1].payload == b"gone"
        assert await sub.is_silent()


async def test_all_that_a_client_said_before_its_reset_counts(served: Served) -> None:
    """A socket that is gone between two turns: what was read of it is stored before the will."""
    _, address = served
    count, will = 4 * TURN_PACKETS_MAX, Will("will", b"gone", 0)
    async with MqttClient(address, Connect(V5, "sub")) as sub:
        await sub.subscribe(SubscribeItem("#", 0))
        async with MqttClient(address, Connect(V5, "hasty", will=will)) as hasty:
            name = hasty._writer.get_extra_info("sockname")
            drivers = (item for item in gc.get_objects() if type(item) is Driver)
            (driver,) = (one for one in drivers if one.peer == socket_address(name))
            assert isinstance(driver.transport, asyncio.Transport)
            user = ((Property.USER_PROPERTY, ("a", "b")),)
            driver.data_received(encode_packet(Publish("t", b"1", 0, properties=user), V5) * count)
            driver.transport.abort()
            heard = await sub.publishes(count + 1)
        assert {packet.topic for packet in heard[:-1]} == {"t"}
        assert heard[-1].payload == b"gone"
        assert await sub.is_silent()


async def test_who_says_no_more_has_all_answers(served: Served) -> None:
    """However many turns they take: the socket is closed behind the last."""
    _, address = served
    count = 2 * TURN_PACKETS_MAX
    async with MqttClient(address, Connect(V5, "asks")) as client:
        client._writer.write(encode_packet(Pingreq(), V5) * count)
        client._writer.write_eof()
        assert [await client.receive() for _ in range(count)] == [Pingresp()] * count
        assert await client.receive() is None


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
async def test_what_came_before_one_too_many_is_answered(
    served: Served, qos: int, answer: type[Packet]
) -> None:
    """A client that sends all it has at every connect gets on by a Receive Maximum each time."""
    _, address = served
    async with MqttClient(address, Connect(V5, "eager")) as client:
        client.send(*(Publish("t", b"", qos, packet_id=number) for number in range(1, 3000)))
        told = [await client.receive() for _ in range(1025)]
        assert {type(packet) for packet in told[:-1]} == {answer}
        assert told[-1] == Disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED)


async def test_a_kick_and_a_stop_say_so(broker: FakeBroker) -> None:
    """0x98 from the operator, 0x8B when the gateway stops."""
    async with gateway(broker, "gw-1") as (services, address):
        async with MqttClient(address, Connect(V5, "kicked")) as client:
            info, kick = services.clients.connected[0]
            assert info.client_id == "kicked"
            kick()
            assert await client.receive() == Disconnect(Reason.ADMINISTRATIVE_ACTION)
        last = MqttClient(address, Connect(V5, "last", will=Will("w", b"")))
        await last.__aenter__()
    assert await last.receive() == Disconnect(Reason.SERVER_SHUTTING_DOWN)
    last.drop()
    assert not broker.log


async def test_congestion_stops_reading(served: Served) -> None:
    """Nothing more is read until the stores catch up; nothing is lost."""
    services, address = served
    async with MqttClient(address, Connect(V5, "c")) as client:
        services.broker.is_congested = True
        await client.publish("t", b"1", 1)
        await until(lambda: bool(services.broker.clear_waiters))
        client.send(Publish("t", b"2", 1, packet_id=2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.receive(), 0.05)
        services.broker.is_congested = False
        for resume in services.broker.clear_waiters:
            resume()
        assert await client.receive() == Puback(2)


async def test_what_is_denied_is_not_delivered(served: Served) -> None:
    """A wide filter is granted; what the ACL denies of it never arrives, retained or live."""
    services, address = served
    async with MqttClient(address, Connect(V5, "a", keep_alive_s=0)) as client:
        await client.publish("x/secret", b"kept", 1, retain=True)
        services.denied.add(("consume", "x/secret"))
        assert await client.subscribe(SubscribeItem("x/#", 1)) == (1,)
        await client.publish("x/secret", b"live", 1)
        client.send(Publish("x/open", b"1", 0))
        (packet,) = await client.publishes(1)
        assert packet.topic == "x/open"
        assert await client.is_silent()
        services.denied.clear()
        await client.publish("x/secret", b"now", 0)
        assert [packet.payload for packet in await client.publishes(1)] == [b"now"]


async def test_system_topics() -> None:
    """Values at SUBSCRIBE as retained ones, changes afterwards; `#` does not see them."""
    async with (
        gateway(FakeBroker(), "gw-9", system_interval_s=0.05) as (services, address),
        MqttClient(address, Connect(V5, "watcher")) as watcher,
        MqttClient(address, Connect(V311, "all")) as everything,
    ):
        await everything.subscribe(SubscribeItem("#", 0))
        await watcher.subscribe(SubscribeItem("$SYS/broker/clients/#", 1), identifier=7)
        found = {packet.topic: packet for packet in await watcher.publishes(7)}
        assert {name.rpartition("/")[2]: one.payload for name, one in found.items()} == {
            "connected": b"2",
            "active": b"2",
            "inactive": b"0",
            "maximum": b"2",
            "disconnected": b"0",
            "total": b"2",
            "expired": b"0",
        }
        assert all(one.retain and one.properties == ((0x0B, 7),) for one in found.values())
        async with MqttClient(address, Connect(V311, "third")):
            while True:
                (news,) = await watcher.publishes(1)
                assert not news.retain
                if (news.topic, news.payload) == ("$SYS/broker/clients/connected", b"3"):
                    break
        assert await everything.is_silent()
        assert not services.broker.log
        async with MqttClient(address, Connect(V5, "late")) as late:
            await late.subscribe(SubscribeItem("$SYS/broker/gateway", 0))
            assert [packet.payload for packet in await late.publishes(1)] == [b"gw-9"]
            await late.subscribe(SubscribeItem("$share/s/t", 0), SubscribeItem("t", 0))
            await late.subscribe(SubscribeItem("$SYS/broker/shared_subscriptions/count", 0))
            assert [packet.payload for packet in await late.publishes(1)] == [b"1"]


async def test_system_topics_count_bytes_and_sockets() -> None:
    """What went through the listener's sockets, with the packets that asked for it."""
    async with gateway(system_interval_s=60) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"\x10\x00")  # a connection that is no client
        assert await reader.read() == b""
        writer.close()
        connect, asked = Connect(V311, "c"), SubscribeItem("$SYS/broker/bytes/#", 0)
        async with MqttClient(address, connect) as client:
            await client.subscribe(asked)
            found = {one.topic[5:]: int(one.payload) for one in await client.publishes(2)}
            size = len(encode_packet(connect, V311))
            size += len(encode_packet(Subscribe(1, (asked,)), V311))
            assert found == {"broker/bytes/received": 2 + size, "broker/bytes/sent": 4}
            await client.subscribe(SubscribeItem("$SYS/broker/load/sockets/1min", 0))
            assert len(await client.publishes(1)) == 1


def test_loads_are_rises_in_a_minute() -> None:
    """They follow a steady rise, the short ones sooner, and forget it."""
    load = Load()
    for second in range(10, 1000, 10):
        load.sample(second * 2, 10)
    assert load.values("x")["load/x/1min"] == "120.00"
    assert 75 < float(load.values("x")["load/x/15min"]) < 85
    for _ in range(60):
        load.sample(1980, 10)
    assert load.values("x")["load/x/1min"] == "0.01"


async def test_a_client_may_ask_where_answers_go() -> None:
    """Request Response Information; others are not told."""
    async with gateway(FakeBroker(), "gw-1", response_information="replies/{client_id}") as (
        _,
        address,
    ):
        asking = Connect(V5, "me", properties=((int(Property.REQUEST_RESPONSE_INFORMATION), 1),))
        async with MqttClient(address, asking) as client:
            assert (0x1A, "replies/me") in client.connack.properties
        async with MqttClient(address, Connect(V5, "you")) as client:
            assert 0x1A not in dict(client.connack.properties)
