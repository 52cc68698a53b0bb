"""MQTT 5, 4.12: methods, who may say what when, and proving it again while traffic goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.authenticators.scram import ScramUsers
from gateway.authenticators.verifiers import Verifier
from gateway.ruleconfig import UserConfig
from protocols import clock
from protocols.canonical import Identity
from protocols.exchanges import Challenge, Exchange, Proved
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import (
    V5,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketProperties,
    Puback,
    Publish,
    Reason,
    Suback,
    Subscribe,
    SubscribeItem,
)
from protocols.mqtt.properties import Property, find_bytes, find_str
from protocols.pipeline import Credentials
from tests.gateway.test_scram import final
from tests.support.fake_services import FakeServices
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway, until

pytestmark = pytest.mark.timeout(60)  # where a turn is wrong both ends wait for each other

METHOD = "X-RIDDLE"
Address = tuple[str, int]


class Riddle:
    """As many questions as are wanted; who echoes them all is let in as who it says at last."""

    def __init__(self, rounds: int = 1, name: str = "", expires_at_ms: int = 0) -> None:
        self._rounds, self._name, self._expires_at_ms = rounds, name, expires_at_ms
        self._asked = b""

    async def answer(self, data: bytes) -> Challenge | Proved | None:
        if data == b"burst":
            raise ValueError("a plug-in's own fault")
        if data == b"slow":
            await asyncio.Event().wait()
        if self._asked and not data.startswith(self._asked):
            return None
        if self._rounds:
            self._rounds -= 1
            self._asked = b"say %d " % self._rounds
            return Challenge(self._asked)
        name = self._name or data.removeprefix(self._asked).decode()
        return Proved(Identity(name=name, expires_at_ms=self._expires_at_ms), b"welcome")


def shown(data: bytes = b"", method: str = METHOD) -> PacketProperties:
    pairs: PacketProperties = ((int(Property.AUTHENTICATION_METHOD), method),)
    return (*pairs, (int(Property.AUTHENTICATION_DATA), data)) if data else pairs


def asking(properties: PacketProperties = (), **more: int) -> Connect:
    return Connect(V5, "c1", properties=properties or shown(), **more)


class Talk(MqttClient):
    """Without waiting for CONNACK."""

    async def __aenter__(self) -> "Talk":
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        self.send(self._connect)
        return self

    async def say(self, reason: int, data: bytes = b"", method: str = METHOD) -> Packet | None:
        self.send(Auth(reason, shown(data, method)))
        return await self.receive()

    async def prove(self, name: bytes = b"ann") -> Connack:
        """The whole riddle."""
        asked = await self.receive()
        assert isinstance(asked, Auth)
        assert asked.reason == Reason.CONTINUE_AUTHENTICATION
        assert find_str(asked.properties, Property.AUTHENTICATION_METHOD) == METHOD
        answer = data_of(asked) + name
        connack = await self.say(Reason.CONTINUE_AUTHENTICATION, answer)
        assert isinstance(connack, Connack)
        return connack

    async def prove_again(self, name: bytes = b"ann") -> Packet | None:
        asked = await self.say(Reason.REAUTHENTICATE)
        assert isinstance(asked, Auth)
        assert asked.reason == Reason.CONTINUE_AUTHENTICATION
        return await self.say(Reason.CONTINUE_AUTHENTICATION, data_of(asked) + name)


def data_of(packet: Auth | Connack) -> bytes:
    found = find_bytes(packet.properties, Property.AUTHENTICATION_DATA)
    return found or b""


@asynccontextmanager
async def served(
    make: Callable[[], Exchange] = Riddle, **section: object
) -> AsyncIterator[tuple[FakeServices, Address]]:
    async with gateway(**section) as (services, address):
        services.users = {"ann": b"pw"}
        services.methods = {METHOD: make}
        yield services, address


async def test_a_challenge_and_connack_with_the_servers_proof() -> None:
    """[MQTT-4.12.0-2, -5]: AUTH 0x18 and CONNACK carry the method."""
    async with served() as (services, address), Talk(address, asking()) as talk:
        connack = await talk.prove()
        assert connack.reason == Reason.SUCCESS
        assert find_str(connack.properties, Property.AUTHENTICATION_METHOD) == METHOD
        assert data_of(connack) == b"welcome"
        ((info, _),) = services.clients.connected
        assert info.identity == "ann"


async def test_no_challenge_is_needed() -> None:
    """What came with CONNECT can be enough."""
    async with (
        served(lambda: Riddle(0)) as (_, address),
        Talk(address, asking(shown(b"ann"))) as talk,
    ):
        connack = await talk.receive()
        assert isinstance(connack, Connack)
        assert (connack.reason, data_of(connack)) == (Reason.SUCCESS, b"welcome")


async def test_without_a_method_nothing_is_said_of_any() -> None:
    """[MQTT-4.12.0-6]; and AUTH is a protocol error [MQTT-4.12.0-7]."""
    plain = Connect(V5, "c1", user="ann", password=b"pw")
    async with served() as (_, address), MqttClient(address, plain) as client:
        assert find_str(client.connack.properties, Property.AUTHENTICATION_METHOD) is None
        client.send(Auth(Reason.REAUTHENTICATE, shown()))
        assert await client.receive() == Disconnect(Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize("takes", [[], ["X-OTHER"]])
async def test_a_listener_takes_some_methods_or_none(takes: list[str]) -> None:
    """[MQTT-4.12.0-1]"""
    async with (
        served(authentication_methods=takes) as (_, address),
        Talk(address, asking()) as talk,
    ):
        assert await talk.receive() == Connack(Reason.BAD_AUTHENTICATION_METHOD)
        assert await talk.receive() is None


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (Auth(0x18, shown(b"wrong")), Reason.NOT_AUTHORIZED),  # [MQTT-4.12.0-4]
        (Auth(0x18, shown(b"burst")), Reason.NOT_AUTHORIZED),
        (Auth(0x18, shown(b"x", "X-OTHER")), Reason.BAD_AUTHENTICATION_METHOD),
        (Auth(0x18), Reason.PROTOCOL_ERROR),
        (Auth(0x19, shown(b"x")), Reason.PROTOCOL_ERROR),
        (Auth(0x00, shown(b"x")), Reason.PROTOCOL_ERROR),
        (Publish("t", b""), Reason.PROTOCOL_ERROR),  # [MQTT-3.1.2-30]
        (Connect(V5, "c2"), Reason.PROTOCOL_ERROR),
    ],
)
async def test_before_connack_wrong_words_are_refused(packet: Packet, reason: Reason) -> None:
    """By a CONNACK that says why, and closed."""
    async with served() as (_, address), Talk(address, asking()) as talk:
        assert isinstance(await talk.receive(), Auth)
        talk.send(packet)
        assert await talk.receive() == Connack(reason)
        assert await talk.receive() is None


async def test_nothing_is_taken_that_comes_before_connack() -> None:
    """Behind a CONNECT that is enough by itself, and behind one that is not."""
    for make, connect in (
        (lambda: Riddle(0), asking(shown(b"ann"))),
        (Riddle, asking()),
    ):
        async with served(make) as (services, address), Talk(address, connect) as talk:
            talk.send(Publish("t", b"", qos=1, packet_id=1))
            ended = [await talk.receive(), await talk.receive()]
            told = [one.reason for one in ended if isinstance(one, Connack | Disconnect)]
            assert told[-1] == Reason.PROTOCOL_ERROR
            assert services.pipeline.sent == []


async def test_a_client_may_give_up() -> None:
    """DISCONNECT in the midst of it; nothing is left of the client."""
    async with served() as (services, address), Talk(address, asking()) as talk:
        assert isinstance(await talk.receive(), Auth)
        talk.send(Disconnect())
        assert await talk.receive() is None
        assert services.clients.connected == []


async def test_a_proof_has_an_end_in_time_and_rounds() -> None:
    """Nobody asks for ever; nobody is waited for; a method that never answers is given up."""
    async with served(lambda: Riddle(99)) as (_, address), Talk(address, asking()) as talk:
        count, packet = 0, await talk.receive()
        while isinstance(packet, Auth):
            count, packet = count + 1, await talk.say(0x18, data_of(packet))
        assert (count, packet) == (9, Connack(Reason.NOT_AUTHORIZED))
    async with served(connect_s_max=0.05) as (_, address):
        for data in (b"", b"slow"):
            async with Talk(address, asking(shown(data))) as talk:
                packet = await talk.receive()
                if isinstance(packet, Auth):
                    packet = await talk.receive()
                assert packet == Connack(Reason.NOT_AUTHORIZED)


async def test_a_slow_proof_holds_up_nobody() -> None:
    """CONNECTs take turns; who is thinking has none."""
    async with (
        served(opening_max=1) as (_, address),
        Talk(address, asking()) as thinking,
        MqttClient(address, Connect(V5, "c2", user="ann", password=b"pw")) as other,
    ):
        assert other.connack.reason == Reason.SUCCESS
        assert (await thinking.prove()).reason == Reason.SUCCESS


async def test_a_challenge_keeps_the_packet_limit() -> None:
    """[MQTT-3.1.2-24]: of AUTH, too."""
    small = (*shown(), (int(Property.MAXIMUM_PACKET_SIZE), 20))
    async with served() as (_, address), Talk(address, asking(small)) as talk:
        assert await talk.receive() == Connack(Reason.PACKET_TOO_LARGE)
    async with served() as (_, address), Talk(address, asking()) as talk:
        assert isinstance(await talk.receive(), Auth)
        talk._writer.write(b"\xf0\xff\xff\xff\x7f")  # an AUTH of 256 MiB, by its length
        assert await talk.receive() == Connack(Reason.PACKET_TOO_LARGE)


# ── again ───────────────────────────────────────────────────────────────────────────────


async def test_traffic_goes_on_while_a_client_proves_itself_again() -> None:
    """Its own publishes and deliveries, between the question and the answer."""
    async with served() as (_, address), Talk(address, asking()) as talk:
        await talk.prove()
        talk.send(Subscribe(1, (SubscribeItem("t", 1),)))
        assert isinstance(await talk.receive(), Suback)
        for _ in range(2):
            asked = await talk.say(Reason.REAUTHENTICATE)
            assert isinstance(asked, Auth)
            talk.send(Publish("t", b"x", qos=1, packet_id=5))
            kinds = {type(await talk.receive()) for _ in range(2)}
            assert kinds == {Puback, Publish}
            talk.send(Puback(1), Puback(2))
            done = await talk.say(0x18, data_of(asked) + b"ann")
            assert done == Auth(Reason.SUCCESS, shown(b"welcome"))


@pytest.mark.parametrize("name", [b"bob", b"\x00"])
async def test_who_becomes_another_is_closed(name: bytes) -> None:
    """[MQTT-4.12.1-2]"""
    async with served() as (_, address), Talk(address, asking()) as talk:
        await talk.prove()
        assert await talk.prove_again(name) == Disconnect(Reason.NOT_AUTHORIZED)
        assert await talk.receive() is None


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (Auth(0x19, shown(b"x", "X-OTHER")), Reason.BAD_AUTHENTICATION_METHOD),
        (Auth(0x19), Reason.PROTOCOL_ERROR),
        (Auth(0x18, shown(b"x")), Reason.PROTOCOL_ERROR),
        (Auth(0x00, shown(b"x")), Reason.PROTOCOL_ERROR),
        (Auth(0x19, shown(b"burst")), Reason.NOT_AUTHORIZED),
    ],
)
async def test_connected_wrong_words_are_an_end(packet: Packet, reason: Reason) -> None:
    async with served() as (_, address), Talk(address, asking()) as talk:
        await talk.prove()
        talk.send(packet)
        assert await talk.receive() == Disconnect(reason)
        assert await talk.receive() is None


async def test_one_exchange_at_a_time() -> None:
    """A second wish while the first is looked at, and one while its answer is waited for."""
    again = encode_packet(Auth(0x19, shown()), V5)
    for wire in (again + again, None):
        async with served() as (_, address), Talk(address, asking()) as talk:
            await talk.prove()
            if wire is None:
                assert isinstance(await talk.say(0x19), Auth)
            talk._writer.write(wire or again)
            assert await talk.receive() == Disconnect(Reason.PROTOCOL_ERROR)


async def test_a_new_proof_lasts_longer() -> None:
    """The end of the credentials moves; without it the connection would be over."""
    first_end = clock.wall_ms() + 300
    ends = [first_end, first_end + 60_000]
    async with (
        served(lambda: Riddle(1, "ann", ends.pop(0))) as (_, address),
        Talk(address, asking()) as talk,
    ):
        await talk.prove()
        assert await talk.prove_again() == Auth(Reason.SUCCESS, shown(b"welcome"))
        await until(lambda: clock.wall_ms() > first_end + 50)
        talk.send(Publish("t", b"x", qos=1, packet_id=5))
        assert isinstance(await talk.receive(), Puback)


async def test_scram_from_end_to_end() -> None:
    """CONNECT with the first message, AUTH with the last, the server's signature in CONNACK."""
    kept = str(Verifier.make("SCRAM-SHA-256", "pencil", b"s" * 16, 4096))
    users = ScramUsers([UserConfig(name="user", scram=(kept,))])
    door = Credentials(protocol="mqtt", listener="mqtt")
    first, name = b"n,,n=user,r=abc", "SCRAM-SHA-256"

    def begin() -> Exchange:
        exchange = users.begin(name, door)
        assert exchange is not None
        return exchange

    async with served() as (services, address):
        services.methods = {name: begin}
        for password, reason in (("pencil", Reason.SUCCESS), ("pen", Reason.NOT_AUTHORIZED)):
            async with Talk(address, asking(shown(first, name))) as talk:
                asked = await talk.receive()
                assert isinstance(asked, Auth)
                answer = final(name, password, first, data_of(asked))
                connack = await talk.say(0x18, answer, name)
                assert isinstance(connack, Connack)
                assert connack.reason == reason
                assert data_of(connack).startswith(b"v=") == (reason == 0)
