"""
Where the messages of one publisher to one address go: decided once, kept while nothing changes.

A decision is made per (call, head) object and holds for one *stamp*, the sum of the versions of
everything it was made from: rules, matching table, routes, link states. Within it only the
choice that turns with every tick is left: which message queue takes the primary copy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from gateway.bridge_queues import bridged
from gateway.clusters.batches import Copy
from gateway.clusters.client import ClusterClient
from gateway.clusters.link import LinkState, StoreLink
from gateway.clusters.routes import TopicRoute
from gateway.clusters.selector import bucket, rendezvous
from gateway.mapping import (
    CATCH_ALL_TOPIC,
    SERVERS_OWN,
    head_properties,
    is_system_topic,
    qualified,
    topic_of,
)
from gateway.matching import MatchingTable
from gateway.policy import Policy
from gateway.retained import retained_queues
from gateway.routing import Decision as RouteDecision
from gateway.routing import Mirror, Target
from gateway.rules import facts_of
from gateway.throttle import Bucket
from protocols.canonical import (
    DISPATCH_NAME,
    INTERNAL,
    Call,
    Head,
    Properties,
    QueueKind,
    QueueRef,
)
from protocols.errors import Code, Refused
from protocols.remoting.private import SendSet, SetFlag, encode_set, order_hash

TARGETS_MAX: Final = 500
"""Light queues one record is listed in; more are split over further copies."""

STICKY_MAX: Final = 200_000
"""Connections whose store is remembered; beyond it the oldest are chosen anew."""

LATE_QUEUES: Final = (QueueRef(QueueKind.DISPATCH, DISPATCH_NAME),)

Place = tuple[StoreLink, int]
"""A message queue: its store and its id there."""


class RouteUnknown(Exception):
    """The decision needs a topic's route that is not in the cache: load it, then ask again."""

    def __init__(self, cluster: ClusterClient, topic: str, *, is_named_by_route: bool) -> None:
        super().__init__(topic)
        self.cluster = cluster
        self.topic = topic
        self.is_named_by_route = is_named_by_route
        """The operator wrote its name: create it if it is not there."""


class Decision:
    """What was decided for one call and head."""

    __slots__ = (
        "_copies",
        "_is_movable",
        "_make_copies",
        "_pinned",
        "_places",
        "buckets",
        "is_unwanted",
        "mirrors",
        "refusal",
        "stamp",
        "valid_until_ms",
    )

    def __init__(
        self,
        stamp: int,
        *,
        places: Sequence[Place] = (),
        is_movable: bool = False,
        pinned: Sequence[StoreLink] = (),
        make_copies: Callable[[Place | None], tuple[Copy, ...]] | None = None,
        refusal: Refused | None = None,
        buckets: tuple[Bucket, ...] = (),
        mirrors: tuple[Mirror, ...] = (),
        valid_until_ms: int = 0,
    ) -> None:
        self.stamp = stamp
        self.refusal = refusal
        """All messages of the head are refused so."""

        self.buckets = buckets
        self.mirrors = mirrors
        """Shares of the messages that other clusters get too."""

        self.valid_until_ms = valid_until_ms
        """Wall time after which it must be made anew; 0: holds as long as the stamp."""

        self.is_unwanted = refusal is None and not places and not pinned
        """No topic keeps it and no queue wants it: nothing is stored, nothing fails."""

        self._places = places
        self._is_movable = is_movable
        self._pinned = pinned
        self._make_copies = make_copies
        self._copies: dict[int, tuple[Copy, ...]] = {}

    def is_over(self, now_ms: int) -> bool:
        return 0 < self.valid_until_ms <= now_ms

    def copies(self, turn: int) -> tuple[Copy, ...]:
        """The records to store for each message, at this turn. Raises Refused."""
        for link in self._pinned:
            if link.state is LinkState.DOWN:
                raise _away(link.broker)
        index = self._choose(turn) if self._places else 0
        copies = self._copies.get(index)
        if copies is None:
            assert self._make_copies is not None
            place = self._places[index] if self._places else None
            copies = self._copies[index] = self._make_copies(place)
        return copies

    def _choose(self, turn: int) -> int:
        places = self._places
        index = turn % len(places)
        if places[index][0].state is LinkState.UP:
            return index
        if self._is_movable:
            for state in (LinkState.UP, LinkState.LOST):
                for step in range(len(places)):
                    other = (index + step) % len(places)
                    if places[other][0].state is state:
                        return other
        if places[index][0].state is LinkState.DOWN:
            raise _away(places[index][0].broker)
        return index


