"""
What routes, ACL rules and throttles have in common: facts about a request, and matching them.

Fields of a rule are and-ed, the values of one field are or-ed. All of it is pure; decisions are
cached by the pipeline, so nothing here is on the path of a message seen before.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from gateway.windows import TimeWindow
from protocols import subjects
from protocols.addresses import host_of
from protocols.canonical import Call, Identity
from protocols.sql92 import Filter

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class HeaderTest(NamedTuple):
    """What a property has to be."""

    kind: str
    """``exact``, ``prefix`` or ``glob``."""

    value: str

    def fits(self, value: str) -> bool:
        if self.kind == "glob":
            return glob(self.value, value)
        return value.startswith(self.value) if self.kind == "prefix" else value == self.value


NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class Facts(NamedTuple):
    """All that a rule can look at."""

    protocol: str = ""
    listener: str = ""
    tenant: str = ""
    identity: Identity = Identity(name="anonymous", is_anonymous=True)
    client_id: str = ""
    client_ip: str = ""
    operation: str = ""
    """``publish``, ``consume``, ``admin``; of MQTT also ``subscribe`` and ``receive``."""

    subject: str = ""
    topic: str = ""
    group: str = ""
    properties: Mapping[str, str] = NO_PROPERTIES
    certificate_name: str = ""
    qos: int = -1
    """Of a publish or a filter; -1: the request has none."""

    wall_ms: int = 0
    """When; 0: outside of every time window."""

    retain: bool = False
    is_whole: bool = False
    """A filter is denied by a rule that denies any of what it matches. Otherwise ``subscribe`` is
    denied by what denies all of it; what else is denied is dropped at delivery."""


def facts_of(
    call: Call,
    operation: str,
    *,
    subject: str = "",
    topic: str = "",
    group: str = "",
    properties: Mapping[str, str] = NO_PROPERTIES,
    qos: int = -1,
    retain: bool = False,
    wall_ms: int = 0,
) -> Facts:
    """The facts of one request of *call*."""
    return Facts(
        protocol=call.protocol,
        listener=call.listener,
        tenant=call.tenant,
        identity=call.identity,
        client_id=call.client_id,
        client_ip=host_of(call.peer),
        operation=operation,
        subject=subject,
        topic=topic,
        group=group,
        properties=properties,
        certificate_name=call.certificate_name,
        qos=qos,
        retain=retain,
        wall_ms=wall_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """The conditions of one rule; an empty field does not look."""

    protocol: tuple[str, ...] = ()
    listener: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    """Globs of names, ``role:<name>``, ``anonymous``."""

    client_ip: tuple[str, ...] = ()
    """Addresses or CIDR ranges."""

    topic: tuple[str, ...] = ()
    """MQTT patterns against the address, or ``*`` globs; ``{identity}`` and its like filled in."""

    group: tuple[str, ...] = ()
    operation: tuple[str, ...] = ()
    header: Mapping[str, HeaderTest] = field(default_factory=dict)
    """Property name → test; any of them missing: no match."""

    expression: Filter | None = None
    """SQL92 over the properties; must come out true."""

    time: tuple[TimeWindow, ...] = ()

    qos: tuple[int, ...] = ()
    retain: bool | None = None

    def mismatch(self, facts: Facts, *, ignores_absent: bool = True) -> str:
        """
        The first field that does not match; empty if all do.

        A request that has no group (an MQTT publish) or no topic (a heartbeat) is not judged by
        it; with *ignores_absent* False such a field is a mismatch.
        """
        for name, test in _TESTS:
            if not test(self, facts, ignores_absent):
                return name
        return ""


Test = Callable[[When, Facts, bool], bool]


def _protocol(when: When, facts: Facts, _: bool) -> bool:
    return not when.protocol or facts.protocol in when.protocol


def _listener(when: When, facts: Facts, _: bool) -> bool:
    return not when.listener or any(glob(item, facts.listener) for item in when.listener)


def _tenant(when: When, facts: Facts, _: bool) -> bool:
    return not when.tenant or any(glob(item, facts.tenant) for item in when.tenant)


def _identity(when: When, facts: Facts, _: bool) -> bool:
    return not when.identity or any(is_identity(item, facts.identity) for item in when.identity)


def _client_ip(when: When, facts: Facts, _: bool) -> bool:
    return not when.client_ip or any(in_range(facts.client_ip, item) for item in when.client_ip)


def _topic(when: When, facts: Facts, ignores_absent: bool) -> bool:
    if not when.topic:
        return True
    if not facts.subject and not facts.topic:
        return ignores_absent
    return any(is_topic(item, facts, is_deny=not ignores_absent) for item in when.topic)


def _group(when: When, facts: Facts, ignores_absent: bool) -> bool:
    if not when.group:
        return True
    if not facts.group:
        return ignores_absent
    return any(glob(fill_in(item, facts), facts.group) for item in when.group)


def _operation(when: When, facts: Facts, _: bool) -> bool:
    return not when.operation or facts.operation in when.operation or "all" in when.operation


def _header(when: When, facts: Facts, _: bool) -> bool:
    values = facts.properties
    return all(name in values and item.fits(values[name]) for name, item in when.header.items())


def _expression(when: When, facts: Facts, _: bool) -> bool:
    return when.expression is None or when.expression.matches(facts.properties)


def _time(when: When, facts: Facts, _: bool) -> bool:
    if not when.time:
        return True
    now = facts.wall_ms
    return now > 0 and any(window.contains(now) for window in when.time)


def _qos(when: When, facts: Facts, ignores_absent: bool) -> bool:
    if not when.qos:
        return True
    return facts.qos in when.qos if facts.qos >= 0 else ignores_absent


def _retain(when: When, facts: Facts, _: bool) -> bool:
    return when.retain is None or when.retain is facts.retain


_TESTS: Final[tuple[tuple[str, Test], ...]] = (
    ("operation", _operation),
    ("protocol", _protocol),
    ("listener", _listener),
    ("tenant", _tenant),
    ("identity", _identity),
    ("client_ip", _client_ip),
    ("group", _group),
    ("topic", _topic),
    ("header", _header),
    ("expression", _expression),
    ("time", _time),
    ("qos", _qos),
    ("retain", _retain),
)


# ── single values ───────────────────────────────────────────────────────────────────────


def glob(pattern: str, value: str) -> bool:
    """``*`` is any run of characters, everything else itself; case counts."""
    if "*" not in pattern:
        return pattern == value
    return _compiled(pattern).match(value) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    literal = pattern.replace("[", "[[]").replace("?", "[?]")
    return re.compile(translate(literal))


def is_identity(pattern: str, identity: Identity) -> bool:
    """``role:x`` asks for a role, anything else is a glob of the name."""
    if pattern.startswith("role:"):
        return any(glob(pattern[5:], role) for role in identity.roles)
    return glob(pattern, identity.name)


@lru_cache(maxsize=4096)
def in_range(address: str, network: str) -> bool:
    """Whether *address* is in the CIDR range; an address that is none is in no range."""
    found = _address(address)
    try:
        return found is not None and found in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def address_of(peer: str) -> Address | None:
    """Of ``address:port``; None: a socket file, or nobody knows."""
    return _address(host_of(peer))


def _address(text: str) -> Address | None:
    """Without its zone; an IPv4 address that came through an IPv6 socket is an IPv4 address."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_topic(pattern: str, facts: Facts, *, is_deny: bool = False) -> bool:
    """
    Whether a pattern of ``topic:`` covers the request's address or its topic.

    A consumer's address may be a filter. A rule that allows has to cover all of it; one that
    denies (*is_deny*) holds as soon as the two can meet in one subject; of ``subscribe``, whose
    deliveries are judged one by one, it has to cover the filter too.
    """
    filled = fill_in(pattern, facts)
    if not filled:
        return False
    if facts.topic and glob(filled, facts.topic):
        return True
    if "*" in filled:
        return glob(filled, facts.subject)
    if facts.operation in ("consume", "subscribe") and subjects.has_wildcard(facts.subject):
        is_meeting_enough = is_deny and (facts.is_whole or facts.operation != "subscribe")
        return (overlaps if is_meeting_enough else covers)(filled, facts.subject)
    return bool(facts.subject) and subjects.matches(filled, facts.subject)


