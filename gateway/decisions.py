"""
Where the messages of one publisher to one address go: decided once, kept while nothing changes.

A decision is made per (call, head) object and holds for one *stamp*, the sum of the versions of
everything it was made from: rules, matching table, routes, link states. Within it only the
choice that turns with every tick is left: which message queue takes the primary copy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from gateway.bridge_queues import bridged
from gateway.clusters.client import ClusterClient
from gateway.clusters.link import LinkState, StoreLink
from gateway.clusters.routes import TopicRoute
from gateway.clusters.selector import bucket, rendezvous
from gateway.copies import Place, copies_of
from gateway.decided import Decision, Origin, away
from gateway.failback import FailBack
from gateway.kinds import Kinds
from gateway.mapping import (
    CATCH_ALL_TOPIC,
    MIRROR_OF,
    SERVERS_OWN,
    TRACE_TOPIC,
    is_system_topic,
    qualified,
)
from gateway.matching import MatchingTable
from gateway.policy import Policy
from gateway.retained import keeper_of, retained_queues
from gateway.routing import Decision as RouteDecision
from gateway.routing import Mirror, Target
from gateway.rules import facts_of
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

STICKY_MAX: Final = 200_000
"""Connections whose store is remembered; beyond it the oldest are chosen anew."""

SET_BACK_MS_MIN: Final = 1000
"""A clock that went back by less was slewed; what holds until a time is asked again by then."""

LATE_QUEUES: Final = (QueueRef(QueueKind.DISPATCH, DISPATCH_NAME),)


class RouteUnknown(Exception):
    """The decision needs a topic's route that is not in the cache: load it, then ask again."""

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        *,
        is_named_by_route: bool = False,
        is_automatic: bool = False,
    ) -> None:
        super().__init__(topic)
        self.cluster = cluster
        self.topic = topic
        self.is_named_by_route = is_named_by_route
        """The operator wrote its name: create it if it is not there."""

        self.is_automatic = is_automatic
        """A publish asks for it: create it if there is room in the budget."""


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
        self._fail_back = FailBack()
        self._kinds = Kinds(matching)
        self._sticky: dict[Call, str] = {}
        self._missing: dict[tuple[str, str], int] = {}
        self._seen_ms = 0
        self._set_back_count = 0

    @property
    def stamp(self) -> int:
        """Rises when a decision made before may be wrong."""
        versions = [cluster.version for cluster in self.clusters.values()]
        rules = self.policy.version + self.matching.version
        return rules + sum(versions) + self._set_back_count

    def see(self, now_ms: int) -> None:
        """
        The wall clock, as it goes on. If it was set back, nothing holds that was to hold until a
        time: a topic that was not there a second ago would be missing for hours.
        """
        if now_ms < self._seen_ms - SET_BACK_MS_MIN:
            self._set_back_count += 1
            self._missing.clear()
            self._fail_back.set_back(now_ms)
        self._seen_ms = now_ms

    def missing(self, cluster: str, topic: str, until_ms: int) -> None:
        """The topic was looked for and is not there: do not ask again before *until_ms*."""
        self._missing[cluster, topic] = until_ms
        if len(self._missing) > 10_000:
            del self._missing[next(iter(self._missing))]

    def keeps_order(self, call: Call, head: Head, *, now_ms: int) -> bool:
        """Whether what one store should take waits for it rather than go to another."""
        topic = self._named_topic(call, head, self.clusters[self.default_cluster])
        facts = facts_of(call, "publish", subject=head.subject, topic=topic, wall_ms=now_ms)
        route = self.policy.routes.decide(facts)
        return route is None or not route.is_order_best_effort

    def forget(self, call: Call) -> None:
        """Its connection has ended."""
        self._sticky.pop(call, None)
        self._kinds.forget(call)

    def store_of(self, call: Call) -> str:
        """The store that a connection's order key has chosen; empty: none yet."""
        return self._sticky.get(call, "")

    def mirrored(self, call: Call, head: Head, mirror: Mirror, *, now_ms: int) -> Decision:
        """Where a mirrored copy goes: a message queue, no light queues. Raises RouteUnknown."""
        cluster = self.clusters[mirror.cluster]
        target = Target(cluster.name, mirror.topic, properties=((MIRROR_OF, mirror.route),))
        alone = replace(head, queues=(), is_in_topic=True, retain=False, broker="")
        try:
            route = RouteDecision("mirror", (target,))
            return self._place_in(cluster, call, alone, route, target, self.stamp, now_ms)
        except Refused as error:
            return Decision(self.stamp, refusal=error)

    def may_leave(self, call: Call, head: Head) -> bool:
        """
        Whether its publisher need only connect anew to be served: the store that keeps its order
        was chosen for the connection, and another one is up.
        """
        broker = self._sticky.get(call, "")
        if not broker or head.is_fifo or head.qos == 2:
            return False
        return any(
            broker in cluster.links and bool(cluster.up_links())
            for cluster in self.clusters.values()
        )

    def leave(self, call: Call, head: Head) -> bool:
        """
        Choose the store that keeps the publisher's order anew; False: none is up, or it was not
        chosen for the connection.
        """
        is_left = bool(self._sticky.get(call)) and not head.is_fifo
        if is_left and any([cluster.up_links() for cluster in self.clusters.values()]):
            self.forget(call)
            return True
        return False

    # ── the decision ────────────────────────────────────────────────────────────────────

    def decide(
        self, call: Call, head: Head, *, stamp: int, now_ms: int, properties: Properties = ()
    ) -> Decision:
        """Identity → ACL → route → match → cluster. Raises RouteUnknown."""
        has_kinds = self.policy.is_subject_blind and not properties and not self.bridges
        if has_kinds:
            known = self._kinds.decide(self.policy, call, head, stamp=stamp, now_ms=now_ms)
            if known is not None:
                return known
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
                wall_ms=now_ms,
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
        if self.policy.windows:
            decision.holds_until(self.policy.valid_until_ms(now_ms))
        if has_kinds:
            self._kinds.learn(call, head, decision)
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
        is_clients = call.protocol == "remoting" and (
            topic.startswith("%") or topic == TRACE_TOPIC  # retries, traces
        )
        if head.topic and is_system_topic(topic) and not is_clients:
            raise Refused(Code.ILLEGAL_TOPIC, topic, "this topic belongs to the brokers")

    def _named_topic(self, call: Call, head: Head, cluster: ClusterClient) -> str:
        if head.topic:
            return qualified(call.tenant, head.topic)
        return self.policy.addressing.topic(
            call.protocol, call.tenant, head.subject, cluster.routes.exists
        )

    def _ask_for_own(self, call: Call, head: Head, cluster: ClusterClient, now_ms: int) -> None:
        """Raises RouteUnknown when the subject may have a topic of its own and has none yet."""
        addressing = self.policy.addressing
        wanted = addressing.wanted(call.protocol, call.tenant, head.subject)
        if not addressing.may_be_made(call.protocol, wanted) or cluster.routes.exists(wanted):
            return
        if self._missing.get((cluster.name, wanted), 0) <= now_ms:
            raise RouteUnknown(cluster, wanted, is_automatic=True)

    def _place(
        self, call: Call, head: Head, route: RouteDecision, stamp: int, now_ms: int
    ) -> Decision:
        """The first cluster of the route that can take the message."""
        target = route.choose(head.order_key or call.client_id or call.identity.name)
        if self.bridges:
            match = partial(self._match, call)
            head, target = bridged(head, route, target, self.bridges, match)
        names: Sequence[str] = (target.cluster or self.default_cluster, *route.failover)
        if head.order_key and not route.is_order_best_effort:
            names = names[:1]  # another store would break the order of the key
        if len(names) == 1:
            cluster = self._open_cluster(names[0])
            return self._place_in(cluster, call, head, route, target, stamp, now_ms)
        topic = head.topic or head.subject.partition("/")[0]
        own = names[0]
        names, until_ms = self._fail_back.order(names, topic, route.fail_back_ms, now_ms)
        failure: Refused | None = None
        reserve: Decision | None = None
        for name in names:
            try:
                self._require_link(name)
                cluster = self._open_cluster(name)
                decision = self._place_in(cluster, call, head, route, target, stamp, now_ms)
            except Refused as error:
                failure = failure or error
                if name == own:
                    self._fail_back.is_ill(name, topic)
                continue
            is_back = name == own and self._fail_back.is_well(name, topic, now_ms)
            if is_back and route.fail_back_ms:
                reserve, until_ms = decision, now_ms + route.fail_back_ms
                continue  # the others are used until it has been well for a while
            decision.holds_until(until_ms)
            decision.origin = None
            return decision
        if reserve is not None:
            reserve.origin = None
            return reserve
        assert failure is not None
        raise failure

    def _require_link(self, name: str) -> None:
        """Raises Refused: no store of the cluster can be reached."""
        cluster = self.clusters.get(name)
        if cluster is not None and all(
            link.state is LinkState.DOWN for link in cluster.links.values()
        ):
            raise away(name)

    def _open_cluster(self, name: str) -> ClusterClient:
        """Raises Refused: there is none of that name."""
        cluster = self.clusters.get(name)
        if cluster is None:
            raise Refused(Code.UNSUPPORTED, name, "no broker cluster of that name is open")
        return cluster

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
        if not topic:
            if not head.topic and self.policy.addressing.auto_topics_max:
                self._ask_for_own(call, head, cluster, now_ms)
            topic = self._named_topic(call, head, cluster)
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
            places = tuple((link, 0) for link in cluster.open_links())
            is_movable = True
            if not places:
                raise away(cluster.name)

        return Decision(
            stamp,
            places=places,
            is_movable=is_movable,
            pinned=tuple(pinned),
            make_copies=partial(copies_of, call, head, topic, target, spread, pinned),
            origin=None if pinned else Origin(cluster.name, topic, target),
        )

    def _wanted(self, call: Call, head: Head, topic: str) -> tuple[QueueRef, ...]:
        """The queues of the address; of a late message those that match it when it is visible."""
        if not head.is_late:
            return self._match(call, head)
        return () if is_system_topic(topic) else LATE_QUEUES

    def _match(self, call: Call, head: Head) -> tuple[QueueRef, ...]:
        found = self.matching.match(call.tenant, head.subject)
        if not head.without:
            return found
        return tuple([queue for queue in found if queue not in head.without])

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
            keeper = keeper_of(self.clusters, cluster)
            for queue in retained_queues(keeper, call.tenant, head):
                pinned.setdefault(keeper.link(queue.store), []).append(queue)
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
            raise away(cluster.name)
        if head.message_queue_id >= 0 and not head.broker:  # a priority: of any store
            writable = {
                name: [ids[min(head.message_queue_id, len(ids) - 1)]]
                for name, ids in writable.items()
            }
        broker = head.broker
        if not broker and head.order_key:
            broker = self._ordered_store(cluster, call, head, writable, decided)
        is_movable = not broker
        if is_movable and decided.prefers_zone:
            writable = self._in_zone(cluster, writable)
        if not broker:  # a store that keeps a copy anyway saves one
            here = (link.broker for link in pinned if link.cluster == cluster.name)
            broker = next((name for name in here if name in writable), "")
        if broker and broker not in writable:
            raise Refused(Code.TOPIC_NOT_FOUND, route.topic, f"no writable queue on {broker}")
        if not broker:
            return [(cluster.links[name], i) for name, i in _in_turn(writable)], True
        ids = writable[broker]
        if head.message_queue_id >= 0 and head.broker:
            ids = [head.message_queue_id]
        elif head.order_key:
            ids = [ids[bucket(head.order_key, len(ids))]]
        return [(cluster.links[broker], queue_id) for queue_id in ids], is_movable

    def _in_zone(
        self, cluster: ClusterClient, writable: dict[str, list[int]]
    ) -> dict[str, list[int]]:
        """Those of stores in our zone that are up; all when there are none."""
        near = {
            broker: ids
            for broker, ids in writable.items()
            if cluster.zone_of(broker) == self.policy.zone
            and cluster.links[broker].state is LinkState.UP
        }
        return near if near and self.policy.zone else writable

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
        What is sent again under a once-key goes to where the first attempt is; see ``resends``.
        A will of QoS 2 has one store: two gateways may publish it, and nobody looks for it.
        """
        if head.qos == 2 and not call.is_patient and not decided.is_order_best_effort:
            return rendezvous(head.order_key, writable)
        up = [name for name in writable if cluster.links[name].state is LinkState.UP]
        if head.is_fifo:
            broker = rendezvous(head.order_key, writable)
            if decided.is_order_best_effort and broker not in up and up:
                broker = rendezvous(head.order_key, up)
            return broker
        broker = self._sticky.get(call, "")
        if broker not in writable or (decided.is_order_best_effort and broker not in up and up):
            near = self._in_zone(cluster, {name: [] for name in up}) if decided.prefers_zone else up
            broker = rendezvous(head.order_key, near or writable)
            if len(self._sticky) >= STICKY_MAX:
                del self._sticky[next(iter(self._sticky))]
            self._sticky[call] = broker
        return broker


def catch_all(tenant: str) -> str:
    """The catch-all topic of a tenant, created on first use."""
    return qualified(tenant, CATCH_ALL_TOPIC)


def _in_turn(writable: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int]]:
    """Stores alternate: a, b, a, b rather than a, a, b, b."""
    longest = max(len(ids) for ids in writable.values())
    for index in range(longest):
        for broker, ids in writable.items():
            if index < len(ids):
                yield broker, ids[index]
