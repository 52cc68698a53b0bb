"""
Strict QoS 2 clients over three gateways and two stores that are killed and stopped:
``python -m tests.interop.soak_mqtt --seed 1 --seconds 60``. Never part of a test run.

The clients do as the specification says: kept sessions, several ids in flight, DUP on what they
send again, PUBREL again, an id anew only after PUBCOMP. Every publish must arrive once; messages
that were published while a store was away may overtake those that it has.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from protocols.mqtt.packets import (
    NEVER_EXPIRES_S,
    V5,
    V311,
    Connect,
    Pingreq,
    Pingresp,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    SubscribeItem,
)
from protocols.mqtt.properties import Property
from tests.support.mqtt_client import MqttClient
from tests.support.processes import Daemon, Daemons

KEPT = ((int(Property.SESSION_EXPIRY), NEVER_EXPIRES_S),)
SHORT = ("store.lease_ms=3000", "store.silence_ms_max=3000")
IDS = 20
"""Packet ids of a publisher: few, so that each is soon used again."""

WINDOW = 10
SILENT_S = 15.0
AWAY_S_MAX = 6.0
RECOVERED_S_MAX = 60.0
DRAINED_S_MAX = 120.0


class Gone(Exception):
    """The connection has ended."""


@dataclass
class Flight:
    """An exchange that is not over."""

    number: int
    started_at: float
    is_received: bool = False


class Peer:
    """A client that connects somewhere else whenever its connection ends."""

    def __init__(self, name: str, version: int, gateways: Sequence[Daemon], seed: int) -> None:
        self.name, self.version, self.gateways = name, version, gateways
        self.chance = random.Random(seed)
        self.losses: Counter[str] = Counter()
        self.is_over = False
        self.has_session = False

    async def run(self, life: Callable[[MqttClient], Awaitable[None]]) -> None:
        properties = KEPT if self.version == V5 else ()
        connect = Connect(self.version, self.name, clean_start=False, properties=properties)
        while not self.is_over:
            address = self.chance.choice(self.gateways).address("mqtt")
            try:
                async with MqttClient(address, connect, wait_s=SILENT_S) as client:
                    if client.connack.reason:
                        raise Gone(f"CONNACK {client.connack.reason:#x}")
                    if self.has_session and not client.connack.session_present:
                        self.losses["SESSION LOST"] += 1
                    await life(client)
            except (Gone, OSError, TimeoutError, AssertionError) as error:
                self.losses[f"{type(error).__name__} {error}"[:60]] += 1
                await asyncio.sleep(0.1)


@dataclass
class Publisher:
    """Numbers, one after the other."""

    peer: Peer
    topic: str
    rate: float
    flights: "OrderedDict[int, Flight]" = field(default_factory=OrderedDict)
    ids: list[int] = field(default_factory=lambda: list(range(1, IDS + 1)))
    number: int = 0
    is_stopping: bool = False
    finished: list[tuple[float, float]] = field(default_factory=list)
    """(begun, over) of each exchange."""

    async def life(self, client: MqttClient) -> None:
        self.peer.has_session = True
        for packet_id, flight in self.flights.items():
            body = b"%d" % flight.number
            again = Publish(self.topic, body, 2, packet_id=packet_id, dup=True)
            client.send(Pubrel(packet_id) if flight.is_received else again)
        sending = asyncio.ensure_future(self._send(client))
        try:
            while not (self.is_stopping and not self.flights):
                self._take(client, await client.receive())
            self.peer.is_over = True
        finally:
            sending.cancel()

    def _take(self, client: MqttClient, packet: object) -> None:
        if isinstance(packet, Pubrec) and packet.reason < 0x80:
            if flight := self.flights.get(packet.packet_id):
                flight.is_received = True
            client.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubcomp):
            if over := self.flights.pop(packet.packet_id, None):
                self.ids.append(packet.packet_id)
                self.finished.append((over.started_at, time.monotonic()))
        else:
            raise Gone(str(packet))

    async def _send(self, client: MqttClient) -> None:
        while True:
            await asyncio.sleep(self.peer.chance.expovariate(self.rate))
            if self.is_stopping or len(self.flights) >= WINDOW:
                continue
            packet_id, self.number = self.ids.pop(0), self.number + 1
            self.flights[packet_id] = Flight(self.number, time.monotonic())
            client.send(Publish(self.topic, b"%d" % self.number, 2, packet_id=packet_id))


@dataclass
class Subscriber:
    """Keeps what came, once per exchange."""

    peer: Peer
    found: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    held: set[int] = field(default_factory=set)

    @property
    def count(self) -> int:
        return sum([len(numbers) for numbers in self.found.values()])

    async def life(self, client: MqttClient) -> None:
        if not self.peer.has_session:
            await client.subscribe(SubscribeItem("soak/#", 2))
            self.peer.has_session = True
        while not self.peer.is_over:
            try:
                packet = await client.receive()
            except TimeoutError:
                client.send(Pingreq())
                packet = await client.receive()
            if isinstance(packet, Publish):
                if packet.packet_id not in self.held:
                    self.held.add(packet.packet_id)
                    self.found[packet.topic].append(int(packet.payload))
                client.send(Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                self.held.discard(packet.packet_id)
                client.send(Pubcomp(packet.packet_id))
            elif not isinstance(packet, Pingresp):
                raise Gone(str(packet))


async def fault(chance: random.Random, victims: Sequence[Daemon]) -> str:
    """Kill one and start it again, or stop it for a while."""
    victim, away_s = chance.choice(victims), chance.uniform(0.3, AWAY_S_MAX)
    is_kill = chance.random() < 0.5
    if is_kill:
        victim.kill()
    else:
        victim.signal(signal.SIGSTOP)
    await asyncio.sleep(away_s)
    if is_kill:
        await asyncio.to_thread(victim.restart)
    else:
        victim.signal(signal.SIGCONT)
    return f"{'killed' if is_kill else 'stopped'} {victim.name}"


async def until(condition: Callable[[], bool], wait_s: float) -> float:
    """Seconds until it is so, or *wait_s*."""
    begun = time.monotonic()
    while not condition() and time.monotonic() - begun < wait_s:  # noqa: ASYNC110 - of any kind
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


def verdict(publishers: Sequence[Publisher], subscribers: Sequence[Subscriber]) -> bool:
    """Print what is wrong; whether all is well."""
    is_good = True
    for subscriber in subscribers:
        for publisher in publishers:
            counts = Counter(subscriber.found[publisher.topic])
            twice = [number for number, count in counts.items() if count > 1]
            lost = [number for number in range(1, publisher.number + 1) if number not in counts]
            firsts = list(counts)
            swaps = sum([after < before for before, after in pairwise(firsts)])
            is_good = is_good and not twice and not lost
            if twice or lost or swaps:
                names = f"{subscriber.peer.name} {publisher.topic}"
                print(f"{names}: twice {twice[:10]} lost {lost[:10]} overtaken {swaps} times")
    peers = [one.peer for one in (*publishers, *subscribers)]
    losses = sum([peer.losses for peer in peers], Counter[str]())
    for text, count in losses.most_common(8):
        print(f"  {count} x {text}")
    return is_good and not losses["SESSION LOST"]


async def soak(seed: int, seconds: float, rate: float) -> bool:
    chance = random.Random(seed)
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        stores = [
            daemons.store(namesrv, *SHORT),
            daemons.store(namesrv, *SHORT, "store.directory=false", name="broker-b"),
        ]
        gateways = [daemons.gateway(namesrv, name=f"gw-{number}") for number in range(3)]
        versions = [V311, V5]
        subscribers = [
            Subscriber(Peer(f"sub-{version}", version, gateways, seed + version))
            for version in versions
        ]
        publishers = [
            Publisher(
                Peer(f"pub-{number}", versions[number % 2], gateways, seed + 100 + number),
                f"soak/{number}",
                rate,
            )
            for number in range(6)
        ]
        reading = [asyncio.ensure_future(one.peer.run(one.life)) for one in subscribers]
        await until(lambda: all(one.peer.has_session for one in subscribers), DRAINED_S_MAX)
        writing = [asyncio.ensure_future(one.peer.run(one.life)) for one in publishers]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(chance.uniform(0.5, 3.0))
            begun = time.monotonic()
            text = await fault(chance, [*stores, *gateways])
            back = time.monotonic()

            def is_back(since: float = begun, back: float = back) -> bool:
                recent = [one.finished[-50:] for one in publishers]
                return all([any([a > since and b > back for a, b in some]) for some in recent])

            took_s = await until(is_back, RECOVERED_S_MAX)
            load = f"load {os.getloadavg()[0]:.0f}"
            print(f"{text} for {back - begun:.1f} s, all publish {took_s:.2f} s later; {load}")
        for one in publishers:
            one.is_stopping = True
        _, stuck = await asyncio.wait(writing, timeout=DRAINED_S_MAX)
        total = sum([one.number for one in publishers])
        await until(lambda: all(one.count >= total for one in subscribers), DRAINED_S_MAX)
        await asyncio.sleep(1.0)  # for what comes twice
        print(f"seed {seed}: {total} published, {len(stuck)} publishers stuck")
        is_good = verdict(publishers, subscribers) and not stuck
        for task in (*reading, *writing):
            task.cancel()
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.soak_mqtt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=50, help="publishes a second of each")
    chosen = parser.parse_args()
    return int(not asyncio.run(soak(chosen.seed, chosen.seconds, chosen.rate)))


if __name__ == "__main__":
    sys.exit(main())
