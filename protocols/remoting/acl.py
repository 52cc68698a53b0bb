"""
Users and rights as RocketMQ 5 has them (its "ACL 2.0"): bodies, and what they allow. Pure.

A user has one ACL: entries of a *custom* and a *default* policy, the latter asked where the first
has no word. Of the entries that match, the one with the most precise resource decides: a name,
then the longest prefix, then a kind of resource, then ``*``; of equals the refusal. None: no.

Source: ``AclAuthorizationHandler``, ``Acl``, ``Policy``, ``Resource`` (RocketMQ 5.4).
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from protocols.errors import Code, Refused
from protocols.remoting.handles import RETRY_PREFIX

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLED: Final = "enable"
DISABLED: Final = "disable"
ALLOW: Final = "Allow"
DENY: Final = "Deny"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
ANYTHING: Final = "*"
USER_PREFIX: Final = "User:"

KINDS: Final = ("Cluster", "Namespace", "Topic", "Group")
ACTIONS: Final = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
ALL: Final = "All"

ENTRIES_MAX: Final = 10_000
"""Of one user."""


class UserInfo(msgspec.Struct, rename="camel", kw_only=True):
    """One user; the password is the secret that its requests are signed with."""

    username: str = ""
    password: str = ""
    user_type: str = ""
    user_status: str = ""


class EntryInfo(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Who comes from one of these addresses may, or may not, do this to that."""

    resource: str = ""
    """``Topic:name``, ``Topic:prefix*``, ``Topic:*`` (the other kinds alike), or ``*``."""

    actions: tuple[str, ...] = ()
    source_ips: tuple[str, ...] = ()
    """Addresses or networks; none: from anywhere."""

    decision: str = ""


