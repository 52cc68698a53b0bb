"""
The last attempt is over: the message goes to the group's dead-letter topic.

The copy and the ack of the delivery stand in one block, so that there is never both or neither.
A group that names no dead-letter topic discards.
"""

from collections.abc import Sequence
from typing import Final

from protocols.errors import Refused
from store.answers import TopicConfig
from store.appender import Draft, Plan, append_messages
from store.core import Core
from store.groups.group import Group
from store.groups.guard import Guard
from store.log.format import EntryFlag, Kind
from store.log.messages import property_of, retargeted, tag_hash_of, topic_of, with_reconsume_count
from store.log.state import encode_ack
from store.metadata.topics import Topics
from store.policies.handover import Handover

DEAD_LETTER_QUEUE_ID: Final = 0
"""RocketMQ's dead-letter topics have one queue."""

AT_ONCE: Final = 256
"""Dead letters handed over in one block."""


class Burial:
    """Moves messages to dead-letter topics."""

    def __init__(self, core: Core, topics: Topics, handover: Handover) -> None:
        self._core = core
        self._topics = topics
        self._handover = handover

    def bury(self, group: Group, positions: Sequence[int], reason: str) -> None:
        """Copy and end these deliveries of *group*."""
        if group.guard is not None and group.guard.terms.dead_letter:
            for start in range(0, len(positions), AT_ONCE):
                self._hand_over(group, group.guard, positions[start : start + AT_ONCE], reason)
            return
        topic = group.spec.dead_letter_topic
        copies = [copy for at in positions if topic and (copy := self._copy(group, at, topic))]
        if not group.spec.is_volatile:
            payload = encode_ack([(group.number, positions)])
            self._core.log.state(Kind.DEAD_LETTER, payload)
        group.done(positions)
        self._core.counters.dead_lettered += len(copies)
        self._core.counters.discarded += len(positions) - len(copies)
        if group.returned:
            self._core.woken_groups.add(group.number)
        if copies:
            self._append(topic, copies)

    def _hand_over(self, group: Group, guard: Guard, positions: Sequence[int], reason: str) -> None:
        """To the hand-over queue that the policy names."""
        if not group.spec.is_volatile:
            self._core.log.seal_state()
            payload = encode_ack([(group.number, positions)])
            self._core.log.state(Kind.DEAD_LETTER, payload)
        group.done(positions)
        count = self._handover.messages(guard, positions, reason)
        self._core.counters.dead_lettered += count
        self._core.counters.discarded += len(positions) - count
        if group.returned:
            self._core.woken_groups.add(group.number)

    def _append(self, topic: str, copies: Sequence[bytes]) -> None:
        if topic not in self._topics.configs:
            self._topics.put(TopicConfig(topic, 1, 1))
        queue = self._core.message_queue(topic, DEAD_LETTER_QUEUE_ID)
        count = len(copies)
        draft = Draft(
            bytearray(b"".join(copies)),
            [len(copy) for copy in copies],
            [0] * count,
            [Plan(queue, ())],
            [1 | EntryFlag.HAS_TAG] * count,
            [0] * count,
            tags=[tag_hash_of(copy) for copy in copies],
        )
        append_messages(self._core, draft)

    def _copy(self, group: Group, position: int, topic: str) -> bytes:
        """The message under its new topic; b"" if it cannot be read any more."""
        at = self._core.entries.targets.get(position, position)
        try:
            record = self._core.record_at(at)
        except Refused:
            return b""
        origin = {
            "DLQ_ORIGIN_TOPIC": topic_of(record),
            "DLQ_ORIGIN_MESSAGE_ID": property_of(record, b"UNIQ_KEY").decode("utf-8", "replace"),
        }
        if not property_of(record, b"RETRY_TOPIC"):  # how RocketMQ's tools find its topic
            origin["RETRY_TOPIC"] = origin["DLQ_ORIGIN_TOPIC"]
        copy = retargeted(record, topic, DEAD_LETTER_QUEUE_ID, origin)
        return with_reconsume_count(copy, group.attempts.get(position, 0) + 1)
