"""Devices: paho clients that replay readings over MQTT QoS 1 and survive a dead gateway."""

import threading
from collections.abc import Iterable
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from tests.demo.readings import Reading
from tests.support.patience import PATIENCE_S

IN_FLIGHT_MAX = 64
"""Readings a device has under way; also the most it may repeat after a fault."""


class Device:
    """One station: sends its readings in order, counts what the gateway acknowledged."""

    def __init__(self, name: str, readings: Iterable[Reading], gateways: list[int]) -> None:
        self.name = name
        self.acknowledged: set[str] = set()
        self.alarms_acknowledged: set[str] = set()
        self.reconnect_count = 0
        self._readings = readings
        self._gateways = gateways
        self._gateway = 0
        self._under_way: dict[int, tuple[str, bool]] = {}
        self._early: set[int] = set()
        self._lock = threading.Lock()
        self._window = threading.Semaphore(IN_FLIGHT_MAX)
        self._connected = threading.Event()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=f"station-{name}", clean_session=False
        )
        self._client.max_inflight_messages_set(IN_FLIGHT_MAX)
        self._client.reconnect_delay_set(0.2, 1)  # type: ignore[arg-type]  # seconds
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until every reading is acknowledged. Raises TimeoutError."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"device {self.name}: {self.under_way} readings unacknowledged")

    @property
    def under_way(self) -> int:
        """Sent and not yet acknowledged."""
        with self._lock:
            return len(self._under_way)

    @property
    def gateway_port(self) -> int:
        return self._gateways[self._gateway]

    def _run(self) -> None:
        self._client.connect_async("127.0.0.1", self.gateway_port, keepalive=10)
        self._client.loop_start()
        if not self._connected.wait(PATIENCE_S):
            raise TimeoutError(f"device {self.name}: no gateway answers")
        for reading in self._readings:
            self._publish(reading, reading.subject, is_alarm=False)
            if reading.is_alarm:
                self._publish(reading, f"alarms/{self.name}/{reading.metric}", is_alarm=True)
        for _ in range(IN_FLIGHT_MAX):
            self._window.acquire()  # all are back: everything is acknowledged
        self._client.disconnect()
        self._client.loop_stop()

    def _publish(self, reading: Reading, subject: str, *, is_alarm: bool) -> None:
        self._window.acquire()
        info = self._client.publish(subject, reading.body, qos=1)
        with self._lock:
            if info.mid in self._early:  # acknowledged before publish() returned
                self._early.discard(info.mid)
                self._settle(reading.identifier, is_alarm)
            else:
                self._under_way[info.mid] = (reading.identifier, is_alarm)

    def _settle(self, identifier: str, is_alarm: bool) -> None:
        (self.alarms_acknowledged if is_alarm else self.acknowledged).add(identifier)
        self._window.release()

    def _on_publish(
        self, client: mqtt.Client, userdata: Any, mid: int, code: ReasonCode, properties: Any
    ) -> None:
        with self._lock:
            sent = self._under_way.pop(mid, None)
            if sent is None:
                self._early.add(mid)
            else:
                self._settle(*sent)

    def _on_connect(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if not code.is_failure:
            self._connected.set()

    def _on_disconnect(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if code.is_failure:  # not our own goodbye: try the next gateway
            self.reconnect_count += 1
            self._gateway = (self._gateway + 1) % len(self._gateways)
            client.connect_async("127.0.0.1", self.gateway_port, keepalive=10)
