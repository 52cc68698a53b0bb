"""
Why a message goes where it goes: every step of the decision, in words and as data.
"""

from typing import NamedTuple

from gateway.acl import END, OPEN
from gateway.checks import NO_ACL_RULE
from gateway.config import Loaded
from gateway.policy import Policy
from gateway.rules import Facts
from protocols import clock
from protocols.daemon.documents import KeyPath


class Step(NamedTuple):
    """One step: what was looked at, what came of it, and where it is written."""

    step: str
    outcome: str
    position: str = ""
    skipped: tuple[str, ...] = ()
    """Rules above the one that decided, with the first field of each that did not match."""


class Explanation(NamedTuple):
    is_allowed: bool
    route: str
    """Empty: none, or not reached."""

    steps: list[Step]

    def lines(self) -> list[str]:
        """For people."""
        lines: list[str] = []
        for step in self.steps:
            lines += [f"{'':10}- {text}" for text in step.skipped]
            where = f"   [{step.position}]" if step.position else ""
            lines.append(f"{step.step:<10}{step.outcome}{where}")
        return lines


def explain(loaded: Loaded, policy: Policy, facts: Facts) -> Explanation:
    """Follow one request through *policy*, which was made of *loaded*."""
    steps = [_who(facts)]
    is_allowed, step = _acl(loaded, policy, facts)
    steps.append(step)
    if not is_allowed:
        return Explanation(False, "", steps)
    if facts.operation == "publish":
        steps += _throttles(loaded, policy, facts)
    route, route_steps = _route(loaded, policy, facts)
    return Explanation(True, route, steps + route_steps)


def _who(facts: Facts) -> Step:
    roles = f" with roles {', '.join(facts.identity.roles)}" if facts.identity.roles else ""
    tenant = f"tenant '{facts.tenant}'" if facts.tenant else "no tenant"
    return Step("identity", f"{facts.identity.name}{roles}, {tenant}, by {facts.protocol}")


def _acl(loaded: Loaded, policy: Policy, facts: Facts) -> tuple[bool, Step]:
    judgement = policy.acl.judge(facts)
    if judgement.rule == OPEN:
        return True, Step("acl", "allowed: there is no acl")
    last = judgement.rule if judgement.rule >= 0 else len(policy.acl)
    skipped = tuple(
        f"acl[{index}] does not match: {policy.acl.mismatch(index, facts)}" for index in range(last)
    )
    if judgement.rule == END:
        return False, Step("acl", f"denied: {NO_ACL_RULE}", skipped=skipped)
    word = "allowed" if judgement.is_allowed else "denied"
    if judgement.rule < 0:
        return judgement.is_allowed, Step("acl", f"{word} by {judgement.source()}", skipped=skipped)
    path: KeyPath = ("acl", judgement.rule)
    position = str(loaded.document.position(path))
    return judgement.is_allowed, Step("acl", f"{word} by acl[{judgement.rule}]", position, skipped)


def _throttles(loaded: Loaded, policy: Policy, facts: Facts) -> list[Step]:
    steps: list[Step] = []
    now = clock.monotonic()
    names = [entry.name for entry in loaded.config.throttle]
    for entry, bucket in policy.throttle.all_matching(facts, now):
        left = ", ".join(f"{name} {value:g} left" for name, value in bucket.left(now).items())
        position = str(loaded.document.position(("throttle", names.index(entry.name))))
        steps.append(Step("throttle", f"{entry.name} per {entry.per}: {left}", position))
    return steps or [Step("throttle", "none applies")]


def _route(loaded: Loaded, policy: Policy, facts: Facts) -> tuple[str, list[Step]]:
    skipped: list[str] = []
    for index, (route, field) in enumerate(policy.routes.mismatches(facts)):
        if field:
            skipped.append(f"route {route.name} does not match: {field}")
            continue
        position = str(loaded.document.position(("routes", index)))
        step = Step("route", route.name, position, tuple(skipped))
        return route.name, [step, *_targets(policy, facts)]
    return "", [Step("route", "none matches: refused", skipped=tuple(skipped))]


def _targets(policy: Policy, facts: Facts) -> list[Step]:
    if facts.operation == "consume":
        return [
            Step("read", f"cluster {target.cluster}, topic {target.topic or '(as named)'}")
            for target in policy.routes.consume_targets(facts)
        ]
    decision = policy.routes.decide(facts)
    assert decision is not None
    chosen = decision.choose(decision.targets[0].key or facts.identity.name)
    steps = [
        Step("target", f"{_show(target)}{'  ← chosen' if target == chosen else ''}")
        for target in decision.targets
    ]
    steps += [
        Step("mirror", f"{mirror.percent:g} % to cluster {mirror.cluster}")
        for mirror in decision.mirrors
    ]
    if decision.failover:
        steps.append(Step("failover", "then cluster " + ", ".join(decision.failover)))
    return steps


def _show(target: object) -> str:
    from gateway.routing import Target

    assert isinstance(target, Target)
    parts = [f"cluster {target.cluster}", f"topic {target.topic or '(as mapped)'}"]
    parts += [
        f"{name} {value}" for name, value in (("key", target.key), ("tag", target.tag)) if value
    ]
    return f"{', '.join(parts)}, weight {target.weight}"
