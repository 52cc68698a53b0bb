"""
What RocketMQ clients of every protocol share of a consumer group: how its members are served.

Whoever opens the group says the same, so that members of several protocols get along.
"""

from dataclasses import replace

from protocols.errors import Code, Refused
from protocols.groups import GroupSpec
from protocols.pipeline import GroupPolicy, TopicInfo


def as_configured(spec: GroupSpec, info: TopicInfo, policy: GroupPolicy | None) -> GroupSpec:
    """
    *spec* with the order and attempts that the topic's type and the group's configuration ask for.

    Raises Refused(FORBIDDEN) for a group that may not consume.
    """
    if policy is not None and not policy.may_consume:
        raise Refused(Code.FORBIDDEN, spec.name, "the group's consumeEnable is off")
    kind = info.message_type.upper()
    is_fifo = spec.is_fifo or kind == "FIFO" or (policy is not None and policy.is_orderly)
    return replace(
        spec,
        is_fifo=is_fifo,
        is_priority=kind == "PRIORITY" and not is_fifo,
        attempts_max=policy.attempts_max if policy is not None else spec.attempts_max,
    )
