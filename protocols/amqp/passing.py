"""
Exchanges bound to get what ``amq.topic`` gets.

A publish of any protocol is matched by its address, in the common table, where no exchange can
stand: a binding from ``amq.topic`` to an exchange is a row of a queue at the stores, from which a
gateway takes the message, as it takes dead letters, and routes it on by the topology of that
moment.
"""

from protocols.amqp.addresses import AMQ_TOPIC, filters_of
from protocols.amqp.deaths import Letter
from protocols.amqp.mapping import Content
from protocols.amqp.properties import decode_properties
from protocols.amqp.topology import BindingRecord, Topology, hand_over_name
from protocols.canonical import QueueKind, QueueRef
from protocols.directory import Subscription


def passing_place(vhost: str) -> QueueRef:
    """Where messages wait that exchanges behind ``amq.topic`` get."""
    return QueueRef(QueueKind.DEAD_LETTER, f"{AMQ_TOPIC}/{vhost}")


def passing_group(vhost: str) -> str:
    """Who reads it: all gateways, with the dead letters."""
    return f"dead/{hand_over_name(vhost)}"


def passing_rows(binding: BindingRecord) -> list[Subscription]:
    """Rows of the common matching table that a binding from ``amq.topic`` to an exchange is."""
    place, group = passing_place(binding.vhost), passing_group(binding.vhost)
    return [Subscription(item, place, group) for item in filters_of(binding.key)]


def own_rows(topology: Topology, binding: BindingRecord) -> list[Subscription]:
    """Those that no other binding of the virtual host shares."""
    shared = topology.exchanges[binding.vhost, AMQ_TOPIC]
    others = {
        row
        for other in shared.bindings.values()
        if other.is_exchange and other != binding
        for row in passing_rows(other)
    }
    return [row for row in passing_rows(binding) if row not in others]


def make_passed(content: Content) -> Letter:
    """What is routed on: the message as it is, by the key of its address alone."""
    headers = decode_properties(content.properties).headers or {}
    return Letter(content.properties, [content.routing_key], [], headers)
