"""
``$SYS``: what a gateway tells about itself, as retained topics that are stored nowhere.

Values are those of the gateway that the client is connected to; those of sessions are the whole
cluster's. A subscription to ``$SYS…`` never leaves the gateway: its values come with SUBACK and
again when they change, QoS 0.
"""

import math
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from protocols import clock
from protocols.driver import Traffic
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import V5, Publish
from protocols.mqtt.properties import Property
from protocols.mqtt.session import Subscribed
from protocols.mqtt.topics import is_local
from protocols.observing import Meter
from protocols.pipeline import Services
from protocols.subjects import matches

if TYPE_CHECKING:
    from protocols.mqtt.opened import Opened

PREFIX: Final = "$SYS/broker/"

LEASES: Final = "gateway/"
"""Directory keys of the gateways that live."""

LOAD_MINUTES: Final = (1, 5, 15)


class Load:
    """How much a count rises in a minute, averaged over the last 1, 5 and 15 (exponentially)."""

    def __init__(self) -> None:
        self._count = 0
        self._averages = [0.0] * len(LOAD_MINUTES)

    def sample(self, count: int, interval_s: float) -> None:
        """*count* now, *interval_s* after the last time."""
        rate = (count - self._count) * 60 / interval_s
        self._count = count
        for index, minutes in enumerate(LOAD_MINUTES):
            kept = math.exp(-interval_s / (60 * minutes))
            self._averages[index] = rate + kept * (self._averages[index] - rate)

    def values(self, name: str) -> dict[str, str]:
        pairs = zip(LOAD_MINUTES, self._averages, strict=True)
        return {f"load/{name}/{minutes}min": f"{average:.2f}" for minutes, average in pairs}


class Counted:
    """A meter that can be read."""

    __slots__ = ("_meter", "value")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.value = 0

    def inc(self, amount: float = 1) -> None:
        self.value += int(amount)
        self._meter.inc(amount)


class Source(Protocol):
    """One listener's part of the numbers."""

    received: Counted
    sent: Counted
    dropped: Counted
    traffic: Traffic
    accepted_count: int
    """CONNECTs so far."""

    socket_count: int
    """Connections so far, whether CONNECT came or not."""

    @property
    def expired_count(self) -> int:
        """Sessions so far that were ended here because their time was over."""
        ...

    def session_counts(self) -> tuple[int, int]:
        """Sessions of the cluster: (connected, all)."""
        ...

    def client_counts(self) -> tuple[int, int, int]:
        """Here: (connected clients, their subscriptions, those of them that are shared)."""
        ...


class Totals:
    """What all listeners of one gateway add up to."""

    def __init__(self) -> None:
        self.started = clock.monotonic()
        self.clients_max = 0
        self.sources: dict[Source, None] = {}

    def counts(self) -> dict[str, int]:
        """What only rises, by the end of its topic."""
        sources = list(self.sources)
        return {
            "publish/received": sum([one.received.value for one in sources]),
            "publish/sent": sum([one.sent.value for one in sources]),
            "publish/dropped": sum([one.dropped.value for one in sources]),
            "connections": sum([one.accepted_count for one in sources]),
            "sockets": sum([one.socket_count for one in sources]),
            "bytes/received": sum([one.traffic.received_bytes for one in sources]),
            "bytes/sent": sum([one.traffic.sent_bytes for one in sources]),
        }


_totals: WeakKeyDictionary[Services, Totals] = WeakKeyDictionary()


def totals_of(services: Services) -> Totals:
    """Shared by the listeners of a gateway."""
    return _totals.setdefault(services, Totals())


