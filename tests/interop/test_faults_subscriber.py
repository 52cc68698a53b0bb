"""
``kill -9`` of two stores, gateways and name server: a durable subscriber misses nothing.

A persistent session moves from gateway to gateway while everything dies in turn; in the end it
has been delivered every message that was acknowledged to a publisher.
"""

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from tests.demo.cluster import create_topic
from tests.demo.devices import Device
from tests.interop.test_faults_kill9 import PUBLISHERS, SEED, SHORT, TOPIC, Load, kill_one, lacking
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemons, wait_until

pytestmark = [pytest.mark.client, pytest.mark.timeout(300)]

KILL_COUNT = 12


class Watcher:
    """A paho subscriber with a persistent session, at whichever gateway is there."""

    def __init__(self, ports: list[int]) -> None:
        self.received: Counter[str] = Counter()
        self._ports = ports
        self._turn = 0
        self._subscribed = threading.Event()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id="watcher", clean_session=False
        )
        self._client.reconnect_delay_set(0.2, 1)  # type: ignore[arg-type]  # seconds
        self._client.on_message = self._take
        self._client.on_connect = self._subscribe
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_disconnect = self._move
        self._client.connect("127.0.0.1", ports[0], keepalive=10)
        self._client.loop_start()
        assert self._subscribed.wait(PATIENCE_S)

    def close(self) -> None:
        self._client.on_disconnect = None
        self._client.disconnect()
        self._client.loop_stop()

    def _take(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        self.received[json.loads(message.payload)["id"]] += 1

    def _subscribe(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if not code.is_failure and not flags.session_present:
            client.subscribe(f"{TOPIC}/#", 1)

    def _move(self, client: mqtt.Client, *_: Any) -> None:
        self._turn = (self._turn + 1) % len(self._ports)
        client.connect_async("127.0.0.1", self._ports[self._turn], keepalive=10)


def test_a_durable_subscriber_misses_nothing(tmp_path: Path) -> None:
    """Subscribed once; after a dozen kills every acknowledged id has come at least once."""
    chance = random.Random(SEED)
    with Daemons(tmp_path) as daemons:
        namesrv = daemons.namesrv()
        stores = [
            daemons.store(namesrv, *SHORT),
            daemons.store(namesrv, *SHORT, "store.directory=false", name="broker-b"),
        ]
        for store in stores:
            create_topic(store.addresses["store"], TOPIC)
        gateways = [daemons.gateway(namesrv, name=name) for name in ("gw-1", "gw-2")]
        ports = [gateway.port("mqtt") for gateway in gateways]
        watcher = Watcher(ports)
        load = Load()
        names = [f"p{number}" for number in range(PUBLISHERS)]
        devices = [Device(name, load.readings(name), ports) for name in names]
        try:
            for device in devices:
                device.start()
            try:
                for _ in range(KILL_COUNT):
                    kill_one(chance, [namesrv, *stores, *gateways], devices)
            finally:
                load.stop()
            for device in devices:
                device.join(PATIENCE_S)
            wanted = set().union(*(device.acknowledged for device in devices))
            wait_until(lambda: wanted <= watcher.received.keys(), "everything delivered")
        except AssertionError as error:
            wanted = set().union(*(device.acknowledged for device in devices))
            error.add_note(f"not delivered: {lacking(wanted, watcher.received)}")
            raise
        finally:
            watcher.close()
    repeats = watcher.received.total() - len(watcher.received)
    print(f"{len(wanted)} acknowledged, {repeats} delivered again")
