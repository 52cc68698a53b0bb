"""Rights of RocketMQ 5's users: what covers what, and how entries are kept."""

import pytest

from protocols.errors import Refused
from protocols.remoting.acl import (
    AclInfo,
    EntryInfo,
    PolicyInfo,
    about,
    checked,
    group_need,
    may,
    merged,
    topic_need,
    without,
)


def entry(resource: str, decision: str = "Allow", **more: tuple[str, ...]) -> EntryInfo:
    return EntryInfo(
        resource=resource, actions=more.get("actions", ("Sub",)), decision=decision,
        source_ips=more.get("source_ips", ()),
    )  # fmt: skip


def acl(*entries: EntryInfo, policy: str = "Custom") -> AclInfo:
    return AclInfo(subject="User:u", policies=(PolicyInfo(policy_type=policy, entries=entries),))


@pytest.mark.parametrize(
    ("resource", "is_covered"),
    [
        ("Topic:orders", True),
        ("Topic:ord*", True),
        ("Topic:*", True),
        ("*", True),
        ("Topic:order", False),
        ("Group:orders", False),
        ("Group:*", False),
    ],
)
def test_what_a_resource_covers(resource: str, is_covered: bool) -> None:
    assert may(acl(entry(resource)), topic_need("orders", "Sub"), "") is is_covered


def test_one_of_the_actions_is_enough() -> None:
    rights = acl(entry("Topic:t", actions=("Pub", "Get")))
    assert may(rights, topic_need("t", "Sub", "Get"), "")
    assert not may(rights, topic_need("t", "Sub"), "")
    assert may(acl(entry("Topic:t", actions=("All",))), topic_need("t", "Delete"), "")


def test_the_most_precise_resource_decides() -> None:
    rights = acl(
        entry("*"), entry("Topic:a*", "Deny"), entry("Topic:ab*"), entry("Topic:abc", "Deny")
    )
    asked = {name: may(rights, topic_need(name, "Sub"), "") for name in ("x", "ax", "abx", "abc")}
    assert asked == {"x": True, "ax": False, "abx": True, "abc": False}


def test_the_default_policy_is_asked_where_the_other_has_no_word() -> None:
    rights = AclInfo(
        policies=(
            PolicyInfo(policy_type="Default", entries=(entry("Topic:*"),)),
            PolicyInfo(policy_type="Custom", entries=(entry("Topic:t", "Deny"),)),
        )
    )
    assert may(rights, topic_need("other", "Sub"), "")
    assert not may(rights, topic_need("t", "Sub"), "")


def test_where_a_client_comes_from() -> None:
    rights = acl(entry("Topic:t", source_ips=("10.0.0.0/8", "::1")))
    asked = [may(rights, topic_need("t", "Sub"), ip) for ip in ("10.1.2.3", "::1", "11.0.0.1", "")]
    assert asked == [True, True, False, False]


def test_a_retry_topic_is_its_group() -> None:
    assert topic_need("%RETRY%g", "Sub") == group_need("g", "Sub")


def test_entries_are_added_replaced_and_taken_away() -> None:
    old = acl(entry("Topic:a"), entry("Topic:b"))
    new = merged(old, acl(entry("Topic:b", "Deny"), entry("Group:g")))
    (policy,) = new.policies
    assert [(one.resource, one.decision) for one in policy.entries] == [
        ("Topic:a", "Allow"),
        ("Topic:b", "Deny"),
        ("Group:g", "Allow"),
    ]
    left = without(without(new, "Custom", "Topic:a"), "Custom", "Group:g")
    assert left == acl(entry("Topic:b", "Deny"))
    assert without(left, "Custom", "Topic:b").policies == ()
    assert about(new, "Group") == acl(entry("Group:g"))


def test_words_are_kept_in_one_spelling() -> None:
    told = acl(entry("topic:T", "allow", actions=("sub", "PUB")), policy="custom")
    assert checked(told) == acl(entry("Topic:T", actions=("Sub", "Pub")))


@pytest.mark.parametrize(
    "wrong",
    [
        entry("Queue:q"),
        entry("Topic:"),
        entry("Topic:t", "Perhaps"),
        entry("Topic:t", actions=()),
        entry("Topic:t", actions=("Any",)),
        entry("Topic:t", source_ips=("10.0.0.0/99",)),
    ],
)
def test_what_is_no_right_is_refused(wrong: EntryInfo) -> None:
    with pytest.raises(Refused):
        checked(acl(wrong))
