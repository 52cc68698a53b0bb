"""Groups of RocketMQ clients: what topics and configurations make of them."""

import pytest

from protocols.errors import Code, Refused
from protocols.groups import GroupSpec, Read
from protocols.pipeline import GroupPolicy, TopicInfo
from protocols.rocketmq_groups import as_configured

SPEC = GroupSpec(name="rmq/G/T", reads=(Read(topic="T"),), attempts_max=17)


@pytest.mark.parametrize(
    ("kind", "policy", "facts"),
    [
        ("", None, (False, False, 17)),
        ("FIFO", None, (True, False, 17)),
        ("PRIORITY", GroupPolicy(3), (False, True, 3)),
        ("PRIORITY", GroupPolicy(1, is_orderly=True), (True, False, 1)),
        ("NORMAL", GroupPolicy(5, is_orderly=True), (True, False, 5)),
    ],
)
def test_order_and_attempts(
    kind: str, policy: GroupPolicy | None, facts: tuple[bool, bool, int]
) -> None:
    """The brokers' configuration of the group wins over the listener's; order over priority."""
    spec = as_configured(SPEC, TopicInfo("T", "c", (), kind), policy)
    assert (spec.is_fifo, spec.is_priority, spec.attempts_max) == facts


def test_a_group_that_is_switched_off_gets_nothing() -> None:
    with pytest.raises(Refused) as refused:
        as_configured(SPEC, TopicInfo("T", "c", ()), GroupPolicy(17, may_consume=False))
    assert refused.value.code == Code.FORBIDDEN
