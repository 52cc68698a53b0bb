"""The records of one head: the primary, and one on each other store that wants it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from gateway.clusters.batches import Copy
from gateway.clusters.link import StoreLink
from gateway.mapping import head_properties
from gateway.routing import Target
from protocols.canonical import Call, Head, Properties, QueueKind, QueueRef
from protocols.remoting.records import encode_host
from protocols.remoting.sending import SendSet, SetFlag, encode_set, order_hash

TARGETS_MAX: Final = 500
"""Light queues one record is listed in; more are split over further copies."""

NO_FLAGS: Final = SetFlag(0)

Place = tuple[StoreLink, int]
"""A message queue: its store and its id there."""


class CopyMaker:
    """Makes them for a place once it is chosen."""

    def __init__(
        self, call: Call, head: Head, topic: str, target: Target, *, is_primary: bool
    ) -> None:
        self._head = head
        self._topic = topic
        self._is_primary = is_primary
        self._born_host = encode_host(call.peer)
        properties = head_properties(call, head, topic)
        if target.tag:
            properties = _with(properties, "TAGS", target.tag)
        if target.key:
            properties = _with(properties, "KEYS", target.key)
        self._properties = properties + target.properties

    @property
    def properties(self) -> Properties:
        """What every record of the head says."""
        return self._properties

    def copies(
        self,
        place: Place | None,
        spread: Sequence[QueueRef],
        pinned: Mapping[StoreLink, Sequence[QueueRef]],
    ) -> tuple[Copy, ...]:
        """*place*: where the primary (or, without one, the spread queues' copy) goes."""
        home = place[0] if place is not None else next(iter(pinned))
        queue_id = place[1] if place is not None and self._is_primary else 0
        here = list(_chunks((*spread, *pinned.get(home, ()))))
        if self._is_apart_at(home) and here[0]:
            here.insert(0, ())  # who reads the message queue finds no properties in the body
        copies = [
            self._copy(home, queue_id, chunk, is_primary=self._is_primary and index == 0)
            for index, chunk in enumerate(here)
        ]
        for link, queues in pinned.items():
            if link is not home:
                copies += [self._copy(link, 0, c, is_primary=False) for c in _chunks(queues)]
        if len(copies) > 1:
            ordinals: dict[StoreLink, int] = {}
            for copy in copies:
                copy.count_targets(copies)
                if not copy.is_primary:
                    copy.ordinal = ordinals[copy.link] = ordinals.get(copy.link, 0) + 1
        return tuple(copies)

    def _is_apart_at(self, home: StoreLink) -> bool:
        return self._head.is_apart and self._is_primary and home.capabilities.is_tidegate

    def _copy(
        self, link: StoreLink, queue_id: int, queues: Sequence[QueueRef], *, is_primary: bool
    ) -> Copy:
        flags = SetFlag.IS_PRIMARY if is_primary else NO_FLAGS
        if queues and queues[-1].kind is QueueKind.RETAINED:
            flags |= SetFlag.IS_RETAINED
        keys = tuple(queue.key() for queue in queues)
        return Copy(
            link=link,
            head=self._head,
            topic=self._topic,
            queue_id=queue_id,
            is_primary=is_primary,
            queues=tuple(queues),
            set_bytes=encode_set(SendSet(flags, self._topic, queue_id, keys)),
            template=link.template(self._topic, self._properties, self._born_host),
            order_hash=_hash_of(self._head.order_key),
        )


def copies_of(
    call: Call,
    head: Head,
    topic: str,
    target: Target,
    spread: Sequence[QueueRef],
    pinned: Mapping[StoreLink, Sequence[QueueRef]],
    place: Place | None,
) -> tuple[Copy, ...]:
    """The copies of a message of *head* whose primary goes to *place*."""
    maker = CopyMaker(call, head, topic, target, is_primary=head.is_in_topic)
    return maker.copies(place, spread, pinned)


@lru_cache(maxsize=4096)
def _hash_of(order_key: str) -> int:
    """A client's key stands in all its heads."""
    return order_hash(order_key)


def _chunks(queues: Sequence[QueueRef]) -> Iterator[Sequence[QueueRef]]:
    """At most TARGETS_MAX each; one empty chunk if there are none."""
    for start in range(0, len(queues) or 1, TARGETS_MAX):
        yield queues[start : start + TARGETS_MAX]


def _with(properties: Properties, name: str, value: str) -> Properties:
    return ((name, value), *(pair for pair in properties if pair[0] != name))
