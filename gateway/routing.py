"""
The rule table: which broker cluster gets a message, under which topic, key and tag.

Pure: it knows names, not connections. The first route that matches decides; several targets
share by weighted rendezvous hash of the key, so that one key keeps its target while the weights
of others change.
"""

import math
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from gateway.ruleconfig import RouteConfig, TargetConfig
from gateway.rules import Facts, When, glob, overlaps
from protocols import subjects
from protocols.canonical import Properties

_PLACEHOLDER = re.compile(r"\{([^}]*)\}")
_NOT_IN_TOPIC = re.compile(r"[^%a-zA-Z0-9_-]")
TOPIC_CHARS_MAX: Final = 127
"""RocketMQ, TopicValidator.TOPIC_MAX_LENGTH."""


class Target(NamedTuple):
    """One place a message can go to."""

    cluster: str
    topic: str = ""
    """Empty: as mapped by default."""

    key: str = ""
    """Empty: the message's own."""

    tag: str = ""
    """Empty: the message's own."""

    weight: int = 1
    properties: Properties = ()


class Mirror(NamedTuple):
    """Where copies of a share of the messages go."""

    cluster: str
    percent: float
    topic: str = ""
    route: str = ""
    """That mirrors; every copy says so."""


class Decision(NamedTuple):
    """What the table says about one address."""

    route: str
    targets: tuple[Target, ...]
    mirrors: tuple[Mirror, ...] = ()
    failover: tuple[str, ...] = ()
    prefers_zone: bool = False
    is_order_best_effort: bool = False
    fail_back_ms: int = 60_000
    valid_until_ms: int = 0
    """Wall time after which to ask again; 0: as long as the table."""

    def choose(self, key: str) -> Target:
        """The target for *key* (the message's key, or the identity when it has none)."""
        return choose(self.targets, key)


class ConsumeTarget(NamedTuple):
    """One place a subscription reads from."""

    cluster: str
    topic: str = ""
    """Empty: the name the consumer gave."""


def choose(targets: Sequence[Target], key: str) -> Target:
    """Weighted rendezvous: the highest -weight / ln(hash in (0, 1)); weight 0 never wins."""
    if len(targets) == 1:
        return targets[0]
    best, best_score = targets[0], -1.0
    for target in targets:
        if target.weight <= 0:
            continue
        digest = blake2b(f"{target.cluster}\x00{target.topic}\x00{key}".encode(), digest_size=8)
        share = (int.from_bytes(digest.digest(), "big") + 1) / (2**64 + 2)
        score = -target.weight / math.log(share)
        if score > best_score:
            best, best_score = target, score
    return best


class RouteTable:
    """The immutable table; a reload makes another one."""

    def __init__(self, routes: Sequence[RouteConfig], *, version: int = 0) -> None:
        self.version = version
        self._routes: tuple[tuple[RouteConfig, When], ...] = tuple(
            (route, route.when.conditions()) for route in routes
        )

    def decide(self, facts: Facts) -> Decision | None:
        """The first route that matches; None: no route."""
        for route, when in self._routes:
            if when.mismatch(facts) == "":
                return _decision(route, facts)
        return None

    def mismatches(self, facts: Facts) -> Iterator[tuple[RouteConfig, str]]:
        """Every route up to the one that matches, with the first field that does not."""
        for route, when in self._routes:
            field = when.mismatch(facts)
            yield route, field
            if not field:
                return

    def consume_targets(self, facts: Facts) -> tuple[ConsumeTarget, ...]:
        """
        Every place where messages of this topic or filter may have been put.

        Publishers are others than the consumer, so only topic and tenant of a route are looked
        at; mirrors are left out, they hold copies.
        """
        found: dict[ConsumeTarget, None] = {}
        for route, when in self._routes:
            if when.tenant and not any(glob(item, facts.tenant) for item in when.tenant):
                continue
            if not _may_hold(route, when, facts):
                continue
            for target in route.to:
                found[ConsumeTarget(target.cluster, _consumed_topic(target, facts))] = None
            for cluster in route.failover:
                topic = _consumed_topic(route.to[0], facts)
                found[ConsumeTarget(cluster, topic)] = None
            if _catches_all(when):
                break
        return tuple(found)

    def clusters(self) -> set[str]:
        """Every cluster that some route names."""
        names: set[str] = set()
        for route, _ in self._routes:
            names.update(target.cluster for target in route.to)
            names.update(mirror.cluster for mirror in route.mirror)
            names.update(route.failover)
        return names


def _decision(route: RouteConfig, facts: Facts) -> Decision:
    first = _topic_name(fill_template(route.to[0].topic, facts))
    return Decision(
        route=route.name,
        targets=tuple(_target(target, facts) for target in route.to),
        mirrors=tuple(
            Mirror(
                item.cluster,
                item.percent,
                _topic_name(fill_template(item.topic, facts)) or first,
                route.name,
            )
            for item in route.mirror
        ),
        failover=route.failover,
        prefers_zone=route.prefer == "same_zone",
        is_order_best_effort=route.order == "best_effort",
        fail_back_ms=route.fail_back,
    )


def _target(target: TargetConfig, facts: Facts) -> Target:
    return Target(
        cluster=target.cluster,
        topic=_topic_name(fill_template(target.topic, facts)),
        key=fill_template(target.key, facts),
        tag=fill_template(target.tag, facts),
        weight=target.weight,
        properties=tuple(
            (name, fill_template(value, facts)) for name, value in target.properties.items()
        ),
    )


def fill_template(template: str, facts: Facts) -> str:
    """*template* with ``{2}`` (second level of the address), ``{identity}`` … filled in."""
    if "{" not in template:
        return template
    levels = (facts.subject or facts.topic).split("/")

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name.isdigit():
            index = int(name) - 1
            return levels[index] if index < len(levels) else ""
        if name == "identity":
            return facts.identity.name
        return str(getattr(facts, name, ""))

    return _PLACEHOLDER.sub(value, template)


def _topic_name(text: str) -> str:
    """*text* as a RocketMQ topic name: other characters become ``_``."""
    return _NOT_IN_TOPIC.sub("_", text)[:TOPIC_CHARS_MAX]


def _may_hold(route: RouteConfig, when: When, facts: Facts) -> bool:
    if facts.topic and any(target.topic == facts.topic for target in route.to):
        return True
    if not when.topic:
        return True
    return any(_meets(pattern, facts) for pattern in when.topic)


def _meets(pattern: str, facts: Facts) -> bool:
    """Whether an address under *pattern* can be one the consumer asks for."""
    if "{" in pattern:  # names the publisher: any level
        pattern = _PLACEHOLDER.sub("+", pattern)
    if facts.topic and glob(pattern, facts.topic):
        return True
    if "*" in pattern:
        return glob(pattern, facts.subject)
    name = facts.subject or facts.topic
    if not subjects.is_valid_filter(name):
        return False
    # A topic name stands for all addresses under it: `plants` holds `plants/9/alarm`.
    return overlaps(pattern, name) or (not facts.subject and overlaps(pattern, f"{name}/#"))


def _consumed_topic(target: TargetConfig, facts: Facts) -> str:
    if "{" in target.topic or target.topic == facts.topic:
        return ""
    return target.topic


def _catches_all(when: When) -> bool:
    return not (
        when.topic
        or when.protocol
        or when.listener
        or when.identity
        or when.client_ip
        or when.group
        or when.operation
        or when.header
        or when.expression
        or when.time
    )
