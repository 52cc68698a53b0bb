"""
The rules in force: routes, ACL and throttles of one configuration, swapped as one reference.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Self

from gateway.acl import Acl
from gateway.addressing import Addressing
from gateway.config import GatewayConfig
from gateway.mosquitto import read_acl_file
from gateway.routing import RouteTable
from gateway.ruleconfig import WhenConfig
from gateway.throttle import Throttle
from gateway.windows import TimeWindow, next_change_ms

_versions = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the pipeline asks; caches made under one ``version`` are void under another."""

    version: int
    acl: Acl
    throttle: Throttle
    routes: RouteTable
    addressing: Addressing
    windows: tuple[TimeWindow, ...] = ()
    """Time windows of all rules."""

    zone: str = ""
    """Ours, for ``prefer: same_zone``."""

    is_subject_blind: bool = False
    """No route and no throttle looks at more of an address than its topic."""

    has_residuals: bool = False
    """Some rule looks at properties: a decision holds for one message only."""

    @classmethod
    def from_config(cls, config: GatewayConfig, previous: "Policy | None" = None) -> Self:
        """
        Build all of it; throttle entries that did not change keep their buckets.

        Raises ConfigError: the ACL file.
        """
        version = next(_versions)
        return cls(
            version=version,
            acl=Acl(
                config.acl,
                version=version,
                file=read_acl_file(config.acl_file) if config.acl_file is not None else None,
            ),
            throttle=Throttle(
                config.throttle,
                version=version,
                previous=previous.throttle if previous else None,
            ),
            routes=RouteTable(config.routes, version=version),
            addressing=Addressing(config.mqtt.mapping == "flat", config.mqtt.auto_topics),
            windows=_windows(config),
            zone=config.zone,
            is_subject_blind=_is_subject_blind(config),
            has_residuals=any(when.header or when.expression for when in _judging(config)),
        )

    def valid_until_ms(self, now_ms: int) -> int:
        """Until when what is decided now holds, as far as rules have time windows; 0: for ever."""
        return next_change_ms(self.windows, now_ms) if self.windows else 0


def _is_subject_blind(config: GatewayConfig) -> bool:
    """The ACL is asked for each subject anyway."""
    if config.mqtt.mapping == "flat" or config.mqtt.auto_topics:
        return False
    templates = [
        text
        for route in config.routes
        for target in route.to
        for text in (target.topic, target.key, target.tag, *target.properties.values())
    ]
    templates += [mirror.topic for route in config.routes for mirror in route.mirror]
    looks = any(when.topic or when.header or when.expression for when in _judging(config))
    is_per_topic = any(entry.per == "topic" for entry in config.throttle)
    return not looks and not is_per_topic and not any("{" in text for text in templates)


def _judging(config: GatewayConfig) -> Iterator[WhenConfig]:
    """Conditions that see a message's properties."""
    yield from (route.when for route in config.routes)
    yield from (entry.when for entry in config.throttle)


def _windows(config: GatewayConfig) -> tuple[TimeWindow, ...]:
    conditions = [*_judging(config), *(config.acl or ())]
    texts = dict.fromkeys(text for when in conditions for text in when.time)
    return tuple(TimeWindow.parse(text) for text in texts)
