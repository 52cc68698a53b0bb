"""
Delayed messages in RocketMQ's words: levels, properties, and the handle that recalls one. Pure.

Source: ``ScheduleMessageService``, ``TimerMessageStore``, ``RecallMessageHandle`` (RocketMQ 5.4).
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final, NamedTuple

from protocols.errors import Code, Refused

DELAY_LEVELS_MS: Final = tuple(
    seconds * 1000
    for seconds in (
        *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540),
        *(600, 1200, 1800, 3600, 7200),
    )
)
"""``messageDelayLevel``: level 1 is the first."""

RETRY_LEVEL_FIRST: Final = 3
"""A send-back without a level waits for level 3 + reconsume times (``delayLevel == 0``)."""

DELAY: Final = "DELAY"
DELAY_SEC: Final = "TIMER_DELAY_SEC"
DELAY_MS: Final = "TIMER_DELAY_MS"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
NAMES_OF_DELAY: Final = frozenset((DELAY, DELAY_SEC, DELAY_MS, DELIVER_MS))

DELIVER_MS_MAX: Final = (1 << 63) - 1
HANDLE_VERSION: Final = "v1"


def deliver_at_ms(named: Mapping[str, str], now_ms: int) -> int:
    """
    When a message of these properties is due; 0: at once.

    A level wins over all, then seconds, milliseconds, an absolute time. Any horizon. Raises
    Refused.
    """
    try:
        level = int(named.get(DELAY) or 0)
        if level > 0:
            return now_ms + delay_ms(level)
        if named.get(DELAY_SEC):
            at_ms = now_ms + 1000 * int(named[DELAY_SEC])
        elif named.get(DELAY_MS):
            at_ms = now_ms + int(named[DELAY_MS])
        else:
            at_ms = int(named.get(DELIVER_MS) or 0)
    except ValueError:
        told = ", ".join([f"{name}={named[name][:40]}" for name in NAMES_OF_DELAY if name in named])
        raise Refused(Code.ILLEGAL_DELIVERY_TIME, "delay", f"{told} is no number") from None
    if at_ms > DELIVER_MS_MAX:
        raise Refused(Code.ILLEGAL_DELIVERY_TIME, "delay", f"{at_ms} is no time")
    return at_ms if at_ms > now_ms else 0


def delay_ms(level: int) -> int:
    """Of a level; above the last is the last."""
    return DELAY_LEVELS_MS[min(max(level, 1), len(DELAY_LEVELS_MS)) - 1]


def send_back_delay_ms(level: int, reconsume_count: int) -> int:
    """How long a message that a consumer gave back stays hidden."""
    return delay_ms(level if level > 0 else RETRY_LEVEL_FIRST + reconsume_count)


class RecallHandle(NamedTuple):
    """Names one delayed message; opaque to clients."""

    topic: str
    broker: str
    due_ms: int
    message_id: str

    def encode(self) -> str:
        text = f"{HANDLE_VERSION} {self.topic} {self.broker} {self.due_ms} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()


def parse_recall_handle(text: str) -> RecallHandle | None:
    """None: *text* is no such handle."""
    try:
        raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode()
        version, topic, broker, due_ms, message_id = raw.split(" ")
        if version != HANDLE_VERSION:
            return None
        return RecallHandle(topic, broker, int(due_ms), message_id)
    except (ValueError, binascii.Error):
        return None
