"""
What decisions about one connection's subjects share when they differ below the first level only.

A client that publishes to thousands of topics would pay rules, route, topic and message queues
for each of them. Where no rule looks at the address these are the same for all subjects of a
first level: they are taken from the first decision of the kind, and a further subject costs its
own permission and its own match. Everything else is decided in full.
"""

from dataclasses import replace
from typing import Final

from gateway.clusters.batches import Copy
from gateway.copies import TARGETS_MAX, CopyMaker, Place
from gateway.decided import Decision, Origin
from gateway.mapping import SERVERS_OWN
from gateway.matching import MatchingTable
from gateway.policy import Policy
from protocols.canonical import Call, Head, QueueRef
from protocols.remoting.records import encode_host, encode_properties
from protocols.remoting.sending import SendSet, SetFlag, encode_set, order_hash

KINDS_MAX: Final = 10_000
"""Kinds remembered; all are forgotten when it is full."""


SUBJECT_HERE: Final = "\x00"
"""Stands for the subject in the text of a kind: no subject and no property of MQTT has it."""


class Kind:
    """The part of a decision that holds for every subject of its first level."""

    __slots__ = ("_born_host", "_call", "_order_hash", "_sets", "_text", "first", "head",
                 "origin")  # fmt: skip

    def __init__(self, call: Call, head: Head, origin: Origin, first: Decision) -> None:
        self.head = head
        """The first one's: others of the kind are like it but for the subject."""

        self.origin = origin
        self.first = first
        self._call = call
        self._born_host = encode_host(call.peer)
        self._order_hash = order_hash(head.order_key)
        self._text = _text_of(call, head, origin)
        self._sets: dict[tuple[int, int], bytes] = {}

    def is_of(self, head: Head) -> bool:
        """Nothing but the subject (and properties, which are made from it) is another."""
        first = self.head
        return (
            head.order_key == first.order_key
            and head.tag == first.tag
            and head.topic == first.topic
        )

    def copies(
        self, head: Head, queues: tuple[QueueRef, ...], place: Place | None
    ) -> tuple[Copy, ...]:
        """As ``CopyMaker`` makes them."""
        topic = self.origin.topic
        if place is None or len(queues) > TARGETS_MAX or not self._has_text(head):
            maker = CopyMaker(self._call, head, topic, self.origin.target, is_primary=True)
            return maker.copies(place, queues, {})
        link, queue_id = place
        text = head.subject.join(self._text).encode("utf-8", "replace")
        keys = tuple([queue.key() for queue in queues])
        return (
            Copy(
                link=link,
                head=head,
                topic=topic,
                queue_id=queue_id,
                is_primary=True,
                queues=queues,
                set_bytes=self._set_bytes(queue_id, keys),
                template=link.template(topic, text, self._born_host),
                order_hash=self._order_hash,
            ),
        )

    def _set_bytes(self, queue_id: int, keys: tuple[bytes, ...]) -> bytes:
        """As ``encode_set``; what stands before the keys is made once for each count of them."""
        found = self._sets.get((queue_id, len(keys)))
        if found is None:
            whole = encode_set(SendSet(SetFlag.IS_PRIMARY, self.origin.topic, queue_id, keys))
            found = whole[: len(whole) - 16 * len(keys)]
            self._sets[queue_id, len(keys)] = found
        return b"".join((found, *keys))

    def _has_text(self, head: Head) -> bool:
        """Its stored text is that of the first head, with another subject."""
        subject, first = head.subject, self.head
        if not self._text or subject == self.origin.topic or not subject.isprintable():
            return False
        if len(head.properties) != len(first.properties):
            return False
        for (name, value), (first_name, first_value) in zip(
            head.properties, first.properties, strict=True
        ):
            if name != first_name:
                return False
            if value != (subject if first_value == first.subject else first_value):
                return False
        return True


class KindCopies:
    """``Kind.copies`` of one subject; a partial of the method would be four objects."""

    __slots__ = ("_head", "_kind", "_queues")

    def __init__(self, kind: Kind, head: Head, queues: tuple[QueueRef, ...]) -> None:
        self._kind = kind
        self._head = head
        self._queues = queues

    def __call__(self, place: Place | None) -> tuple[Copy, ...]:
        return self._kind.copies(self._head, self._queues, place)


def _text_of(call: Call, head: Head, origin: Origin) -> list[str]:
    """What records of the kind say, cut where the subject stands; empty: cannot be told apart."""
    marked = replace(
        head,
        subject=SUBJECT_HERE,
        properties=tuple(
            (name, SUBJECT_HERE if value == head.subject else value)
            for name, value in head.properties
        ),
    )
    maker = CopyMaker(call, marked, origin.topic, origin.target, is_primary=True)
    places = 1 + sum(value == head.subject for _, value in head.properties)
    parts = encode_properties(maker.properties).decode("utf-8", "replace").split(SUBJECT_HERE)
    return parts if len(parts) == places + 1 else []


class Kinds:
    """The kinds of one stamp."""

    def __init__(self, matching: MatchingTable) -> None:
        self._matching = matching
        self._stamp = -1
        self._found: dict[Call, dict[tuple[str, int], Kind]] = {}
        self._count = 0

    def decide(
        self, policy: Policy, call: Call, head: Head, *, stamp: int, now_ms: int
    ) -> Decision | None:
        """The decision, if its kind is known and nothing about the head is special."""
        if stamp != self._stamp:
            self._stamp = stamp
            self._clear()
            return None
        subject = head.subject
        known = self._found.get(call)
        kind = known.get((subject.partition("/")[0], head.qos)) if known is not None else None
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
        return first.like(KindCopies(kind, head, queues))

    def learn(self, call: Call, head: Head, decision: Decision) -> None:
        """*decision* was made in full: others of its kind may follow it."""
        if decision.origin is None or decision.stamp != self._stamp or not is_plain(head):
            return
        if self._count >= KINDS_MAX:
            self._clear()
        known = self._found.setdefault(call, {})
        key = (head.subject.partition("/")[0], head.qos)
        self._count += key not in known
        known[key] = Kind(call, head, decision.origin, decision)

    def forget(self, call: Call) -> None:
        """Its connection has ended."""
        self._count -= len(self._found.pop(call, ()))

    def _clear(self) -> None:
        self._found.clear()
        self._count = 0


def is_plain(head: Head) -> bool:
    """It goes to a topic of its address and to whoever subscribed: no wish of its own."""
    return (
        head.queues is None
        and not head.without
        and not head.retain
        and not head.is_late
        and head.is_in_topic
        and not head.is_apart
        and head.message_queue_id < 0
        and not head.broker
        and not head.is_fifo
        and head.priority < 0
    )
