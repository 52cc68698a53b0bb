"""
What decisions about one connection's subjects share when they differ below the first level only.

A client that publishes to thousands of topics would pay rules, route, topic and message queues
for each of them. Where no rule looks at the address these are the same for all subjects of a
first level: they are taken from the first decision of the kind, and a further subject costs its
own permission and its own match. Everything else is decided in full.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from gateway.clusters.batches import Copy
from gateway.copies import CopyMaker, Place
from gateway.decided import Decision, Origin
from gateway.mapping import SERVERS_OWN
from gateway.matching import MatchingTable
from gateway.policy import Policy
from protocols.canonical import Call, Head, QueueRef

KINDS_MAX: Final = 10_000
"""Kinds remembered; all are forgotten when it is full."""


class Kind(NamedTuple):
    """The part of a decision that holds for every subject of its first level."""

    head: Head
    """The first one's: others of the kind are like it but for the subject."""

    origin: Origin
    first: Decision

    def is_of(self, head: Head) -> bool:
        """Nothing but the subject (and properties, which are made from it) is another."""
        first = self.head
        return (
            head.order_key == first.order_key
            and head.tag == first.tag
            and head.topic == first.topic
        )


class Kinds:
    """The kinds of one stamp."""

    def __init__(self, matching: MatchingTable) -> None:
        self._matching = matching
        self._stamp = -1
        self._found: dict[tuple[Call, str, int], Kind] = {}

    def decide(
        self, policy: Policy, call: Call, head: Head, *, stamp: int, now_ms: int
    ) -> Decision | None:
        """The decision, if its kind is known and nothing about the head is special."""
        if stamp != self._stamp:
            self._stamp = stamp
            self._found.clear()
            return None
        subject = head.subject
        kind = self._found.get((call, subject.partition("/")[0], head.qos))
        if kind is None or not is_plain(head) or not kind.is_of(head):
            return None
        first = kind.first
        if first.is_over(now_ms) or subject.startswith(SERVERS_OWN):
            return None
        if not policy.acl.is_allowed(
            call, "publish", subject=subject, topic=kind.origin.topic, qos=head.qos
        ):
            return None
        queues = self._matching.match(call.tenant, subject)
        for queue in queues:
            if queue.store or queue.cluster not in ("", kind.origin.cluster):
                return None
        return first.like(partial(self._copies, call, head, kind, queues))

    def learn(self, call: Call, head: Head, decision: Decision) -> None:
        """*decision* was made in full: others of its kind may follow it."""
        if decision.origin is None or decision.stamp != self._stamp or not is_plain(head):
            return
        if len(self._found) >= KINDS_MAX:
            self._found.clear()
        key = (call, head.subject.partition("/")[0], head.qos)
        self._found[key] = Kind(head, decision.origin, decision)

    @staticmethod
    def _copies(
        call: Call, head: Head, kind: Kind, queues: Sequence[QueueRef], place: Place | None
    ) -> tuple[Copy, ...]:
        maker = CopyMaker(call, head, kind.origin.topic, kind.origin.target, is_primary=True)
        return maker.copies(place, queues, {})


def is_plain(head: Head) -> bool:
    """It goes to a topic of its address and to whoever subscribed: no wish of its own."""
    return (
        head.queues is None
        and not head.retain
        and not head.is_late
        and head.is_in_topic
        and head.message_queue_id < 0
        and not head.broker
        and not head.is_fifo
        and head.priority < 0
    )
