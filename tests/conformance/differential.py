"""
The same random sessions against Mosquitto and ``tidegate up``, compared step by step.

``python -m tests.conformance.differential --seeds 20 --steps 60 [--first 1]`` needs Debian's
``mosquitto``. Three clients of mixed versions connect, subscribe, publish, stop acknowledging,
leave and are cut off; after each step both sides must have told each client the same. The first
difference of a seed is printed with the steps before it.

Left out of the comparison is what Mosquitto 2.0 does in its own way: one copy for each overlapping
subscription (and which options win), topic aliases, codes of UNSUBACK, what is left of a message
expiry, QoS 0 subscriptions of absent sessions, and PUBREL's place among others. What still shows:
Mosquitto 2.0.11 keeps No Local, and the lack of Retain As Published, when a filter is subscribed
again otherwise [MQTT-3.8.4-3].
"""

import argparse
import asyncio
import contextlib
import random
import subprocess
from collections.abc import Iterator, Sequence

from protocols.mqtt import codec
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import (
    NEVER_EXPIRES_S,
    V5,
    V31,
    V311,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeItem,
    Unsuback,
    Unsubscribe,
    Will,
)
from protocols.mqtt.properties import Property
from tests.bench.servers import Mosquitto
from tests.support.processes import Daemons

NAMES = ("c1", "c2", "c3")
TOPICS = ("a", "a/b", "a/b/c", "b", "x/y", "/", "/a", "a/", "$x/a", "A/b")
FILTERS = ("a", "a/b", "a/+", "a/#", "#", "+", "+/b", "+/+", "/+", "/#", "b", "x/y", "a/+/c",
           "$x/#", "$x/+", "A/#", "a/b/#", "+/#")  # fmt: skip
SETTLED_S = 0.12
"""Both sides have answered by then; where they differ, ten times as long decides."""

Address = tuple[str, int]
Step = tuple[str, str, Sequence[Packet]]
"""What a client does: ``connect``, ``send``, ``drop``, ``quiet`` or ``acks``."""

Told = tuple[object, ...]


class Client:
    """Notes what it is told, acknowledges unless it is quiet."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.told: list[Told] = []
        self.is_quiet = False
        self.is_open = True
        self._aliases: dict[int, str] = {}

    async def open(self, address: Address, connect: Connect) -> None:
        self._reader, self._writer = await asyncio.open_connection(*address)
        self.send(connect)
        self.reading = asyncio.ensure_future(self._read())

    def send(self, *packets: Packet) -> None:
        if self.is_open:
            self._writer.write(b"".join(encode_packet(one, self.version) for one in packets))

    def drop(self) -> None:
        self._writer.transport.abort()

    async def _read(self) -> None:
        buffer = b""
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(65536):
                buffer += data
                while buffer:
                    start, end = codec.find_body(buffer, 0)
                    if not start or end > len(buffer):
                        break
                    packet = codec.decode_packet(buffer, 0, start, end, self.version)
                    buffer = buffer[end:]
                    self._note(packet)
        self.is_open = False
        self.told.append(("closed",))

    def _note(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._note_publish(packet)
        elif isinstance(packet, Pubrel):
            self.send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Pubrec):
            self.told.append(("PUBREC", packet.reason if packet.reason >= 0x80 else 0))
            self.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Puback):
            self.told.append(("PUBACK", packet.reason if packet.reason >= 0x80 else 0))
        elif isinstance(packet, Connack):
            self.told.append(("CONNACK", packet.reason, packet.session_present))
        elif isinstance(packet, Suback):
            self.told.append(("SUBACK", packet.reasons))
        elif isinstance(packet, Unsuback | Pubcomp):
            self.told.append((type(packet).__name__,))

    def _note_publish(self, packet: Publish) -> None:
        topic, pairs = packet.topic, []
        for number, value in packet.properties:
            if number == Property.TOPIC_ALIAS:
                topic = self._aliases[value] = topic or self._aliases.get(value, "?")  # type: ignore[index]
            elif number not in (Property.SUBSCRIPTION_IDENTIFIER, Property.MESSAGE_EXPIRY):
                pairs.append((number, value))
        self.told.append(
            ("PUBLISH", topic, packet.payload, packet.qos, packet.retain, tuple(sorted(pairs)))
        )
        if packet.qos and not self.is_quiet:
            answer = Puback if packet.qos == 1 else Pubrec
            self.send(answer(packet.packet_id))


class Side:
    """One server and its three clients."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._clients: dict[str, Client] = {}
        self._all: list[tuple[str, Client]] = []

    async def do(self, step: Step) -> None:
        kind, name, packets = step
        client = self._clients.get(name)
        if kind == "connect":
            (connect,) = packets
            assert isinstance(connect, Connect)
            client = self._clients[name] = Client(connect.version)
            self._all.append((name, client))
            await client.open(self._address, connect)
        elif client is None or not client.is_open:
            return
        elif kind == "send":
            client.send(*packets)
        elif kind == "drop":
            client.drop()
        else:
            client.is_quiet = kind == "quiet"

    def told(self) -> dict[str, list[Told]]:
        """Since the last step, of each client id; connections before the current one apart."""
        found: dict[str, list[Told]] = {}
        for name, client in self._all:
            key = name if self._clients[name] is client else f"{name} before"
            found.setdefault(key, []).extend(client.told)
        return found

    def forget(self) -> None:
        for _, client in self._all:
            client.told.clear()
        self._all = [(name, client) for name, client in self._all if client.is_open]

    async def close(self) -> None:
        for _, client in self._all:
            client.drop()
        await asyncio.gather(*(client.reading for _, client in self._all))

    async def clean(self) -> None:
        """No session, no retained value is left."""
        await self.close()
        for name in NAMES:
            await self.do(("connect", name, [Connect(V5, name)]))
        await asyncio.sleep(4 * SETTLED_S)
        clear = [Publish(topic, b"", 1, True, packet_id=1) for topic in TOPICS]
        for packet in clear:
            await self.do(("send", NAMES[0], [packet]))
            await asyncio.sleep(SETTLED_S / 4)
        for name in NAMES:
            await self.do(("send", name, [Disconnect()]))
        await asyncio.sleep(2 * SETTLED_S)
        await self.close()


