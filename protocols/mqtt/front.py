"""What all clients of one MQTT listener share."""

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

from protocols.canonical import Call, Properties
from protocols.driver import Traffic
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.naming import Naming
from protocols.mqtt.presence import Presence
from protocols.mqtt.rendering import Renderings
from protocols.mqtt.sessions import Sessions
from protocols.mqtt.settings import MqttSettings
from protocols.mqtt.sources import source_properties
from protocols.mqtt.system import Board, Counted
from protocols.mqtt.websocket import WebSocketConnection
from protocols.pipeline import Services
from protocols.tasks import Tasks


class Ending(Protocol):
    """A client, as far as the listener needs it."""

    def shut_down(self) -> None:
        """Tell the client that the gateway stops, and let its session go."""
        ...

    def cut_off(self) -> None:
        """Close the socket, whatever is unread."""
        ...

    @property
    def subscription_counts(self) -> tuple[int, int] | None:
        """(all, shared ones); None: no CONNECT was accepted yet."""
        ...


class Places:
    """How many CONNECTs are in work at once; others wait, first come, first served."""

    def __init__(self, count: int) -> None:
        self._free_count = count
        self._places = asyncio.Semaphore(0)
        self.waiting_count = 0

    async def take(self, wait_s_max: float) -> bool:
        """False: not within that time."""
        if self._free_count:
            self._free_count -= 1
            return True
        self.waiting_count += 1
        try:
            async with asyncio.timeout(wait_s_max):
                await self._places.acquire()
        except TimeoutError:
            return False
        finally:
            self.waiting_count -= 1
        return True

    def give(self) -> None:
        if self.waiting_count:
            self._places.release()
        else:
            self._free_count += 1


LINGER_S: Final = 1.0
"""For a peer to read why its connection ends."""

ANSWERS_S_MAX: Final = 10.0
"""For the answers to a client that has closed its sending half; CONNECT may wait its turn."""

MANY_FILTERS_AT_ONCE: Final = 4
"""SUBSCRIBEs of hundreds of filters in work at once: each keeps the loop for milliseconds."""

MOUNT_POINTS_MAX: Final = 1000
"""Mount points whose renderings are kept; clients of others make their own."""


class Front:
    """Settings, services, meters and who is connected."""

    def __init__(self, name: str, settings: MqttSettings, services: Services) -> None:
        self.name = name
        self.settings = settings
        self.limits = settings.limits
        self.services = services
        self.presence: Presence | None = None
        if settings.events_topic:
            self.presence = Presence(name, settings.events_topic, services)
        self.sessions = Sessions(services, presence=self.presence)
        self._namings: OrderedDict[str, tuple[Naming, Renderings]] = OrderedDict()
        self.tasks = Tasks(f"mqtt {name}")
        self.leaving = Tasks(f"mqtt {name} leaving")
        self.clients: set[Ending] = set()
        self.logins = Places(settings.opening_max)
        """CONNECTs whose credentials are looked at: somebody else may take their time over that."""

        self.places = Places(settings.opening_max)
        """CONNECTs whose client is known, and whose session is opened."""

        self.many_filters = asyncio.Semaphore(MANY_FILTERS_AT_ONCE)
        """For SUBSCRIBEs of many filters; the others need not wait for them."""

        metrics = services.metrics
        self.accepted_count = 0
        self.socket_count = 0
        self.traffic = Traffic()
        self.received = Counted(
            metrics.counter("mqtt_received", "Publishes received from MQTT clients", listener=name)
        )
        self.sent = Counted(
            metrics.counter("mqtt_sent", "Publishes sent to MQTT clients", listener=name)
        )
        self.dropped = Counted(
            metrics.counter(
                "mqtt_dropped", "Publishes over the packet limit of their client", listener=name
            )
        )
        self.refused = metrics.counter("mqtt_refused", "Publishes that were refused", listener=name)
        self.busy = metrics.counter(
            "mqtt_busy", "CONNECTs refused because too many others were in work", listener=name
        )
        metrics.gauge(
            "mqtt_opening_waiting",
            "CONNECTs that wait for their turn",
            lambda: float(self.places.waiting_count + self.logins.waiting_count),
            listener=name,
        )
        metrics.gauge(
            "mqtt_connections", "Open sockets", lambda: float(len(self.clients)), listener=name
        )

        self.board = Board(services, self)

    def framed(self, connection: MqttConnection) -> MqttConnection | WebSocketConnection:
        """*connection* as this listener carries it."""
        if not self.settings.websocket:
            return connection
        settings = self.settings
        return WebSocketConnection(connection, path=settings.path, origins=settings.origins)

    async def tell_system(self) -> None:
        """``$SYS``, for ever."""
        while True:
            await asyncio.sleep(self.settings.system_interval_s)
            self.board.tell()

    def session_counts(self) -> tuple[int, int]:
        return self.sessions.counts

    @property
    def expired_count(self) -> int:
        return self.sessions.expired_count

    def client_counts(self) -> tuple[int, int, int]:
        counts = [client.subscription_counts for client in self.clients]
        found = [count for count in counts if count is not None]
        return len(found), sum([count for count, _ in found]), sum([count for _, count in found])

    def source_of(self, call: Call) -> Properties:
        """What goes with a client's retained publishes."""
        return source_properties(call) if self.settings.checks_retained_source else ()

    def named(self, mount_point: str) -> tuple[Naming, Renderings]:
        """What the clients of one mount point share."""
        found = self._namings.get(mount_point)
        if found is None:
            settings = self.settings
            found = self._namings[mount_point] = (
                Naming(mount_point, settings.rewrite, settings.topic_levels_max),
                Renderings(
                    mount_point=mount_point,
                    is_structured=settings.cloudevents == "structured",
                ),
            )
            if len(self._namings) > MOUNT_POINTS_MAX:
                self._namings.popitem(last=False)
        return found
