"""
Which RocketMQ clients are connected, in which groups, subscribed to what.

Kept from heartbeats (34), ended by 35, by a lost connection, or by silence. Order locks of
orderly consumers (41, 42) live here as well: a lock is a lease of a client on a queue.

Source: Apache RocketMQ 5, ``ConsumerManager``, ``ProducerManager``, ``RebalanceLockManager``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

SILENCE_S_MAX = 120.0
"""A client that sends no heartbeat for so long is gone (``CHANNEL_EXPIRED_TIMEOUT``)."""

LOCK_S = 60.0
"""Lease of an order lock (``REBALANCE_LOCK_MAX_LIVE_TIME``); clients renew each 20 s."""


class Link(Protocol):
    """The connection of a client."""

    @property
    def address(self) -> str: ...


class Subscription(NamedTuple):
    """One topic of a consumer group."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0
    tags: tuple[str, ...] = ()


class Membership(NamedTuple):
    """A client's part in one consumer group, as its heartbeat tells it."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[Subscription, ...] = ()


@dataclass(slots=True, kw_only=True)
class Client:
    """One client id on one connection."""

    client_id: str
    link: Link
    language: str
    version: int
    heard: float
    producer_groups: frozenset[str] = frozenset()
    memberships: dict[str, Membership] = field(default_factory=dict)


class ClientTable:
    """All clients, by connection and by group."""

    def __init__(self) -> None:
        self._clients: dict[tuple[Link, str], Client] = {}
        self._latest: dict[str, Client] = {}
        """By client id: where it was heard last."""

        self._consumers: dict[str, dict[str, Client]] = {}
        self._producers: dict[str, dict[str, Client]] = {}

    def heartbeat(
        self,
        link: Link,
        client_id: str,
        *,
        language: str,
        version: int,
        producer_groups: Iterable[str],
        memberships: Sequence[Membership],
        now: float,
    ) -> set[str]:
        """Take in a heartbeat; the consumer groups whose members or subscriptions changed."""
        client = self._clients.get((link, client_id))
        if client is None:
            client = Client(
                client_id=client_id, link=link, language=language, version=version, heard=now
            )
            self._clients[link, client_id] = client
        client.heard = now
        self._latest[client_id] = client
        changed: set[str] = set()
        for name in producer_groups:
            self._producers.setdefault(name, {})[client_id] = client
            client.producer_groups |= {name}
        for membership in memberships:
            members = self._consumers.setdefault(membership.group, {})
            known = client.memberships.get(membership.group)
            if members.get(client_id) is not client or not _same(known, membership):
                changed.add(membership.group)
            members[client_id] = client
            client.memberships[membership.group] = membership
        return changed

    def unregister(
        self, link: Link, client_id: str, *, producer_group: str = "", consumer_group: str = ""
    ) -> set[str]:
        """A client leaves its groups (35); the consumer groups that changed."""
        client = self._clients.get((link, client_id))
        if client is None:
            return set()
        if producer_group:
            client.producer_groups -= {producer_group}
            self._leave(self._producers, producer_group, client)
        changed = set()
        if consumer_group and client.memberships.pop(consumer_group, None) is not None:
            self._leave(self._consumers, consumer_group, client)
            changed.add(consumer_group)
        if not client.producer_groups and not client.memberships:
            self._forget(client)
        return changed

    def lost(self, link: Link) -> set[str]:
        """A connection is gone; the consumer groups that changed."""
        return self._drop([client for (at, _), client in self._clients.items() if at is link])

    def take_silent(self, now: float) -> set[str]:
        """Drop clients without heartbeat; the consumer groups that changed."""
        return self._drop([c for c in self._clients.values() if c.heard + SILENCE_S_MAX <= now])

    def consumers(self, group: str) -> list[Client]:
        """Members of a consumer group, sorted by client id: all members must see one order."""
        members = self._consumers.get(group, {})
        return [members[client_id] for client_id in sorted(members)]

    def producers(self, group: str) -> list[Client]:
        return list(self._producers.get(group, {}).values())

    def link_of(self, client_id: str) -> Link | None:
        """The connection that a client was heard on last."""
        client = self._latest.get(client_id)
        return client.link if client is not None else None

    def producer_groups(self) -> list[str]:
        return list(self._producers)

    def consumer_groups(self) -> list[str]:
        return list(self._consumers)

    def is_broadcasting(self, group: str) -> bool:
        """Whether members of *group* each read everything."""
        members = self._consumers.get(group, {}).values()
        return any(member.memberships[group].message_model == "BROADCASTING" for member in members)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """The newest subscription that any member of *group* has for *topic*."""
        found: Subscription | None = None
        for client in self._consumers.get(group, {}).values():
            membership = client.memberships.get(group)
            for item in membership.subscriptions if membership else ():
                if item.topic == topic and (found is None or item.version > found.version):
                    found = item
        return found

    def _drop(self, clients: Sequence[Client]) -> set[str]:
        changed: set[str] = set()
        for client in clients:
            self._forget(client)
            for name in client.producer_groups:
                self._leave(self._producers, name, client)
            for name in client.memberships:
                self._leave(self._consumers, name, client)
                changed.add(name)
        return changed

    def _forget(self, client: Client) -> None:
        del self._clients[client.link, client.client_id]
        if self._latest.get(client.client_id) is client:
            del self._latest[client.client_id]

    @staticmethod
    def _leave(table: dict[str, dict[str, Client]], group: str, client: Client) -> None:
        members = table.get(group, {})
        if members.get(client.client_id) is client:
            del members[client.client_id]
            if not members:
                del table[group]


def _same(known: Membership | None, told: Membership) -> bool:
    """Whether a heartbeat repeats what is known; versions of subscriptions may differ."""
    if known is None:
        return False
    return {(s.topic, s.expression) for s in known.subscriptions} == {
        (s.topic, s.expression) for s in told.subscriptions
    }


class QueueLocks:
    """Order locks: one client at a time consumes a message queue in order."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str, int], tuple[str, float]] = {}

    def lock(self, group: str, topic: str, queue_id: int, client_id: str, now: float) -> bool:
        """Take or renew the lock of (group, queue); False: another client has it."""
        key = (group, topic, queue_id)
        owner, until = self._locks.get(key, ("", 0.0))
        if owner not in ("", client_id) and now < until:
            return False
        self._locks[key] = (client_id, now + LOCK_S)
        return True

    def has(self, group: str, now: float) -> bool:
        """Whether a member of the group consumes in order just now."""
        return any(
            name == group and now < until for (name, _, _), (_, until) in self._locks.items()
        )

    def unlock(self, group: str, topic: str, queue_id: int, client_id: str) -> None:
        """Give it back; the lock of another client stays."""
        key = (group, topic, queue_id)
        if self._locks.get(key, ("", 0.0))[0] == client_id:
            del self._locks[key]
