"""
Who may do what: one ordered list for all protocols, the first match decides, the end is deny.

Without an ``acl:`` block every identity that got in may do everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.ruleconfig import AclConfig
from gateway.rules import Facts, When, facts_of
from protocols.canonical import Call

OPERATIONS: Final = ("publish", "consume", "admin")
CACHE_MAX: Final = 50_000
"""Judgements kept; the cache is dropped whole when it is full."""


class Judgement(NamedTuple):
    """What the list says, and which rule said it."""

    is_allowed: bool
    rule: int
    """Index of the rule; -1: the end of the list, -2: there is no list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    operations: tuple[str, ...]
    is_allow: bool
    when: When


class Acl:
    """One immutable rule list; ``Permission`` of the services."""

    def __init__(self, rules: Sequence[AclConfig] | None, *, version: int = 0) -> None:
        self.version = version
        self._is_open = rules is None
        self._rules = tuple(
            _Rule(
                operations=rule.allow or rule.deny,
                is_allow=bool(rule.allow),
                when=rule.conditions(),
            )
            for rule in rules or ()
        )
        self._cache: dict[tuple[Call, str, str, str, str], bool] = {}

    def is_allowed(
        self, call: Call, operation: str, *, subject: str = "", topic: str = "", group: str = ""
    ) -> bool:
        """*operation*: ``publish``, ``consume`` or ``admin``."""
        if self._is_open:
            return True
        key = (call, operation, subject, topic, group)
        found = self._cache.get(key)
        if found is None:
            facts = facts_of(call, operation, subject=subject, topic=topic, group=group)
            found = self.judge(facts).is_allowed
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            self._cache[key] = found
        return found

    def judge(self, facts: Facts) -> Judgement:
        """The first rule that matches, uncached."""
        if self._is_open:
            return Judgement(True, -2)
        for index, rule in enumerate(self._rules):
            if self.mismatch(index, facts) == "":
                return Judgement(rule.is_allow, index)
        return Judgement(False, -1)

    def mismatch(self, index: int, facts: Facts) -> str:
        """The first field of rule *index* that does not match; empty if it does."""
        rule = self._rules[index]
        if facts.operation not in rule.operations and "all" not in rule.operations:
            return "allow" if rule.is_allow else "deny"
        # What a request does not name cannot deny it, and need not be allowed.
        return rule.when.mismatch(facts, ignores_absent=rule.is_allow)

    def __len__(self) -> int:
        return len(self._rules)
