"""
What one client publishes, as it is read: runs, topic aliases, how much may be unanswered.

Sans-I/O, a part of ``connection``.
"""

from collections.abc import Sequence
from typing import Final

from protocols.canonical import Head, Message
from protocols.message_runs import MessageRun
from protocols.mqtt.codec import decode_packet, find_body, take_publishes
from protocols.mqtt.events import OVERRUN, Event, PublishRun
from protocols.mqtt.fields import OverrunError, PacketError, protocol_error
from protocols.mqtt.mapping import Heads
from protocols.mqtt.packets import V5, Publish, Reason
from protocols.mqtt.properties import Property, find_int
from protocols.mqtt.publish_rows import messages_of, take_rows
from protocols.mqtt.states import Limits, run_firsts
from protocols.tuples import new_tuple

NO_HEADS: Final = Heads("")
"""Before CONNACK nobody publishes."""


class Incoming:
    """The publishes of one connection."""

    def __init__(self, limits: Limits) -> None:
        self.heads = NO_HEADS
        self.unanswered_count = 0
        """QoS 1 publishes handed out and not acknowledged yet."""

        self.open_qos2: set[int] = set()
        """Packet ids of QoS 2 publishes between PUBLISH and PUBCOMP."""

        self.firsts = run_firsts(limits)
        """First bytes of what is read in runs."""

        self._limits = limits
        self._aliases: dict[int, str] = {}

    def take(self, data: bytes, position: int, version: int, events: list[Event]) -> int:
        """Eat a run without properties; the same position: there is none, or look at each."""
        table, is_v5 = self.heads.tables[data[position] & 3], version == V5
        taken = take_rows(data, position, table, is_v5, self._limits.packet_bytes_max)
        if taken is not None:
            if self._is_overrun_by(len(taken.packet_ids) >> 1, version):
                self.firsts = b""  # look at each
                return position
            self.unanswered_count += len(taken.packet_ids) >> 1
            run = MessageRun(taken.head, taken.payloads)
            events.append(new_tuple(PublishRun, (run, taken.packet_ids)))
            return taken.stop
        spans: list[tuple[Head, int]] = []
        bodies: list[bytes] = []
        packet_ids: list[bytes] = []
        stop, learned_at = position, -1
        while True:
            stop = take_publishes(
                data,
                stop,
                self.heads.tables[data[position] & 3],
                is_v5,
                self._limits.packet_bytes_max,
                spans,
                bodies,
                packet_ids,
            )
            if stop == learned_at or not self._learn_topic(data, stop, data[position], version):
                break
            learned_at = stop
        if bodies:
            if self._is_overrun_by(len(packet_ids), version):
                self.firsts = b""  # look at each
                return position
            self.unanswered_count += len(packet_ids)
            if len(spans) == 1:
                messages: Sequence[Message] = MessageRun(spans[0][0], bodies)
            else:
                messages = messages_of(spans, bodies)
            events.append(new_tuple(PublishRun, (messages, b"".join(packet_ids))))
        return stop

    def _learn_topic(self, data: bytes, position: int, first: int, version: int) -> bool:
        """
        Whether the run may go on: a topic that is new stopped it, and has a head now.

        Whatever else is at *position* is left to those who say what is wrong with it.
        """
        if position >= len(data) or data[position] != first:
            return False
        start, end = find_body(data, position)
        if not start or end > len(data) or end - position > self._limits.packet_bytes_max:
            return False
        try:
            packet = decode_packet(data, position, start, end, version)
            if not isinstance(packet, Publish) or packet.properties:
                return False
            self.heads.find(packet.topic, packet.qos, packet.retain)
        except PacketError:
            return False
        return True

    def _is_overrun_by(self, count: int, version: int) -> bool:
        """Whether so many more are too many."""
        unanswered_count = self.unanswered_count + len(self.open_qos2) + count
        return version == V5 and unanswered_count > self._limits.receive_max

    def accept(self, packet: Publish, version: int) -> Publish | PublishRun:
        """One that stood in no run. Raises PacketError for what is not offered, OverrunError."""
        if version == V5 and packet.properties:
            packet = self._resolve_alias(packet)
        if packet.qos > self._limits.qos_max:  # [MQTT-3.2.2-11]
            raise PacketError(Reason.QOS_NOT_SUPPORTED, f"a publish of QoS {packet.qos}")
        if packet.retain and not self._limits.takes_retained:  # [MQTT-3.2.2-14]
            raise PacketError(Reason.RETAIN_NOT_SUPPORTED, "a retained publish")
        is_new = packet.qos == 1 or (packet.qos == 2 and packet.packet_id not in self.open_qos2)
        if is_new and self._is_overrun_by(1, version):
            raise OverrunError(Reason.RECEIVE_MAXIMUM_EXCEEDED, OVERRUN)
        if packet.qos == 2:
            self.open_qos2.add(packet.packet_id)
            return packet
        self.unanswered_count += packet.qos
        if packet.properties:
            return packet
        head = self.heads.find(packet.topic, packet.qos, packet.retain)
        packet_ids = packet.packet_id.to_bytes(2, "big") if packet.qos else b""
        return PublishRun(MessageRun(head, [packet.payload]), packet_ids)

    def _resolve_alias(self, packet: Publish) -> Publish:
        """[MQTT 5, 3.3.2.3.4]"""
        properties = packet.properties
        if find_int(properties, Property.SUBSCRIPTION_IDENTIFIER, 0):
            raise protocol_error("a client's PUBLISH with a subscription identifier")
        alias = find_int(properties, Property.TOPIC_ALIAS, -1)
        if alias < 0:
            return packet
        if not 1 <= alias <= self._limits.topic_alias_max:
            raise PacketError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias}")
        topic = packet.topic or self._aliases.get(alias, "")
        if not topic:
            raise protocol_error(f"topic alias {alias} stands for nothing")
        self._aliases[alias] = topic
        kept = tuple(pair for pair in properties if pair[0] != Property.TOPIC_ALIAS)
        return packet._replace(topic=topic, properties=kept)
