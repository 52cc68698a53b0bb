"""What goes out again after a reconnect: its packet, with DUP, and its place in the window."""

from typing import Final

from protocols.canonical import Delivery
from protocols.mqtt.encoder import encode_ack, publish_again
from protocols.mqtt.feed import Feed
from protocols.mqtt.records import LeftoverRecord
from protocols.mqtt.rendering import Rendering, Renderings
from protocols.mqtt.session import Flight, Plan, Stage
from protocols.remoting.records import decode_record

PUBREL: Final = 0x62
"""Its first byte."""


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
