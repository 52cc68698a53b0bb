"""What the store counts, read when somebody asks (28 GET_BROKER_RUNTIME_INFO, LOCAL mode)."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from store.engine import Engine


@dataclass(slots=True)
class ServerCounters:
    """Rising counts of the server itself; those of the log are ``Engine.counters``."""

    requests: int = 0
    refused: int = 0
    busy: int = 0
    frames: int = 0
    commits: int = 0
    commit_s: float = 0.0
    is_healthy: bool = True
    """False once a write or sync has failed: nothing is acknowledged until a restart."""

    recent: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=11))
    """(monotonic, records stored, deliveries granted) of the last seconds, for rates."""

    def sample(self, engine: Engine, now: float) -> None:
        """Remember where the counts stand; called about once a second."""
        self.recent.append((now, engine.counters.records, engine.counters.granted))

    def rates(self) -> tuple[float, float]:
        """(stored, granted) per second over the last ten."""
        if len(self.recent) < 2:
            return 0.0, 0.0
        (start, put, got), (end, put_now, got_now) = self.recent[0], self.recent[-1]
        seconds = max(end - start, 1e-3)
        return (put_now - put) / seconds, (got_now - got) / seconds


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
        "retained": engine.retained_counts[0],
        "retained_refused_total": engine.retained_counts[1],
        "pending_bytes": engine.pending_bytes,
        "is_full": float(engine.is_full),
        "is_healthy": float(counters.is_healthy),
    }
