"""What a running trace is told of an MQTT client: packets by name, topic and size, no payloads."""

from collections.abc import Sequence
from typing import Final

from protocols.canonical import Delivery
from protocols.mqtt.events import Event, Lost, PublishRun
from protocols.mqtt.packets import Connect, Publish, Subscribe, Unsubscribe
from protocols.observing import Observer

RUN_MAX: Final = 100
"""Publishes of one read that are noted one by one."""


def trace_events(observer: Observer, client_id: str, peer: str, events: Sequence[Event]) -> None:
    """Note what came in one read; *client_id* is empty before CONNECT was accepted."""
    for event in events:
        if isinstance(event, PublishRun):
            for message in event.messages[:RUN_MAX]:
                head = message.head
                detail = f"in, QoS {head.qos}, {len(message.body)} bytes"
                observer.trace(
                    "publish", client_id=client_id, peer=peer, topic=head.subject, detail=detail
                )
        elif isinstance(event, Publish):
            detail = f"in, QoS {event.qos}, {len(event.payload)} bytes"
            observer.trace(
                "publish", client_id=client_id, peer=peer, topic=event.topic, detail=detail
            )
        elif isinstance(event, Subscribe):
            for item in event.items:
                observer.trace(
                    "subscribe",
                    client_id=client_id,
                    peer=peer,
                    topic=item.topic_filter,
                    detail=f"QoS {item.qos}",
                )
        elif isinstance(event, Unsubscribe):
            for topic_filter in event.topic_filters:
                observer.trace("unsubscribe", client_id=client_id, peer=peer, topic=topic_filter)
        elif isinstance(event, Connect):
            detail = f"version {event.version}, user {event.user or '-'}"
            observer.trace("connect", client_id=event.client_id, peer=peer, detail=detail)
        elif isinstance(event, Lost):
            observer.trace("lost", client_id=client_id, peer=peer, detail=event.text)
        else:
            observer.trace(type(event).__name__.lower(), client_id=client_id, peer=peer)


def trace_refusal(
    observer: Observer, client_id: str, peer: str, what: str, reason: str, topic: str = ""
) -> None:
    """Note what a client was told instead of what it wanted."""
    if observer.is_tracing:
        detail = f"{what}: {reason}"
        observer.trace("refused", client_id=client_id, peer=peer, topic=topic, detail=detail)


def trace_offline(observer: Observer, client_id: str, peer: str, reason: str) -> None:
    """Note that a connection has ended."""
    if observer.is_tracing:
        observer.trace("offline", client_id=client_id, peer=peer, detail=reason)


def trace_deliveries(
    observer: Observer, client_id: str, peer: str, deliveries: Sequence[Delivery]
) -> None:
    """Note what is on its way to the client."""
    for delivery in deliveries[:RUN_MAX]:
        message = delivery.message
        detail = f"out, QoS {delivery.qos}, {len(message.body)} bytes, {message.message_id}"
        observer.trace(
            "deliver", client_id=client_id, peer=peer, topic=message.subject, detail=detail
        )
