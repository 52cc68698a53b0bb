"""
Looking closer for a while: traces of one client, topic or address to a file, and who is slow.

Both cost one test per read or batch while nobody looks. A trace ends by time or size; what it
notes is written by a thread, never by the event loop.
"""

import asyncio
import json
import logging
import os
import re
from pathlib import Path
from typing import Final, NamedTuple, Self

from gateway.config import LimitsConfig
from gateway.rules import in_range
from protocols import clock, subjects
from protocols.addresses import host_of
from protocols.errors import Code, Refused
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.observing")

KINDS: Final = ("client", "topic", "ip")
TRACES_MAX: Final = 16
FLUSH_S: Final = 0.2
DURATION_MS_MAX: Final = 24 * 3_600_000

SLOW_MAX: Final = 1000
"""Subscribers remembered; the least slow one goes for a slower one."""

SLOW_MS: Final = 500
"""From the store to the socket; what waited for an absent client does not count."""

SLOW_KEPT_MS: Final = 300_000
"""An entry that was not slow again is forgotten."""


class TraceInfo(NamedTuple):
    """One trace, for the admin API."""

    name: str
    kind: str
    value: str
    until_ms: int
    file: str
    size_bytes: int
    dropped_count: int
    """Notes beyond the size of the file."""


class _Trace:
    """Notes about one client, topic filter or address range."""

    def __init__(self, name: str, kind: str, value: str, until_ms: int, path: Path) -> None:
        self.name = name
        self.kind = kind
        self.value = value
        self.until_ms = until_ms
        self.path = path
        self.size_bytes = 0
        self.dropped_count = 0
        self.lines: list[bytes] = []

    def is_about(self, client_id: str, peer: str, topic: str) -> bool:
        if self.kind == "client":
            return client_id == self.value
        if self.kind == "ip":
            return in_range(host_of(peer), self.value)
        return bool(topic) and subjects.matches(self.value, topic)

    def info(self) -> TraceInfo:
        return TraceInfo(
            self.name,
            self.kind,
            self.value,
            self.until_ms,
            str(self.path),
            self.size_bytes,
            self.dropped_count,
        )


class Slow(NamedTuple):
    """A subscriber that got a message late."""

    client_id: str
    topic: str
    latency_ms: int
    at_ms: int


class Observer:
    """``Observer`` of the services."""

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        self.is_tracing = False
        self._folder = folder.absolute()  # who asks for a trace has another working directory
        self._bytes_max = bytes_max
        self._traces: dict[str, _Trace] = {}
        self._slow: dict[tuple[str, str], Slow] = {}
        self._tasks = Tasks("observer")

    @classmethod
    def from_config(cls, limits: LimitsConfig) -> Self:
        return cls(limits.trace_folder, bytes_max=limits.trace_bytes_max)

    async def close(self) -> None:
        await self._tasks.close()
        for trace in self._traces.values():
            _write(trace.path, trace.lines)

    # ── traces ──────────────────────────────────────────────────────────────────────────

    async def start_trace(self, kind: str, value: str, duration_ms: int) -> TraceInfo:
        """Raises Refused."""
        is_sound = kind in KINDS and bool(value) and 0 < duration_ms <= DURATION_MS_MAX
        if not is_sound or (kind == "topic" and not subjects.is_valid_filter(value)):
            raise Refused(Code.BAD_REQUEST, value, f"a trace is of a {', '.join(KINDS)}")
        if len(self._traces) >= TRACES_MAX:
            raise Refused(Code.TOO_MANY_REQUESTS, value, f"{TRACES_MAX} traces are running")
        now_ms = clock.wall_ms()
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{kind}-{value}")[:80] + f"-{now_ms}"
        path = self._folder / f"{name}.jsonl"
        try:
            await asyncio.to_thread(_create, path)
        except OSError as error:
            raise Refused(Code.INTERNAL_ERROR, str(path), str(error)) from error
        trace = self._traces[name] = _Trace(name, kind, value, now_ms + duration_ms, path)
        if not self.is_tracing:
            self.is_tracing = True
            self._tasks.start(self._flush_for_ever(), name="flush")
        logger.info("tracing %s %s to %s", kind, value, path)
        return trace.info()

    def stop_trace(self, name: str) -> bool:
        """The file stays; whether there was one."""
        trace = self._traces.get(name)
        if trace is not None:
            trace.until_ms = 1
        return trace is not None

    def traces(self) -> list[TraceInfo]:
        """Those that run."""
        return [trace.info() for trace in self._traces.values()]

    def trace(
        self, event: str, *, client_id: str, peer: str, topic: str = "", detail: str = ""
    ) -> None:
        """Note it in every trace that it is about; call only while ``is_tracing``."""
        line = b""
        for trace in self._traces.values():
            if not trace.is_about(client_id, peer, topic):
                continue
            if not line:
                fields = {
                    "at_ms": clock.wall_ms(),
                    "event": event,
                    "client_id": client_id,
                    "peer": peer,
                    "topic": topic,
                    "detail": detail,
                }
                kept = {name: value for name, value in fields.items() if value}
                line = json.dumps(kept, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            if trace.size_bytes + len(line) > self._bytes_max:
                trace.dropped_count += 1
            else:
                trace.size_bytes += len(line)
                trace.lines.append(line)

    async def _flush_for_ever(self) -> None:
        while self._traces:
            await asyncio.sleep(FLUSH_S)
            now_ms = clock.wall_ms()
            for trace in list(self._traces.values()):
                lines, trace.lines = trace.lines, []
                if lines:
                    await asyncio.to_thread(_write, trace.path, lines)
                if trace.until_ms <= now_ms and not trace.lines:
                    del self._traces[trace.name]
        self.is_tracing = False

    # ── who is slow ─────────────────────────────────────────────────────────────────────

    @property
    def slow_ms(self) -> int:
        """From which latency on ``slow`` wants to be told."""
        return SLOW_MS

    def slow(self, client_id: str, topic: str, latency_ms: int) -> None:
        """A subscriber got a message so long after it was stored."""
        key, now_ms = (client_id, topic), clock.wall_ms()
        if key not in self._slow and len(self._slow) >= SLOW_MAX:
            least = min(self._slow.values(), key=lambda entry: entry.latency_ms)
            if least.latency_ms >= latency_ms:
                return
            del self._slow[least.client_id, least.topic]
        known = self._slow.get(key)
        worst = max(latency_ms, known.latency_ms) if known is not None else latency_ms
        self._slow[key] = Slow(client_id, topic, worst, now_ms)

    def slowest(self, count: int) -> list[Slow]:
        """The worst first."""
        now_ms = clock.wall_ms()
        for key, entry in list(self._slow.items()):
            if entry.at_ms < now_ms - SLOW_KEPT_MS:
                del self._slow[key]
        return sorted(self._slow.values(), key=lambda entry: -entry.latency_ms)[:count]


def _create(path: Path) -> None:
    """For its owner's eyes only: topics and addresses are in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def _write(path: Path, lines: list[bytes]) -> None:
    try:
        with path.open("ab") as file:
            file.write(b"".join(lines))
    except OSError as error:
        logger.warning("trace %s: %s", path, error)