class PolicyInfo(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    policy_type: str = CUSTOM
    entries: tuple[EntryInfo, ...] = ()


class AclInfo(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """All rights of one user; *subject* is ``User:name``."""

    subject: str = ""
    policies: tuple[PolicyInfo, ...] = ()


class Need(NamedTuple):
    """What a request needs: one of *actions* on a resource."""

    kind: str
    name: str
    actions: tuple[str, ...]

    @property
    def resource(self) -> str:
        return f"{self.kind}:{self.name}"


def topic_need(topic: str, *actions: str) -> Need:
    """A group's retry topic is the group."""
    if topic.startswith(RETRY_PREFIX):
        return Need("Group", topic.removeprefix(RETRY_PREFIX), actions)
    return Need("Topic", topic, actions)


def group_need(group: str, *actions: str) -> Need:
    return Need("Group", group.removeprefix(RETRY_PREFIX), actions)


# ── what is written down ────────────────────────────────────────────────────────────────


def user_name_of(subject: str) -> str:
    """Of ``User:name``. Raises Refused."""
    name = subject.removeprefix(USER_PREFIX)
    if not subject.startswith(USER_PREFIX) or not name:
        raise Refused(Code.BAD_REQUEST, subject[:80], "a subject is User:<name>")
    return name


def checked(acl: AclInfo) -> AclInfo:
    """The same in canonical words. Raises Refused."""
    policies = tuple(
        PolicyInfo(
            policy_type=_word(policy.policy_type or CUSTOM, (CUSTOM, DEFAULT), "policy type"),
            entries=tuple([_checked_entry(entry) for entry in policy.entries]),
        )
        for policy in acl.policies
    )
    if not any([policy.entries for policy in policies]):
        raise Refused(Code.BAD_REQUEST, acl.subject[:80], "The policies is empty.")
    return AclInfo(subject=acl.subject, policies=policies)


def _checked_entry(entry: EntryInfo) -> EntryInfo:
    if not entry.actions:
        raise Refused(Code.BAD_REQUEST, entry.resource[:80], "The actions is empty.")
    for address in entry.source_ips:
        try:
            ipaddress.ip_network(address, strict=False)
        except ValueError as error:
            raise Refused(Code.BAD_REQUEST, address[:80], "The source ip is invalid.") from error
    return EntryInfo(
        resource=canonical_resource(entry.resource),
        actions=tuple([_word(action, ACTIONS, "action") for action in entry.actions]),
        source_ips=entry.source_ips,
        decision=_word(entry.decision, (ALLOW, DENY), "decision"),
    )


def canonical_resource(text: str) -> str:
    """Raises Refused."""
    if text == ANYTHING:
        return text
    kind, _, name = text.partition(":")
    if not name:
        raise Refused(Code.BAD_REQUEST, text[:80], "a resource is <kind>:<name>, or *")
    return f"{_word(kind, KINDS, 'resource')}:{name}"


def _word(given: str, words: Iterable[str], what: str) -> str:
    """*given* as one of *words*, whatever its case. Raises Refused."""
    for word in words:
        if word.lower() == given.lower():
            return word
    raise Refused(Code.BAD_REQUEST, given[:80], f"no {what}; one of {', '.join(words)}")


def merged(old: AclInfo, new: AclInfo) -> AclInfo:
    """*old* with the entries of *new*: those of a resource replace what it had. Raises Refused."""
    policies = {policy.policy_type: list(policy.entries) for policy in old.policies}
    for policy in new.policies:
        entries = policies.setdefault(policy.policy_type, [])
        for entry in policy.entries:
            places = [at for at, known in enumerate(entries) if known.resource == entry.resource]
            if places:
                entries[places[0]] = entry
            else:
                entries.append(entry)
    if sum(map(len, policies.values())) > ENTRIES_MAX:
        raise Refused(Code.BAD_REQUEST, old.subject, f"more than {ENTRIES_MAX} entries")
    return _of(old.subject, policies)


def without(acl: AclInfo, policy_type: str, resource: str) -> AclInfo:
    """*acl* without one policy's entry for *resource*."""
    kept = {
        policy.policy_type: [
            entry
            for entry in policy.entries
            if policy.policy_type != policy_type or entry.resource != resource
        ]
        for policy in acl.policies
    }
    return _of(acl.subject, kept)


def about(acl: AclInfo, text: str) -> AclInfo:
    """The entries of *acl* whose resource has *text* in it."""
    kept = {
        policy.policy_type: [entry for entry in policy.entries if text in entry.resource]
        for policy in acl.policies
    }
    return _of(acl.subject, kept)


def _of(subject: str, policies: dict[str, list[EntryInfo]]) -> AclInfo:
    return AclInfo(
        subject=subject,
        policies=tuple(
            [
                PolicyInfo(policy_type=kind, entries=tuple(entries))
                for kind, entries in policies.items()
                if entries
            ]
        ),
    )


# ── who may ─────────────────────────────────────────────────────────────────────────────


def may(acl: AclInfo, need: Need, source_ip: str) -> bool:
    """Whether the rights of *acl* cover one need."""
    for kind in (CUSTOM, DEFAULT):
        matching = [
            entry
            for policy in acl.policies
            if policy.policy_type == kind
            for entry in policy.entries
            if _matches(entry, need, source_ip)
        ]
        if matching:
            return max(matching, key=_weight).decision == ALLOW
    return False


def _matches(entry: EntryInfo, need: Need, source_ip: str) -> bool:
    return (
        _covers(entry.resource, need.resource)
        and (ALL in entry.actions or not set(need.actions).isdisjoint(entry.actions))
        and (not entry.source_ips or _is_from(source_ip, entry.source_ips))
    )


def _covers(pattern: str, resource: str) -> bool:
    if pattern.endswith("*"):
        return resource.startswith(pattern[:-1])
    return pattern == resource


def _weight(entry: EntryInfo) -> tuple[bool, int, bool]:
    """The largest decides: a name, the longer prefix, of equals the refusal."""
    resource = entry.resource
    return not resource.endswith("*"), len(resource), entry.decision == DENY


def _is_from(source_ip: str, networks: Sequence[str]) -> bool:
    try:
        address = ipaddress.ip_address(source_ip)
    except ValueError:
        return False
    return any([address in ipaddress.ip_network(network, strict=False) for network in networks])