class Script:
    """Steps from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._versions = {name: self.random.choice((V31, V311, V5, V5)) for name in NAMES}
        self._qos = {name: self.random.randrange(3) for name in NAMES}
        self._up: set[str] = set()
        self._with_will: set[str] = set()

    def steps(self, count: int) -> Iterator[Step]:
        for number in range(1, count + 1):
            name, luck = self.random.choice(NAMES), self.random.random()
            is_up = name in self._up
            if not is_up or (luck < 0.05 and name not in self._with_will):
                yield "connect", name, [self._connect(name, number)]
            elif luck < 0.17:
                self._up.discard(name)
                reason = 4 if self._versions[name] == V5 and luck > 0.15 else 0
                yield ("drop", name, []) if luck < 0.1 else ("send", name, [Disconnect(reason)])
            elif luck < 0.35:
                yield "send", name, [self._subscribe(name, number)]
            elif luck < 0.45:
                filters = tuple(self.random.sample(FILTERS, 2))
                yield "send", name, [Unsubscribe(number, filters)]
            elif luck < 0.5:
                yield self.random.choice(("quiet", "acks")), name, []
            else:
                yield "send", name, [self._publish(name, number)]

    def _connect(self, name: str, number: int) -> Connect:
        pick, version, pairs = self.random, self._versions[name], []
        if version == V5:
            if pick.random() < 0.7:
                pairs.append((int(Property.SESSION_EXPIRY), pick.choice((60, NEVER_EXPIRES_S))))
            if pick.random() < 0.3:
                pairs.append((int(Property.RECEIVE_MAXIMUM), pick.choice((1, 2, 5))))
            if pick.random() < 0.2:
                pairs.append((int(Property.TOPIC_ALIAS_MAXIMUM), 3))
        will = None
        if pick.random() < 0.4:
            topic, body = pick.choice(TOPICS[:6]), b"will %d" % number
            will = Will(topic, body, pick.randrange(3), pick.random() < 0.3)
        self._up.add(name)
        (self._with_will.discard if will is None else self._with_will.add)(name)
        clean = pick.random() < 0.4
        return Connect(version, name, clean_start=clean, properties=tuple(pairs), will=will)

    def _subscribe(self, name: str, number: int) -> Subscribe:
        pick, is_v5 = self.random, self._versions[name] == V5
        items = tuple(
            SubscribeItem(
                topic_filter,
                self._qos[name],
                is_v5 and pick.random() < 0.2,
                is_v5 and pick.random() < 0.3,
                pick.randrange(3) if is_v5 else 0,
            )
            for topic_filter in pick.sample(FILTERS, pick.choice((1, 1, 2, 3)))
        )
        has_identifier = is_v5 and pick.random() < 0.4
        number_of = ((int(Property.SUBSCRIPTION_IDENTIFIER), pick.randrange(1, 300)),)
        return Subscribe(number, items, number_of if has_identifier else ())

    def _publish(self, name: str, number: int) -> Publish:
        pick, pairs, qos = self.random, list[tuple[int, object]](), self.random.randrange(3)
        if self._versions[name] == V5:
            if pick.random() < 0.3:
                pairs.append((int(Property.USER_PROPERTY), ("k", f"v{number}")))
            if pick.random() < 0.2:
                pairs.append((int(Property.MESSAGE_EXPIRY), 200))
            if pick.random() < 0.2:
                pairs.append((int(Property.RESPONSE_TOPIC), "reply"))
                pairs.append((int(Property.CORRELATION_DATA), b"\x00\x01"))
        body = b"" if pick.random() < 0.08 else b"message %d" % number
        return Publish(
            pick.choice(TOPICS),
            body,
            qos,
            pick.random() < 0.25,
            properties=tuple(pairs),  # type: ignore[arg-type]
            packet_id=number if qos else 0,
        )


def alike(theirs: dict[str, list[Told]], ours: dict[str, list[Told]]) -> bool:
    """Told the same, but for what the head of this file leaves out."""
    several = {
        (name, *one[1:3])
        for told in (theirs, ours)
        for name, all_of_it in told.items()
        for one in all_of_it
        if one[0] == "PUBLISH"
        and sum(other[0] == "PUBLISH" and other[1:3] == one[1:3] for other in all_of_it) > 1
    }
    return _plain(theirs, several) == _plain(ours, several)


def _plain(told: dict[str, list[Told]], several: set[Told]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, all_of_it in told.items():
        is_resumed = any(one[0] == "CONNACK" for one in all_of_it)
        words: list[str] = []
        for one in all_of_it:
            is_publish = one[0] == "PUBLISH"
            if is_publish and is_resumed and one[3] == 0:
                continue
            word = repr(one[:3]) if is_publish and (name, *one[1:3]) in several else repr(one)
            if word not in words or not is_publish:
                words.append(word)
        if words:
            found[name] = sorted(words)
    return found


async def compare(theirs: Side, ours: Side, seed: int, count: int) -> bool:
    """One seed; False: they differ, and it is printed how."""
    done: list[Step] = []
    for step in Script(seed).steps(count):
        await asyncio.gather(theirs.do(step), ours.do(step))
        done.append(step)
        for _ in range(10):
            await asyncio.sleep(SETTLED_S)
            if alike(theirs.told(), ours.told()):
                break
        else:
            print(f"seed {seed}, step {len(done)}:")
            for earlier in done:
                print("   ", *earlier)
            print("  mosquitto:", theirs.told(), "\n  tidegate: ", ours.told())
            return False
        theirs.forget()
        ours.forget()
    return True


async def run(theirs: Address, ours: Address, seeds: range, count: int) -> int:
    differing = 0
    for seed in seeds:
        sides = Side(theirs), Side(ours)
        differing += not await compare(*sides, seed, count)
        await asyncio.gather(*(side.clean() for side in sides))
    return differing


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if subprocess.run(["mosquitto", "-h"], capture_output=True).returncode > 3:
        raise SystemExit("there is no mosquitto")
    with Mosquitto() as mosquitto, Daemons() as daemons:
        ours = daemons.up().address("mqtt")
        theirs = ("127.0.0.1", mosquitto.port)
        differing = asyncio.run(run(theirs, ours, seeds, options.steps))
    print(f"{len(seeds)} seeds, {differing} differ")
    return differing


if __name__ == "__main__":
    raise SystemExit(main())