class Decider:
    """Makes decisions from the rules, the matching table and the clusters."""

    def __init__(
        self,
        clusters: Mapping[str, ClusterClient],
        matching: MatchingTable,
        *,
        default_cluster: str,
        policy: Policy,
    ) -> None:
        self.policy = policy
        self.clusters = clusters
        self.matching = matching
        self.bridges: frozenset[str] = frozenset()
        """Clusters that are bridges to other brokers."""

        self.default_cluster = default_cluster
        self._sticky: dict[Call, str] = {}
        self._missing: dict[tuple[str, str], int] = {}

    @property
    def stamp(self) -> int:
        """Rises when a decision made before may be wrong."""
        versions = [cluster.version for cluster in self.clusters.values()]
        return self.policy.version + self.matching.version + sum(versions)

    def missing(self, cluster: str, topic: str, until_ms: int) -> None:
        """The topic was looked for and is not there: do not ask again before *until_ms*."""
        self._missing[cluster, topic] = until_ms
        if len(self._missing) > 10_000:
            del self._missing[next(iter(self._missing))]

    def store_of(self, call: Call) -> str:
        """The store that a connection's order key has chosen; empty: none yet."""
        return self._sticky.get(call, "")

    def mirrored(self, call: Call, head: Head, mirror: Mirror, *, now_ms: int) -> Decision:
        """Where a mirrored copy goes: a message queue, no light queues. Raises RouteUnknown."""
        cluster = self.clusters[mirror.cluster]
        target = Target(cluster.name, mirror.topic)
        alone = replace(head, queues=(), is_in_topic=True, retain=False, broker="")
        try:
            route = RouteDecision("mirror", (target,))
            return self._place_in(cluster, call, alone, route, target, self.stamp, now_ms)
        except Refused as error:
            return Decision(self.stamp, refusal=error)

    # ── the decision ────────────────────────────────────────────────────────────────────

    def decide(
        self, call: Call, head: Head, *, stamp: int, now_ms: int, properties: Properties = ()
    ) -> Decision:
        """Identity → ACL → route → match → cluster. Raises RouteUnknown."""
        default = self.clusters[self.default_cluster]
        topic = self._named_topic(call, head, default)
        try:
            self._check(call, head, topic)
            facts = facts_of(
                call,
                "publish",
                subject=head.subject,
                topic=topic,
                properties=dict((*head.properties, *properties)),
            )
            route = self.policy.routes.decide(facts)
            if route is None:
                raise Refused(Code.TOPIC_NOT_FOUND, head.subject, "no route matches")
            decision = self._place(call, head, route, stamp, now_ms)
            decision.buckets = self.policy.throttle.buckets(facts)
        except Refused as error:
            # A refusal may end by time (a topic that appears), so it is asked again soon.
            return Decision(stamp, refusal=error, valid_until_ms=now_ms + 1000)
        if call.protocol != INTERNAL or head.is_in_topic:  # its primary was mirrored, or not
            decision.mirrors = route.mirrors
        if route.valid_until_ms:
            decision.valid_until_ms = route.valid_until_ms
        return decision

    def _check(self, call: Call, head: Head, topic: str) -> None:
        if call.protocol == INTERNAL:
            return  # what the gateway sends for itself: dead letters
        if call.protocol == "mqtt" and head.subject.startswith(SERVERS_OWN):
            raise Refused(Code.FORBIDDEN, head.subject, "clients do not publish to these topics")
        if not self.policy.acl.is_allowed(
            call,
            "publish",
            subject=head.subject,
            topic=topic,
            qos=head.qos,
            retain=head.retain,
        ):
            raise Refused(Code.FORBIDDEN, head.subject, "the ACL does not allow this publish")
        is_retry = topic.startswith("%") and call.protocol == "remoting"
        if head.topic and is_system_topic(topic) and not is_retry:
            raise Refused(Code.ILLEGAL_TOPIC, topic, "this topic belongs to the brokers")

    def _named_topic(self, call: Call, head: Head, cluster: ClusterClient) -> str:
        if head.topic:
            return qualified(call.tenant, head.topic)
        return topic_of(call.tenant, head.subject, cluster.routes.exists)

    def _place(
        self, call: Call, head: Head, route: RouteDecision, stamp: int, now_ms: int
    ) -> Decision:
        """The first cluster of the route that can take the message."""
        target = route.choose(head.order_key or call.client_id or call.identity.name)
        if self.bridges:
            match = partial(self.matching.match, call.tenant)
            head, target = bridged(head, route, target, self.bridges, match)
        names = (target.cluster or self.default_cluster, *route.failover)
        if head.order_key and not route.is_order_best_effort:
            names = names[:1]  # another store would break the order of the key
        failure: Refused | None = None
        for name in names:
            cluster = self.clusters.get(name)
            if cluster is None:
                failure = Refused(Code.UNSUPPORTED, name, "no broker cluster of that name is open")
                continue
            if len(names) > 1 and all(
                link.state is LinkState.DOWN for link in cluster.links.values()
            ):
                failure = failure or _away(name)
                continue
            try:
                return self._place_in(cluster, call, head, route, target, stamp, now_ms)
            except Refused as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _place_in(
        self,
        cluster: ClusterClient,
        call: Call,
        head: Head,
        route: RouteDecision,
        target: Target,
        stamp: int,
        now_ms: int,
    ) -> Decision:
        topic = qualified(call.tenant, target.topic) if target.topic else ""
        topic = topic or self._named_topic(call, head, cluster)
        queues = head.queues
        if queues is None:
            queues = self._wanted(call, head, topic)
        spread, pinned = self._by_store(cluster, call, head, queues)
        places: Sequence[Place] = ()
        is_movable = False
        if head.is_in_topic:
            is_named = bool(target.topic)
            known = self._route(cluster, topic, now_ms, is_named_by_route=is_named)
            places, is_movable = self._places(cluster, call, head, known, pinned, route)
        elif not pinned and spread:
            places = tuple((link, 0) for link in cluster.up_links())
            is_movable = True
            if not places:
                raise _away(cluster.name)

        def make_copies(place: Place | None) -> tuple[Copy, ...]:
            maker = CopyMaker(call, head, topic, target, is_primary=head.is_in_topic)
            return maker.copies(place, spread, pinned)

        return Decision(
            stamp,
            places=places,
            is_movable=is_movable,
            pinned=tuple(pinned),
            make_copies=make_copies,
        )

    def _wanted(self, call: Call, head: Head, topic: str) -> tuple[QueueRef, ...]:
        """The queues of the address; of a late message those that match it when it is visible."""
        if not head.is_late:
            return self.matching.match(call.tenant, head.subject)
        return () if is_system_topic(topic) else LATE_QUEUES

    # ── queues ──────────────────────────────────────────────────────────────────────────

    def _by_store(
        self, cluster: ClusterClient, call: Call, head: Head, queues: Sequence[QueueRef]
    ) -> tuple[list[QueueRef], dict[StoreLink, list[QueueRef]]]:
        """(spread over the cluster, store → those pinned there). Raises Refused."""
        spread: list[QueueRef] = []
        pinned: dict[StoreLink, list[QueueRef]] = {}
        for queue in queues:
            home = self.clusters.get(queue.cluster) if queue.cluster else cluster
            if home is None:
                continue  # a queue of a cluster this gateway does not serve
            if queue.store:
                pinned.setdefault(home.link(queue.store), []).append(queue)
            elif home is cluster:
                spread.append(queue)
            else:
                raise Refused(
                    Code.UNSUPPORTED, head.subject, f"its readers are in cluster {queue.cluster}"
                )
        if head.retain and not head.is_late:
            for queue in retained_queues(cluster, call.tenant, head):
                pinned.setdefault(cluster.link(queue.store), []).append(queue)
        return spread, pinned

    # ── message queues ──────────────────────────────────────────────────────────────────

    def _route(
        self, cluster: ClusterClient, topic: str, now_ms: int, *, is_named_by_route: bool
    ) -> TopicRoute:
        route = cluster.routes.find(topic)
        if route is not None and route.writable:
            return route
        if route is None and self._missing.get((cluster.name, topic), 0) <= now_ms:
            raise RouteUnknown(cluster, topic, is_named_by_route=is_named_by_route)
        if route is None and cluster.routes.exists(topic):
            raise Refused(Code.HA_NOT_AVAILABLE, topic, "its stores have not registered yet")
        raise Refused(Code.TOPIC_NOT_FOUND, topic, "the topic has no writable queue")

    def _places(
        self,
        cluster: ClusterClient,
        call: Call,
        head: Head,
        route: TopicRoute,
        pinned: Mapping[StoreLink, object],
        decided: RouteDecision,
    ) -> tuple[Sequence[Place], bool]:
        """(message queues that may take the primary copy, whether another store would do)."""
        writable: dict[str, list[int]] = {}
        for broker, queue_id in route.writable:
            if broker in cluster.links:
                writable.setdefault(broker, []).append(queue_id)
        if not writable:
            raise _away(cluster.name)
        broker = head.broker
        if not broker and head.order_key:
            broker = self._ordered_store(cluster, call, head, writable, decided)
        is_movable = not broker
        if not broker:  # a store that keeps a copy anyway saves one
            here = (link.broker for link in pinned if link.cluster == cluster.name)
            broker = next((name for name in here if name in writable), "")
        if broker and broker not in writable:
            raise Refused(Code.TOPIC_NOT_FOUND, route.topic, f"no writable queue on {broker}")
        if not broker:
            return [(cluster.links[name], i) for name, i in _in_turn(writable)], True
        ids = writable[broker]
        if head.message_queue_id >= 0:
            ids = [head.message_queue_id]
        elif head.order_key:
            ids = [ids[bucket(head.order_key, len(ids))]]
        return [(cluster.links[broker], queue_id) for queue_id in ids], is_movable

    def _ordered_store(
        self,
        cluster: ClusterClient,
        call: Call,
        head: Head,
        writable: Mapping[str, object],
        decided: RouteDecision,
    ) -> str:
        """
        The store of an order key.

        A message group hashes over all stores of the topic, so that every gateway agrees; a
        publisher's client id is chosen once per connection, among those that are up, and kept.
        """
        up = [name for name in writable if cluster.links[name].state is LinkState.UP]
        if head.is_fifo:
            broker = rendezvous(head.order_key, writable)
            if decided.is_order_best_effort and broker not in up and up:
                broker = rendezvous(head.order_key, up)
            return broker
        broker = self._sticky.get(call, "")
        if broker not in writable or (decided.is_order_best_effort and broker not in up and up):
            broker = rendezvous(head.order_key, up or writable)
            if len(self._sticky) >= STICKY_MAX:
                del self._sticky[next(iter(self._sticky))]
            self._sticky[call] = broker
        return broker


