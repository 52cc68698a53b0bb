"""What the store counts, read when somebody asks (28 GET_BROKER_RUNTIME_INFO, LOCAL mode)."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from store.engine import Engine


@dataclass(slots=True)
class ServerCounters:
    """Rising counts of the server itself; those of the log are ``Engine.counters``."""

    requests: int = 0
    refused: int = 0
    busy: int = 0
    frames: int = 0
    pulled: int = 0
    """Messages read by offset; the engine counts what it hands out."""

    commits: int = 0
    commit_s: float = 0.0
    is_healthy: bool = True
    """False once a write or sync has failed: nothing is acknowledged until a restart."""

    recent: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=11))
    """(monotonic, records stored, messages taken) of the last seconds, for rates."""

    def sample(self, engine: Engine, now: float) -> None:
        """Remember where the counts stand; called about once a second."""
        taken = engine.counters.granted + self.pulled
        self.recent.append((now, engine.counters.records, taken))

    def rates(self) -> tuple[float, float]:
        """(stored, taken) per second over the last ten."""
        if len(self.recent) < 2:
            return 0.0, 0.0
        (start, put, got), (end, put_now, got_now) = self.recent[0], self.recent[-1]
        seconds = max(end - start, 1e-3)
        return (put_now - put) / seconds, (got_now - got) / seconds


TEXTS: Final[Mapping[str, str]] = {
    "records_total": "Messages and state records written to the log.",
    "record_bytes_total": "Bytes of those records.",
    "blocks_total": "Blocks of the log written: one frame of a gateway or one batch each.",
    "granted_total": "Deliveries handed out.",
    "acked_total": "Deliveries that were acknowledged.",
    "returned_total": "Deliveries that went back to their queue.",
    "dead_lettered_total": "Messages that became dead letters.",
    "discarded_total": "Messages that left a queue for good without an acknowledgement.",
    "expired_total": "Messages whose time to live was over in a queue.",
    "overflowed_total": "Messages that left a queue because it was too long.",
    "queues_ended_total": "Queues that ended unused.",
    "refused_total": "Messages and requests that were refused.",
    "busy_total": "Times that a sender was told to wait, or not read, because of pending_bytes.",
    "requests_total": "Requests of all connections.",
    "frames_total": "SEND frames of gateways.",
    "commits_total": "Writes to the disk that were made durable.",
    "commit_seconds_total": "Seconds that those took.",
    "timers_fired_total": "Delayed messages that became visible.",
    "deleted_bytes_total": "Bytes of segments that went.",
    "relocated_total": "Records that were moved out of old segments.",
    "recalled_total": "Delayed messages that were withdrawn.",
    "timers_waiting": "Delayed messages that wait (limits.timers_max).",
    "half_messages_open": "Transactions without an end (limits.half_messages_max).",
    "exchanges_open": "QoS 2 publishes whose exchange is not over (limits.once_keys_max).",
    "retained": "Addresses with a retained value (limits.retained_max).",
    "retained_refused_total": "Retained values that were one address too many.",
    "pending_bytes": "Bytes accepted and not yet synced (limits.pending_bytes_max).",
    "connections": "Open connections (limits.connections_max).",
    "waiting_polls": "Long polls that are held (limits.waiting_max).",
    "log_bytes": "Bytes that the segments of the log take (limits.log_bytes_max).",
    "log_usable_bytes": "How much of them messages may take: all but the reserve.",
    "disk_free_bytes": "Free bytes of the file system (limits.disk_free_bytes_min).",
    "is_full": "1: sends are refused.",
    "is_healthy": "0: a write or sync has failed, nothing is acknowledged until a restart.",
}
"""What ``tidegate_store_<name>`` means; names on ``_total`` only rise."""


def collect(engine: Engine, counters: ServerCounters) -> Mapping[str, float]:
    """Name → value, for ``tidegate_store_<name>``."""
    log = engine.counters
    return {
        "records_total": log.records,
        "record_bytes_total": log.record_bytes,
        "blocks_total": log.blocks,
        "granted_total": log.granted,
        "acked_total": log.acked,
        "returned_total": log.returned,
        "dead_lettered_total": log.dead_lettered,
        "discarded_total": log.discarded,
        "expired_total": log.expired,
        "overflowed_total": log.overflowed,
        "queues_ended_total": log.queues_ended,
        "refused_total": log.refused + counters.refused,
        "busy_total": counters.busy,
        "requests_total": counters.requests,
        "frames_total": counters.frames,
        "commits_total": counters.commits,
        "commit_seconds_total": counters.commit_s,
        "timers_fired_total": log.timers_fired,
        "deleted_bytes_total": log.deleted_bytes,
        "relocated_total": log.relocated,
        "recalled_total": log.recalled,
        "timers_waiting": engine.held.counts[0],
        "half_messages_open": engine.held.counts[1],
        "exchanges_open": engine.gateways.exchange_count,
        "retained": engine.retained_counts[0],
        "retained_refused_total": engine.retained_counts[1],
        "pending_bytes": engine.pending_bytes,
        "log_bytes": engine.room.log_bytes,
        "log_usable_bytes": engine.room.usable_bytes,
        "disk_free_bytes": engine.room.free_bytes,
        "is_full": float(engine.is_full),
        "is_healthy": float(counters.is_healthy),
    }
