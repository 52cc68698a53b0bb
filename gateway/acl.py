"""
Who may do what: one ordered list for all protocols, the first match decides, the end is deny.

Rules that an identity brings along (a token's) come before the list, a Mosquitto ACL file behind
it. Without a list and a file every identity that got in may do everything.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.mosquitto import AclFile
from gateway.ruleconfig import AclConfig
from gateway.rules import Facts, When, facts_of, is_topic
from gateway.windows import next_change_ms
from protocols import clock
from protocols.canonical import Call

CACHE_MAX: Final = 50_000
"""Judgements kept; the cache is dropped whole when it is full."""

END, OPEN, FILE, RIGHTS = -1, -2, -3, -4

# Which words of a rule hold for an operation.
SAID_BY: Final[dict[str, frozenset[str]]] = {
    "publish": frozenset(("publish", "all")),
    "consume": frozenset(("consume", "all")),
    "subscribe": frozenset(("subscribe", "consume", "all")),
    "receive": frozenset(("receive", "consume", "all")),
    "admin": frozenset(("admin", "all")),
}


SOURCES: Final = {
    END: "the end of the list",
    OPEN: "there is no acl",
    RIGHTS: "the token's own rules",
}


class Judgement(NamedTuple):
    """What is said, and who says it."""

    is_allowed: bool
    rule: int
    """Index of the rule; END, OPEN, FILE or RIGHTS."""

    line: int = 0
    """Of the ACL file."""

    def source(self) -> str:
        """For people."""
        if self.rule == FILE:
            return f"line {self.line} of the ACL file" if self.line else "the end of the ACL file"
        return SOURCES.get(self.rule, f"acl[{self.rule}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    operations: frozenset[str]
    is_allow: bool
    when: When


class Acl:
    """One immutable rule list; ``Permission`` of the services."""

    def __init__(
        self,
        rules: Sequence[AclConfig] | None,
        *,
        version: int = 0,
        file: AclFile | None = None,
    ) -> None:
        self.version = version
        self._is_open = rules is None and file is None
        self._file = file
        self._rules = tuple(
            _Rule(
                operations=frozenset(rule.allow or rule.deny),
                is_allow=bool(rule.allow),
                when=rule.conditions(),
            )
            for rule in rules or ()
        )
        self.checks_receive = file is not None or any(
            "receive" in rule.operations for rule in self._rules
        )
        """Deliveries are judged one by one."""

        self._windows = tuple(window for rule in self._rules for window in rule.when.time)
        self._cached_until_ms = 0
        self._cache: dict[tuple[Call, str, str, str, str, int, bool], bool] = {}

    def is_allowed(
        self,
        call: Call,
        operation: str,
        *,
        subject: str = "",
        topic: str = "",
        group: str = "",
        qos: int = -1,
        retain: bool = False,
    ) -> bool:
        """*operation*: one of ``SAID_BY``."""
        if self._is_open and call.identity.rights is None:
            return True
        if self._windows and (now_ms := clock.wall_ms()) >= self._cached_until_ms:
            self._cache.clear()
            self._cached_until_ms = next_change_ms(self._windows, now_ms)
        key = (call, operation, subject, topic, group, qos, retain)
        found = self._cache.get(key)
        if found is None:
            facts = facts_of(
                call,
                operation,
                subject=subject,
                topic=topic,
                group=group,
                qos=qos,
                retain=retain,
                wall_ms=clock.wall_ms() if self._windows else 0,
            )
            found = self.judge(facts).is_allowed
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            self._cache[key] = found
        return found

    def sees_all(self, call: Call, subject_filter: str) -> bool:
        """Whether nothing that an allowed filter matches is denied: deliveries need no look."""
        if self._is_open and call.identity.rights is None:
            return True
        wall_ms = clock.wall_ms() if self._windows else 0
        facts = facts_of(call, "subscribe", subject=subject_filter, wall_ms=wall_ms)
        return self.judge(facts._replace(is_whole=True)).is_allowed

    def judge(self, facts: Facts) -> Judgement:
        """The first rule that matches, uncached."""
        for right in facts.identity.rights or ():
            if SAID_BY[facts.operation].isdisjoint(right.operations):
                continue
            told = _told(facts, right.operations)
            if is_topic(right.topic, told, is_deny=not right.is_allow):
                return Judgement(right.is_allow, RIGHTS)
        if self._is_open:
            if facts.identity.rights is None:
                return Judgement(True, OPEN)
            return Judgement(False, RIGHTS)
        for index, rule in enumerate(self._rules):
            if self.mismatch(index, facts) == "":
                return Judgement(rule.is_allow, index)
        if self._file is not None:
            is_allowed, line = self._file.judge(facts)
            return Judgement(is_allowed, FILE, line)
        return Judgement(False, END)

    def mismatch(self, index: int, facts: Facts) -> str:
        """The first field of rule *index* that does not match; empty if it does."""
        rule = self._rules[index]
        if SAID_BY[facts.operation].isdisjoint(rule.operations):
            return "allow" if rule.is_allow else "deny"
        # What a request does not name cannot deny it, and need not be allowed.
        return rule.when.mismatch(_told(facts, rule.operations), ignores_absent=rule.is_allow)

    def __len__(self) -> int:
        return len(self._rules)


def _told(facts: Facts, operations: Collection[str]) -> Facts:
    """A rule about ``subscribe`` alone is not heard at delivery: any overlap counts."""
    if facts.operation == "subscribe" and SAID_BY["receive"].isdisjoint(operations):
        return facts._replace(is_whole=True)
    return facts