class Board:
    """The topics of one listener's clients."""

    def __init__(self, services: Services, source: Source) -> None:
        self._services = services
        self._totals = totals_of(services)
        self._source = source
        self._totals.sources[source] = None
        self._told: dict[str, str] = {}
        self._loads = {name: Load() for name in self._totals.counts()}
        self._sampled_at = clock.monotonic()
        self._followers: dict[Opened, MqttConnection] = {}

    def close(self) -> None:
        self._totals.sources.pop(self._source, None)

    def values(self) -> dict[str, str]:
        """Topic → value, now."""
        totals, sources = self._totals, list(self._totals.sources)
        clients = [source.client_counts() for source in sources]
        here = sum([connected for connected, _, _ in clients])
        counts = totals.counts()
        totals.clients_max = max(totals.clients_max, here)
        connected, known = self._source.session_counts()
        numbers = {
            "uptime": f"{int(clock.monotonic() - totals.started)} seconds",
            "version": f"tidegate {metadata.version('tidegate')}",
            "gateway": self._services.directory.gateway,
            "gateways": str(sum(1 for _ in self._services.directory.items(LEASES))),
            "bytes/received": str(counts["bytes/received"]),
            "bytes/sent": str(counts["bytes/sent"]),
            "clients/connected": str(here),
            "clients/active": str(here),  # what dashboards made for Mosquitto 1 ask for
            "clients/maximum": str(totals.clients_max),
            "clients/disconnected": str(max(0, known - connected)),
            "clients/inactive": str(max(0, known - connected)),
            "clients/total": str(known),
            "clients/expired": str(sum([one.expired_count for one in sources])),
            "subscriptions/count": str(sum([count for _, count, _ in clients])),
            "shared_subscriptions/count": str(sum([count for _, _, count in clients])),
            "publish/messages/received": str(counts["publish/received"]),
            "publish/messages/sent": str(counts["publish/sent"]),
            "publish/messages/dropped": str(counts["publish/dropped"]),
        }
        for name, load in self._loads.items():
            numbers |= load.values(name)
        return {PREFIX + name: value for name, value in numbers.items()}

    # ── who listens ─────────────────────────────────────────────────────────────────────

    def follow(self, opened: "Opened", connection: MqttConnection) -> None:
        """Tell this client what changes, as long as it has such subscriptions."""
        if opened.subscription_count and any(
            is_local(item.subject_filter) for item in opened.subscriptions
        ):
            self._followers[opened] = connection

    def unfollow(self, opened: "Opened") -> None:
        self._followers.pop(opened, None)

    def send_retained(
        self, opened: "Opened", connection: MqttConnection, items: Iterable[Subscribed]
    ) -> None:
        """The values of new subscriptions."""
        wanted = list(items)
        if wanted:
            for topic, value in self.values().items():
                for item in wanted:
                    if matches(item.subject_filter, topic):
                        self._send(opened, connection, topic, value, [item], is_retained=True)

    def tell(self) -> None:
        """What changed since the last time."""
        self._sample()
        if not self._followers:
            return
        values = self.values()
        news = {name: value for name, value in values.items() if self._told.get(name) != value}
        self._told = values
        for opened, connection in list(self._followers.items()):
            local = [item for item in opened.subscriptions if is_local(item.subject_filter)]
            for topic, value in news.items():
                wanting = [item for item in local if matches(item.subject_filter, topic)]
                if wanting:
                    self._send(opened, connection, topic, value, wanting, is_retained=False)

    def _sample(self) -> None:
        now = clock.monotonic()
        interval_s, self._sampled_at = now - self._sampled_at, now
        for name, count in self._totals.counts().items():
            self._loads[name].sample(count, max(interval_s, 0.001))

    def _send(
        self,
        opened: "Opened",
        connection: MqttConnection,
        topic: str,
        value: str,
        items: list[Subscribed],
        *,
        is_retained: bool,
    ) -> None:
        permission = self._services.permission
        if not permission.is_allowed(opened.call, "receive", subject=topic, qos=0):
            return
        identifiers = [item.identifier for item in items if item.identifier]
        properties = tuple((int(Property.SUBSCRIPTION_IDENTIFIER), one) for one in identifiers)
        retain = is_retained or any(item.retain_as_published for item in items)
        version = connection.version
        packet = Publish(
            topic,
            value.encode(),
            retain=retain,
            properties=properties if version == V5 else (),
        )
        opened.outbox.send_packet(encode_packet(packet, version))
