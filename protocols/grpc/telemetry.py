"""
Settings: what a client says of itself, completed by what the server decides.

Clients hang or spin on missing fields (Java waits for settings, a zero long-polling time spins),
so every field is set. Source: proxy ``GrpcClientSettingsManager.mergeSubscriptionData``.
"""

from typing import Final

from protocols.errors import Code
from protocols.grpc.mapping import duration_of, status
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as rpc
from protocols.pipeline import GroupPolicy

PRODUCER_ATTEMPTS_MAX: Final = 3
PRODUCER_BACKOFF_MS: Final = (10, 1000)
"""First and longest wait of a producer between two tries."""
PRODUCER_BACKOFF_MULTIPLIER: Final = 2.0

RECEIVE_BATCH_COUNT: Final = 32
LONG_POLLING_MS: Final = 20_000

RETRY_S: Final = (
    1,
    5,
    10,
    30,
    60,
    120,
    180,
    240,
    300,
    360,
    420,
    480,
    540,
    600,
    1200,
    1800,
    3600,
    7200,
)
"""Waits before a further delivery (``CustomizedRetryPolicy``: messageDelayLevel)."""


AGAIN_S: Final = (0.5, 1.5, 8.0)
"""Pauses after which settings are sent again to a client that may have missed them."""

LITE_CONSUMERS: Final = frozenset((v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER))
"""Refused where they start: with settings they would run, and get nothing."""

HEEDFUL: Final = frozenset((v2.Language.JAVA, v2.Language.PYTHON, v2.Language.GOLANG))


def merged(
    settings: v2.Settings,
    *,
    is_fifo: bool,
    policy: GroupPolicy,
    body_bytes_max: int,
    validates_type: bool,
) -> v2.Settings:
    """The client's settings with the server's fields written over them."""
    answer = v2.Settings()
    answer.CopyFrom(settings)
    answer.metric.on = False
    backoff = answer.backoff_policy
    backoff.Clear()
    if answer.HasField("publishing"):
        answer.publishing.max_body_size = body_bytes_max
        answer.publishing.validate_message_type = validates_type
        backoff.max_attempts = PRODUCER_ATTEMPTS_MAX
        _grow(backoff.exponential_backoff, *PRODUCER_BACKOFF_MS, PRODUCER_BACKOFF_MULTIPLIER)
    else:
        answer.subscription.fifo = is_fifo
        answer.subscription.receive_batch_size = RECEIVE_BATCH_COUNT
        answer.subscription.long_polling_timeout.CopyFrom(duration_of(LONG_POLLING_MS))
        backoff.max_attempts = policy.attempts_max
        if policy.exponential is not None:
            _grow(backoff.exponential_backoff, *policy.exponential)
        else:
            waits_ms = policy.waits_ms or [second * 1000 for second in RETRY_S]
            backoff.customized_backoff.next.extend([duration_of(wait) for wait in waits_ms])
    return answer


def _grow(backoff: v2.ExponentialBackoff, first_ms: int, most_ms: int, factor: float) -> None:
    backoff.initial.CopyFrom(duration_of(first_ms))
    backoff.max.CopyFrom(duration_of(most_ms))
    backoff.multiplier = factor


def settings_command(settings: v2.Settings) -> rpc.TelemetryCommand:
    """With a status, because Python ignores settings without one."""
    return rpc.TelemetryCommand(status=status(Code.OK), settings=settings)


def topics_of(settings: v2.Settings) -> list[str]:
    """Topics that a client publishes to or subscribes to."""
    if settings.HasField("publishing"):
        return [topic.name for topic in settings.publishing.topics]
    return [entry.topic.name for entry in settings.subscription.subscriptions]


def may_miss_settings(settings: v2.Settings) -> bool:
    """
    Node's client (1.0.8) begins to wait for settings when it has all its routes, and drops those
    that came before: it would wait for ever.
    """
    return settings.user_agent.language not in HEEDFUL


def is_consumer(settings: v2.Settings) -> bool:
    return settings.HasField("subscription")
