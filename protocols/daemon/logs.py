"""
Logs for machines: one JSON object a line on stderr.

Control characters are escaped, so that nothing a client sends can forge a line or move a
terminal's cursor; a line that repeats is folded, so that a fault in a loop cannot fill a disk.
"""

import json
import logging
import re
import sys
from typing import IO, Any, Final

FOLD_AFTER_COUNT: Final = 5
"""Lines of one kind (logger, level, template) let through before folding begins."""

FOLD_WINDOW_S: Final = 10.0
"""How long a kind stays folded; then one line says how many were left out."""

KINDS_MAX: Final = 1000
"""Kinds remembered at a time."""

_CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def set_up(level: str = "info", stream: IO[str] | None = None) -> None:
    """Send everything that is logged to *stream* (stderr) as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(Folding())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # One line per HTTP request is what metrics are for.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """``{"time": …, "level": …, "logger": …, "message": …, "error": …}``."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__()
        import time

        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (left_out := getattr(record, "left_out_count", 0)) > 0:
            fields["left_out_count"] = left_out
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return escape_controls(json.dumps(fields, ensure_ascii=False, default=str))


def escape_controls(text: str) -> str:
    """*text* with the control characters that JSON leaves alone written as ``\\uXXXX``."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


class Folding(logging.Filter):
    """Lets the first lines of a kind through, then one a window with the count of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, int, str], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.name, record.levelno, str(record.msg))
        now = record.created
        state = self._kinds.get(kind)
        if state is None or now - state[0] >= FOLD_WINDOW_S:
            left_out = 0 if state is None else max(0, int(state[1]) - FOLD_AFTER_COUNT)
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            self._kinds[kind] = [now, 1]
            record.left_out_count = left_out
            return True
        state[1] += 1
        return state[1] <= FOLD_AFTER_COUNT
