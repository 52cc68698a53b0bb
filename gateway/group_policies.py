"""How brokers have consumer groups configured: retries, order, whether they may consume."""

import logging
from typing import Final

from gateway.clusters.client import ClusterClient
from protocols import clock
from protocols.errors import GatewayError
from protocols.pipeline import GroupPolicy
from protocols.remoting.bodies import GroupConfig, GroupRetryPolicy, decode_body
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand

logger = logging.getLogger("tidegate.topics")

FRESH_S: Final = 5.0
"""How long a group's configuration is taken for granted."""

GROUPS_MAX: Final = 20_000


class GroupPolicies:
    """Asked of any store of a cluster; the last known while none can be asked."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[GroupPolicy | None, float]] = {}

    async def find(self, cluster: ClusterClient, group: str) -> GroupPolicy | None:
        """None: the brokers do not know the group yet."""
        key, now = (cluster.name, group), clock.monotonic()
        known, until = self._known.get(key, (None, 0.0))
        if now < until:
            return known
        for link in cluster.up_links():
            fields = {"group": group}
            command = RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, fields)
            try:
                answer = await link.ask(command)
                if answer.code == ResponseCode.SUCCESS:
                    known = policy_of(decode_body(GroupConfig, answer.body))
                    break
            except GatewayError as error:
                logger.info("group %s: %s", group, error)
        if len(self._known) >= GROUPS_MAX:
            self._known.clear()
        self._known[key] = (known, now + FRESH_S)
        return known


def policy_of(config: GroupConfig) -> GroupPolicy:
    return GroupPolicy(
        attempts_max=max(config.retry_max_times, 0) + 1,
        is_orderly=config.consume_message_orderly,
        may_consume=config.consume_enable,
        waits_ms=_waits(config.group_retry_policy),
        exponential=_exponential(config.group_retry_policy),
    )


def _waits(policy: GroupRetryPolicy) -> tuple[int, ...]:
    custom = policy.customized_retry_policy
    return tuple(custom.next) if policy.type == "CUSTOMIZED" and custom is not None else ()


def _exponential(policy: GroupRetryPolicy) -> tuple[int, int, int] | None:
    told = policy.exponential_retry_policy
    if policy.type != "EXPONENTIAL" or told is None:
        return None
    return told.initial, told.max, told.multiplier