def named_placeholders(pattern: str) -> str:
    """*pattern* with the placeholders of Mosquitto and EMQX in our words."""
    for theirs, ours in _PLACEHOLDERS.items():
        pattern = pattern.replace(theirs, ours)
    if "%" in pattern:
        levels = [_LEVELS.get(level, level) for level in pattern.split("/")]
        pattern = "/".join(levels)
    return pattern


_PLACEHOLDERS: Final = {
    "${clientid}": "{client_id}",
    "${username}": "{identity}",
    "${cert_common_name}": "{certificate_name}",
}
_LEVELS: Final = {"%c": "{client_id}", "%u": "{identity}"}
"""Whole levels only: ``acme%updates`` is a topic of the tenant ``acme``."""


def fill_in(pattern: str, facts: Facts) -> str:
    """
    *pattern* with ``{identity}``, ``{client_id}``, ``{tenant}``, ``{certificate_name}`` filled in.

    Empty (matches nothing) when a value contains what a pattern would take for a wildcard or a
    level separator: a client must not widen a rule by its name.
    """
    if "{" not in pattern:
        return pattern
    values = {
        "{identity}": facts.identity.name,
        "{client_id}": facts.client_id,
        "{tenant}": facts.tenant,
        "{certificate_name}": facts.certificate_name,
    }
    for name, value in values.items():
        if name in pattern:
            if not value or any(sign in value for sign in "+#*/{"):
                return ""
            pattern = pattern.replace(name, value)
    return pattern


def covers(pattern: str, subject_filter: str) -> bool:
    """Whether *pattern* matches every subject that *subject_filter* matches."""
    if subject_filter[:1] == "$" and pattern[:1] in ("+", "#"):
        return False
    wanted, levels = pattern.split("/"), subject_filter.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or levels[index] == "#":
            return False
        if level != "+" and level != levels[index]:
            return False
    return len(wanted) == len(levels)


def overlaps(one: str, other: str) -> bool:
    """Whether some subject matches both filters."""
    left, right = one.split("/"), other.split("/")
    for first, second in zip(left, right, strict=False):
        if first == "#" or second == "#":
            return True
        if "+" not in (first, second) and first != second:
            return False
    if len(left) == len(right):
        return True
    longer, shared = (left, len(right)) if len(left) > len(right) else (right, len(left))
    return longer[shared:] == ["#"]
