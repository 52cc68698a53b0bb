"""
``kill -9`` of store, gateway and name server under load: nothing acknowledged is lost.

``TIDEGATE_SEED`` kills others, at other moments. Publishers are paho clients over two gateways;
afterwards every acknowledged id must be found by offset *and* by pop.
"""

import json
import os
import random
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark.client import SourceClient, SourceError
from tests.demo.checks import read_topic
from tests.demo.cluster import create_topic
from tests.demo.devices import IN_FLIGHT_MAX, Device
from tests.demo.readings import Reading
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons, wait_until

pytestmark = [pytest.mark.client, pytest.mark.timeout(400)]

SEED = int(os.environ.get("TIDEGATE_SEED", "20"))
KILL_COUNT = 21
PUBLISHERS = 2
TOPIC = "faults"
BURST = 32
PACE_S = 0.08
"""A publisher sends a burst, then rests: many are under way at a kill, and restarts get CPU."""

SHORT = ("store.lease_ms=1000", "store.silence_ms_max=2000")
"""A killed gateway has its name again when its lease is over."""


class Load:
    """Readings without end, until ``stop``."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def readings(self, publisher: str) -> Iterator[Reading]:
        number = 0
        while number % BURST or not self._stopped.wait(PACE_S):
            number += 1
            yield Reading(
                identifier=f"{publisher}-{number}",
                family=TOPIC,
                device=publisher,
                metric="n",
                value=float(number),
                time=datetime(2026, 1, 1, tzinfo=UTC),
            )


def acknowledged(devices: list[Device]) -> int:
    return sum(len(device.acknowledged) for device in devices)


def kill_one(chance: random.Random, victims: list[Daemon], devices: list[Device]) -> str:
    """Kill one daemon at a random moment under load, bring it back, wait for traffic."""
    before = acknowledged(devices)
    wait_until(lambda: acknowledged(devices) > before + 50, "traffic before the kill")
    threading.Event().wait(chance.uniform(0.0, 0.15))
    victim = chance.choice(victims)
    at = " ".join(f"{device.name}-{len(device.acknowledged)}" for device in devices)
    victim.restart()
    print(f"killed {victim.name} at {at}")
    return victim.name


def has_route(namesrv: str) -> bool:
    """Whether the store has told the name server, which may have died last, of the topic."""
    with SourceClient(namesrv) as client:
        try:
            return bool(client.queues(TOPIC))
        except SourceError:
            return False


def popped(port: int, wanted: set[str]) -> Counter[str]:
    """What a fresh group gets by pop over HTTP, acknowledged as it comes, until it has *wanted*."""
    found: Counter[str] = Counter()
    base = f"http://127.0.0.1:{port}/topics/{TOPIC}/subscriptions/checkers"
    silent_s = 0
    while not wanted <= found.keys() and silent_s < PATIENCE_S:
        answer = _post(f"{base}:receive", {"maxEvents": 100, "maxWaitTime": 1})
        events = answer["value"]
        silent_s = 0 if events else silent_s + 1
        found.update(event["event"]["data"]["id"] for event in events)
        tokens = [event["brokerProperties"]["lockToken"] for event in events]
        if tokens:
            _post(f"{base}:acknowledge", {"lockTokens": tokens})
    return found


def lacking(wanted: set[str], found: Counter[str]) -> list[str]:
    """Runs of ids that are not there, such as ``p0 17-42``."""
    runs: list[str] = []
    missing = sorted(tuple(part.split("-")) for part in wanted - found.keys())
    numbers = sorted((publisher, int(number)) for publisher, number in missing)
    for publisher, number in numbers:
        if runs and runs[-1].endswith(f"-{number - 1}") and runs[-1].startswith(publisher):
            runs[-1] = runs[-1].rpartition("-")[0] + f"-{number}"
        else:
            runs.append(f"{publisher} {number}-{number}")
    return runs


def _post(url: str, body: dict[str, object]) -> dict[str, list[dict[str, dict[str, object]]]]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


def test_nothing_acknowledged_is_lost_to_kills(tmp_path: Path) -> None:
    """At least 20 kills; every acknowledged id is there by offset and by pop."""
    chance = random.Random(SEED)
    with Daemons(tmp_path) as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv, *SHORT)
        create_topic(next(iter(store.addresses.values())), TOPIC)
        gateways = [daemons.gateway(namesrv, name=name) for name in ("gw-1", "gw-2")]
        load = Load()
        ports = [gateway.port("mqtt") for gateway in gateways]
        names = [f"p{number}" for number in range(PUBLISHERS)]
        devices = [Device(name, load.readings(name), ports) for name in names]
        for device in devices:
            device.start()
        try:
            victims = [namesrv, store, *gateways]
            killed = Counter(kill_one(chance, victims, devices) for _ in range(KILL_COUNT))
        finally:
            load.stop()
        for device in devices:
            device.join(PATIENCE_S)
        wanted = set().union(*(device.acknowledged for device in devices))
        address = namesrv.addresses["namesrv"]
        wait_until(lambda: has_route(address), "the topic's route at the name server")
        stored = read_topic(address, TOPIC)
        by_pop = popped(gateways[0].port("events"), wanted)
    print(f"killed {dict(killed)}; {len(wanted)} acknowledged, {stored.duplicate_count} twice")
    assert not lacking(wanted, stored.identifiers), lacking(wanted, stored.identifiers)
    assert not lacking(wanted, by_pop), lacking(wanted, by_pop)
    assert stored.duplicate_count <= IN_FLIGHT_MAX * PUBLISHERS * KILL_COUNT
