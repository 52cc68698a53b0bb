"""
What a webhook's answer means: done, again later, never, or gone. Pure rules.

Sources: CloudEvents webhook specification 2.1 and 4; retried statuses as Knative has them.
"""

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final, NamedTuple

RETRIED: Final = frozenset((404, 408, 409, 425, 429))
"""Of the 4xx; all 5xx and transport errors are retried too."""

SUCCESS: Final = range(200, 300)
GONE: Final = 410
BACKOFF_FIRST_MS: Final = 500
BACKOFF_MAX_MS: Final = 10 * 60 * 1000
RETRY_AFTER_MAX_MS: Final = 60 * 60 * 1000
"""A sink may ask for at most an hour of peace."""


class Fate(Enum):
    DONE = "done"
    AGAIN = "again"
    BURY = "bury"
    RETIRE = "retire"


class Verdict(NamedTuple):
    """What becomes of one delivery."""

    fate: Fate
    delay_ms: int = 0


def judge(
    status: int, headers: Mapping[str, str], *, attempt: int, attempts_max: int, now_ms: int
) -> Verdict:
    """*status* 0: no answer at all (transport error, timeout)."""
    if status in SUCCESS:
        return Verdict(Fate.DONE)
    if status == GONE:
        return Verdict(Fate.RETIRE)
    if status != 0 and status < 500 and status not in RETRIED:
        return Verdict(Fate.BURY)
    if attempt >= attempts_max:
        return Verdict(Fate.BURY)
    asked_ms = retry_after_ms(headers.get("Retry-After", ""), now_ms=now_ms)
    return Verdict(Fate.AGAIN, asked_ms if asked_ms is not None else backoff_ms(attempt))


def backoff_ms(attempt: int) -> int:
    """0.5 s, 1 s, 2 s … at most 10 min."""
    return min(BACKOFF_FIRST_MS << min(attempt - 1, 30), BACKOFF_MAX_MS)


def retry_after_ms(text: str, *, now_ms: int) -> int | None:
    """Seconds or an HTTP date (RFC 9110, 10.2.3); None if it is neither."""
    if text.isascii() and text.strip().isdigit():
        asked = int(text) * 1000
    else:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        asked = round(moment.timestamp() * 1000) - now_ms
    return min(max(asked, 0), RETRY_AFTER_MAX_MS)


def has_consent(headers: Mapping[str, str], origin: str) -> bool:
    """Whether an answer to our OPTIONS allows us; its status proves nothing."""
    allowed = headers.get("WebHook-Allowed-Origin", "").strip()
    return allowed == "*" or allowed.lower() == origin.lower()
