"""
A policy as it is stored with a queue, read once into what its guard asks for.

Keys and what they mean are listed in ``protocols.pipeline.DeliveryStreams.create_queue``; unknown
keys are kept and ignored, so that gateways and stores may be upgraded one after the other.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from protocols.errors import Code, Refused

NONE: Final = -1
"""A limit that is not set; 0 is a limit."""

LEVELS_MAX: Final = 255
"""Priorities of AMQP are one octet."""

DROP_HEAD: Final = "drop-head"
DROP_NEW: Final = "drop-new"
REJECT: Final = "reject"
REJECT_DEAD_LETTER: Final = "reject-dead-letter"
OVERFLOWS: Final = (DROP_HEAD, DROP_NEW, REJECT, REJECT_DEAD_LETTER)

NUMBERS: Final = (
    "expire_ms",
    "max_length",
    "max_bytes",
    "max_priority",
    "delivery_limit",
    "idle_ms",
    "single_active",
    "volatile",
    "incarnation",
)


class Terms(NamedTuple):
    """One policy, typed."""

    expire_ms: int = NONE
    """How long a message may wait, from when it was stored."""

    max_length: int = NONE
    """Ready messages."""

    max_bytes: int = NONE
    """Bodies of ready messages together."""

    overflow: str = DROP_HEAD
    levels: int = 0
    """Priorities beside 0: one more sub-queue each."""

    attempts_max: int = 0
    """0: no limit."""

    idle_ms: int = 0
    """The queue ends when nobody used it for so long; 0: never."""

    is_single_active: bool = False
    dead_letter: str = ""
    """Name of the hand-over queue for what is not delivered; empty: it is dropped."""

    note: str = ""
    """Handed over with each dead letter: where its owner wants it to go."""

    notices: str = ""
    """Name of the hand-over queue that is told when the store ends this queue."""

    group: str = ""
    """The one group of the queue, opened with it."""

    incarnation: int = 0
    is_fifo: bool = False

    @property
    def has_limit(self) -> bool:
        return self.max_length != NONE or self.max_bytes != NONE

    @property
    def is_judged_at_send(self) -> bool:
        """Whether an item may be refused, or belongs to the sub-queue of its priority."""
        refuses = self.has_limit and self.overflow in (REJECT, REJECT_DEAD_LETTER)
        return refuses or self.levels > 0


def terms_of(policy: Mapping[str, int | str]) -> Terms:
    """Read a policy that ``check_policy`` has passed."""

    def number(name: str, default: int) -> int:
        value = policy.get(name, default)
        return value if isinstance(value, int) else default

    limit = number("delivery_limit", NONE)
    return Terms(
        expire_ms=number("expire_ms", NONE),
        max_length=number("max_length", NONE),
        max_bytes=number("max_bytes", NONE),
        overflow=str(policy.get("overflow", DROP_HEAD)),
        levels=number("max_priority", 0),
        attempts_max=limit + 1 if limit >= 0 else 0,
        idle_ms=number("idle_ms", 0),
        is_single_active=bool(number("single_active", 0)),
        dead_letter=str(policy.get("dead_letter", "")),
        note=str(policy.get("dead_letter_note", "")),
        notices=str(policy.get("notices", "")),
        group=str(policy.get("group", "")),
        incarnation=number("incarnation", 0),
        is_fifo=policy.get("order") == "key",
    )


def check_policy(name: str, policy: Mapping[str, int | str]) -> None:
    """Raises Refused(BAD_REQUEST) for a value that cannot be meant."""
    for key in NUMBERS:
        value = policy.get(key, 0)
        if not isinstance(value, int) or value < 0:
            raise Refused(Code.BAD_REQUEST, name, f"policy {key}: {value!r} is no natural number")
    if int(policy.get("max_priority", 0)) > LEVELS_MAX:
        raise Refused(Code.BAD_REQUEST, name, f"policy max_priority: at most {LEVELS_MAX}")
    if policy.get("overflow", DROP_HEAD) not in OVERFLOWS:
        raise Refused(Code.BAD_REQUEST, name, f"policy overflow is none of {OVERFLOWS}")
    if policy.get("overflow") == DROP_NEW and policy.get("max_priority"):
        raise Refused(Code.BAD_REQUEST, name, "policy: drop-new keeps one order, not priorities")
