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
from store.log.format import EntryFlag, Kind
from store.log.messages import property_of, retargeted, tag_hash_of, topic_of, with_reconsume_count
from store.log.state import encode_ack
from store.metadata.topics import Topics
from store.policies.handover import Handover, fitting_count

DEAD_LETTER_QUEUE_ID: Final = 0
"""RocketMQ's dead-letter topics have one queue."""

AT_ONCE: Final = 256
"""Dead letters in one block, at most."""


class Burial:
    """Moves messages to dead-letter topics."""

    def __init__(self, core: Core, topics: Topics, handover: Handover) -> None:
        self._core = core
        self._topics = topics
        self._handover = handover

    def bury(self, group: Group, positions: Sequence[int], reason: str) -> None:
        """Copy and end these deliveries of *group*, in blocks of a bounded size."""
        start = 0
        while start < len(positions):
            some = positions[start : start + AT_ONCE]
            some = some[: fitting_count(self._core, some)]
            self._bury_some(group, some, reason)
            start += len(some)
        if group.returned:
            self._core.woken_groups.add(group.number)

    def _bury_some(self, group: Group, positions: Sequence[int], reason: str) -> None:
        """Their ends and their copies in one block: nothing that is logged between parts them."""
        guard, topic = group.guard, group.spec.dead_letter_topic
        is_handed_over = guard is not None and bool(guard.terms.dead_letter)
        copies: list[bytes] = []
        if topic and not is_handed_over:
            copies = [copy for at in positions if (copy := self._copy(group, at, topic))]
        if not group.spec.is_volatile:
            self._core.log.seal_state()
            payload = encode_ack([(group.number, positions)])
            self._core.log.state(Kind.DEAD_LETTER, payload)
        group.done(positions)
        if guard is not None and is_handed_over:
            count = self._handover.messages(guard, positions, reason)
        else:
            count = len(copies)
            if copies:
                self._append(topic, copies)
        self._core.counters.dead_lettered += count
        self._core.counters.discarded += len(positions) - count

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
