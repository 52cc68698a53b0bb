"""What goes out again after a reconnect: its packet, with DUP, and its place in the window."""

from collections import deque
from typing import Final

from protocols.canonical import Delivery, ReceiptHandle
from protocols.mqtt.encoder import encode_ack, publish_again
from protocols.mqtt.feed import Feed
from protocols.mqtt.marking import Marking
from protocols.mqtt.records import LeftoverRecord
from protocols.mqtt.rendering import Rendering, Renderings
from protocols.mqtt.session import Flight, Plan, Stage, Window
from protocols.observing import Meter
from protocols.remoting.records import decode_record

PUBREL: Final = 0x62
"""Its first byte."""


class Resending:
    """What earlier connections left open: same ids, same order, DUP [MQTT-4.4.0-1]."""

    def __init__(
        self,
        window: Window,
        renderings: Renderings,
        *,
        version: int,
        packet_bytes_max: int,
        dropped: Meter,
    ) -> None:
        self._window = window
        self._renderings = renderings
        self._version = version
        self._packet_bytes_max = packet_bytes_max
        self._dropped = dropped
        self._packets: deque[tuple[ReceiptHandle | None, bytes]] = deque()
        """With the place of publishes whose place among others of their store counts."""

    def delivery(self, feed: Feed, delivery: Delivery, now_ms: int) -> bool:
        """What a group has in flight; False: nothing of it is left to be sent."""
        packet_id, stage = delivery.packet_id, delivery.stage
        if stage == Stage.SENT_QOS2 and packet_id in self._window.had:
            return False
        again = delivery_again(feed, delivery, self._renderings, self._version, now_ms)
        if again is None:
            return False
        return self._adopt(packet_id, *again, delivery.handle if stage != Stage.RECEIVED else None)

    def leftover(self, item: LeftoverRecord, now_ms: int) -> None:
        """What no group keeps."""
        again = leftover_again(item, self._renderings, self._version, now_ms)
        self._adopt(item.packet_id, *again)

    def _adopt(
        self, packet_id: int, flight: Flight, packet: bytes, place: ReceiptHandle | None = None
    ) -> bool:
        """Send *packet* when there is room; False: too large, as if delivered."""
        if len(packet) > self._packet_bytes_max:  # [MQTT-3.1.2-25]
            self._dropped.inc()
            return False
        self._window.adopt(packet_id, flight)
        self._packets.append((place, packet))
        return True

    def pump(self, marking: Marking, out: list[bytes]) -> None:
        """As much as the window takes."""
        packets, window = self._packets, self._window
        while packets and len(window.flights) - len(packets) < window.limit:
            place, packet = packets.popleft()
            if place is None or not marking.behind(place, packet):
                out.append(packet)


def delivery_again(
    feed: Feed, delivery: Delivery, renderings: Renderings, version: int, now_ms: int
) -> tuple[Flight, bytes] | None:
    """What a group has in flight; None: it is for no MQTT client any more."""
    if delivery.stage == Stage.RECEIVED:
        flight = Flight(feed, delivery.handle, 2, Stage.RECEIVED)
        return flight, encode_ack(PUBREL, delivery.packet_id, 0, version)
    rendering = renderings.find(delivery.message)
    if not rendering.tail.topic:
        return None
    sent_qos = 2 if delivery.stage == Stage.SENT_QOS2 else 1
    plan = feed.subscriptions.plan_again(
        delivery.reads, delivery.qos, sent_qos, delivery.retain
    ) or Plan(sent_qos, False, ())
    flight = Flight(feed, delivery.handle, plan.qos, Stage.SENT)
    return flight, _publish(rendering, plan, delivery.packet_id, version, now_ms)


def leftover_again(
    item: LeftoverRecord, renderings: Renderings, version: int, now_ms: int
) -> tuple[Flight, bytes]:
    """What no group keeps, from the session's record."""
    plan = Plan(item.qos, item.retain, item.identifiers)
    if item.stage == Stage.RECEIVED:
        flight = Flight(None, None, 2, Stage.RECEIVED)
        flight.message = None, plan
        return flight, encode_ack(PUBREL, item.packet_id, 0, version)
    rendering = renderings.find(decode_record(item.record))
    flight = Flight(None, None, plan.qos, Stage.SENT)
    flight.message = rendering, plan
    return flight, _publish(rendering, plan, item.packet_id, version, now_ms)


def _publish(rendering: Rendering, plan: Plan, packet_id: int, version: int, now_ms: int) -> bytes:
    head, tail = rendering.parts(version, *plan, now_ms)
    return publish_again(head + packet_id.to_bytes(2, "big") + tail)