class CopyMaker:
    """The records of one head: the primary, and one on each other store that wants it."""

    def __init__(
        self, call: Call, head: Head, topic: str, target: Target, *, is_primary: bool
    ) -> None:
        self._head = head
        self._topic = topic
        self._is_primary = is_primary
        properties = head_properties(call, head, topic)
        if target.tag:
            properties = _with(properties, "TAGS", target.tag)
        if target.key:
            properties = _with(properties, "KEYS", target.key)
        self._properties = properties + target.properties

    def copies(
        self,
        place: Place | None,
        spread: Sequence[QueueRef],
        pinned: Mapping[StoreLink, Sequence[QueueRef]],
    ) -> tuple[Copy, ...]:
        """*place*: where the primary (or, without one, the spread queues' copy) goes."""
        home = place[0] if place is not None else next(iter(pinned))
        queue_id = place[1] if place is not None and self._is_primary else 0
        copies = [
            self._copy(home, queue_id, chunk, is_primary=self._is_primary and index == 0)
            for index, chunk in enumerate(_chunks((*spread, *pinned.get(home, ()))))
        ]
        for link, queues in pinned.items():
            if link is not home:
                copies += [self._copy(link, 0, c, is_primary=False) for c in _chunks(queues)]
        for copy in copies:
            copy.count_targets(copies)
        return tuple(copies)

    def _copy(
        self, link: StoreLink, queue_id: int, queues: Sequence[QueueRef], *, is_primary: bool
    ) -> Copy:
        flags = SetFlag.IS_PRIMARY if is_primary else SetFlag(0)
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
            template=link.template(self._topic, self._properties),
            order_hash=order_hash(self._head.order_key),
        )


def catch_all(tenant: str) -> str:
    """The catch-all topic of a tenant, created on first use."""
    return qualified(tenant, CATCH_ALL_TOPIC)


def _chunks(queues: Sequence[QueueRef]) -> Iterator[Sequence[QueueRef]]:
    """At most TARGETS_MAX each; one empty chunk if there are none."""
    for start in range(0, len(queues) or 1, TARGETS_MAX):
        yield queues[start : start + TARGETS_MAX]


def _in_turn(writable: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int]]:
    """Stores alternate: a, b, a, b rather than a, a, b, b."""
    longest = max(len(ids) for ids in writable.values())
    for index in range(longest):
        for broker, ids in writable.items():
            if index < len(ids):
                yield broker, ids[index]


def _with(properties: Properties, name: str, value: str) -> Properties:
    return ((name, value), *(pair for pair in properties if pair[0] != name))


def _away(store: str) -> Refused:
    return Refused(Code.HA_NOT_AVAILABLE, store, f"store {store} is away")
