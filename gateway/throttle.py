"""
Token buckets: all entries that match apply, the one with the least left decides.

The pipeline asks ``buckets`` once per (connection, address) and keeps the tuple; ``take`` is all
that is on the path of a message, and an empty tuple costs nothing.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from gateway.ruleconfig import ThrottleConfig
from gateway.rules import Facts, When

BUCKETS_MAX: Final = 100_000
"""Buckets kept over all entries; beyond it the idle ones are forgotten."""


RELEASE_S: Final = 0.02
"""How often who waits for others' messages to be stored looks again."""


MOMENT_S: Final = 0.02
"""What waits goes on in pieces that a rate lets through in this time."""


class Verdict(NamedTuple):
    """Whether a batch may go."""

    delay_s: float = 0.0
    """Hold it back so long."""

    refused_by: str = ""
    """Name of the entry that refuses it; empty: it may go."""

    retry_s: float = 0.0
    """When refused: how long until there is room."""

    is_quota: bool = False
    """Refused by a number, not by a rate: there is room when somebody leaves."""

    is_taken: bool = True
    """False: nothing was taken; ask again after the delay."""


GO: Final = Verdict()


class _Tokens:
    """One rate: *rate* a second, at most *capacity* at once; may go below zero by one batch."""

    __slots__ = ("at", "capacity", "level", "rate")

    def __init__(self, rate: float, burst_ms: int) -> None:
        self.rate = rate
        self.capacity = max(1.0, rate * burst_ms / 1000)
        self.level = self.capacity
        self.at = 0.0

    def wait_s(self, cost: float, now: float) -> float:
        """Seconds until *cost* can be taken; a batch above the capacity waits for a full one."""
        return max(0.0, (min(cost, self.capacity) - self.left(now)) / self.rate)

    def left(self, now: float) -> float:
        """Tokens there are."""
        if self.at:
            self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
        self.at = now
        return self.level


class Bucket:
    """The state of one entry for one value of its ``per`` field."""

    __slots__ = (
        "bytes_tokens",
        "connect_tokens",
        "connection_count",
        "connections_max",
        "delay_s_max",
        "inflight_count",
        "inflight_max",
        "name",
        "publish_tokens",
    )

    def __init__(self, config: ThrottleConfig) -> None:
        self.name = config.name
        self.delay_s_max = config.delay_ms_max / 1000
        self.publish_tokens = _tokens(config.publish, config.burst)
        self.bytes_tokens = _tokens(config.bytes, config.burst)
        self.connect_tokens = _tokens(config.connect_rate, config.burst)
        self.inflight_max = config.inflight
        self.connections_max = config.connections
        self.inflight_count = 0
        self.connection_count = 0

    def wait_s(self, count: int, size_bytes: int, now: float) -> float:
        """How long until a batch may go; infinite when only a release helps."""
        is_full = self.inflight_max is not None and self.inflight_count + count > self.inflight_max
        if is_full and self.inflight_count:  # alone, a batch above the limit may go
            return math.inf
        wait = 0.0
        if self.publish_tokens is not None:
            wait = self.publish_tokens.wait_s(count, now)
        if self.bytes_tokens is not None:
            wait = max(wait, self.bytes_tokens.wait_s(size_bytes, now))
        return wait

    def is_idle(self, now: float) -> bool:
        """Nothing would be lost by forgetting it."""
        if self.inflight_count or self.connection_count:
            return False
        rates = (self.publish_tokens, self.bytes_tokens, self.connect_tokens)
        return all(rate is None or rate.wait_s(rate.capacity, now) == 0 for rate in rates)

    def left(self, now: float) -> dict[str, float]:
        """What remains of each limit, for ``explain``."""
        left: dict[str, float] = {}
        for name, rate in (
            ("publish", self.publish_tokens),
            ("bytes", self.bytes_tokens),
            ("connect_rate", self.connect_tokens),
        ):
            if rate is not None:
                left[name] = round(rate.left(now), 1)
        if self.inflight_max is not None:
            left["inflight"] = self.inflight_max - self.inflight_count
        if self.connections_max is not None:
            left["connections"] = self.connections_max - self.connection_count
        return left


def take(buckets: Sequence[Bucket], count: int, size_bytes: int, now: float) -> Verdict:
    """Take a batch from all buckets, or from none of them. *now* is monotonic seconds."""
    delay = 0.0
    for bucket in buckets:
        wait = bucket.wait_s(count, size_bytes, now)
        if wait == math.inf == bucket.delay_s_max:
            return Verdict(RELEASE_S, is_taken=False)
        if wait > bucket.delay_s_max:
            return Verdict(0.0, bucket.name, min(wait, 60.0))
        delay = max(delay, wait)
    for bucket in buckets:
        if bucket.publish_tokens is not None:
            bucket.publish_tokens.level -= count
        if bucket.bytes_tokens is not None:
            bucket.bytes_tokens.level -= size_bytes
        if bucket.inflight_max is not None:
            bucket.inflight_count += count
    return GO if delay == 0.0 else Verdict(delay)


def fitting(buckets: Sequence[Bucket], sizes: Sequence[int], now: float) -> int:
    """How many messages, of these sizes in bytes and in this order, could be taken at once."""
    count = len(sizes)
    for bucket in buckets:
        if bucket.inflight_max is not None:
            count = min(count, bucket.inflight_max - bucket.inflight_count)
        if bucket.publish_tokens is not None:
            count = min(count, int(bucket.publish_tokens.left(now)))
        if bucket.bytes_tokens is not None:
            count = _within(bucket.bytes_tokens.left(now), sizes, count)
    return max(count, 0)


def _within(room_bytes: float, sizes: Sequence[int], count: int) -> int:
    """How many of the first *count* have room together."""
    return sum(1 for sum_bytes in accumulate(sizes[: max(count, 0)]) if sum_bytes <= room_bytes)


def piece(buckets: Sequence[Bucket], sizes: Sequence[int], now: float) -> int:
    """
    How many of what was published one by one, of these sizes, to ask for at once.

    Where publishers wait for a rate: as many as there is room for, or else what it lets through in
    a moment; the others follow. Everything where some are refused, or wait for others' results.
    """
    if counts_inflight(buckets) or any([bucket.delay_s_max != math.inf for bucket in buckets]):
        return len(sizes)
    if room := fitting(buckets, sizes, now):
        return room
    count = len(sizes)
    for bucket in buckets:
        if bucket.publish_tokens is not None:
            count = min(count, int(bucket.publish_tokens.rate * MOMENT_S))
        if bucket.bytes_tokens is not None:
            count = _within(bucket.bytes_tokens.rate * MOMENT_S, sizes, count)
    return max(count, 1)


def counts_inflight(buckets: Sequence[Bucket]) -> bool:
    """Results have to be told to them."""
    return any([bucket.inflight_max is not None for bucket in buckets])


def release(buckets: Sequence[Bucket], count: int) -> None:
    """The results of a batch that ``take`` let go are in."""
    for bucket in buckets:
        bucket.inflight_count = max(0, bucket.inflight_count - count)


class Throttle:
    """The entries of ``throttle:`` and their buckets; buckets outlive a reload by name."""

    def __init__(
        self,
        entries: Sequence[ThrottleConfig],
        *,
        version: int = 0,
        previous: "Throttle | None" = None,
    ) -> None:
        self.version = version
        self._entries: tuple[tuple[ThrottleConfig, When], ...] = tuple(
            (entry, entry.when.conditions()) for entry in entries
        )
        self.has_connections = any(limits_connections(entry) for entry in entries)
        """An entry counts connections."""

        self._buckets: dict[tuple[str, str], Bucket] = {}
        if previous is not None:
            kept = {entry.name for entry in entries} & {
                old.name for old, _ in previous._entries if old in entries
            }
            self._buckets = {
                key: bucket for key, bucket in previous._buckets.items() if key[0] in kept
            }

    def buckets(self, facts: Facts, *, now: float = 0.0) -> tuple[Bucket, ...]:
        """The buckets that messages with these facts are counted in."""
        if not self._entries:
            return ()
        return tuple(
            self._bucket(entry, facts, now)
            for entry, when in self._entries
            if limits_messages(entry) and when.mismatch(facts) == ""
        )

    def connect(self, facts: Facts, now: float) -> tuple[Verdict, tuple[Bucket, ...]]:
        """
        Count one more connection. When it may stay, hand the buckets to ``disconnect`` later.
        """
        buckets = tuple(
            self._bucket(entry, facts, now)
            for entry, when in self._entries
            if limits_connections(entry) and when.mismatch(facts) == ""
        )
        for bucket in buckets:
            limit = bucket.connections_max
            if limit is not None and bucket.connection_count >= limit:
                return Verdict(0.0, bucket.name, 1.0, is_quota=True), ()
            rate = bucket.connect_tokens
            if rate is not None and (wait := rate.wait_s(1, now)) > 0:
                return Verdict(0.0, bucket.name, wait), ()
        for bucket in buckets:
            bucket.connection_count += 1
            if bucket.connect_tokens is not None:
                bucket.connect_tokens.level -= 1
        return GO, buckets

    def disconnect(self, buckets: Sequence[Bucket]) -> None:
        """The connection that ``connect`` counted has ended."""
        for bucket in buckets:
            bucket.connection_count = max(0, bucket.connection_count - 1)

    def all_matching(self, facts: Facts, now: float) -> list[tuple[ThrottleConfig, Bucket]]:
        """Every entry that applies, with its bucket, for ``explain``."""
        return [
            (entry, self._bucket(entry, facts, now))
            for entry, when in self._entries
            if when.mismatch(facts) == ""
        ]

    def _bucket(self, entry: ThrottleConfig, facts: Facts, now: float) -> Bucket:
        key = (entry.name, _value_of(entry.per, facts))
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget_idle(now)
            bucket = self._buckets[key] = Bucket(entry)
        return bucket

    def _forget_idle(self, now: float) -> None:
        idle = [key for key, bucket in self._buckets.items() if bucket.is_idle(now)]
        for key in idle or list(self._buckets)[: BUCKETS_MAX // 10]:
            del self._buckets[key]


def limits_messages(entry: ThrottleConfig) -> bool:
    return any(limit is not None for limit in (entry.publish, entry.bytes, entry.inflight))


def limits_connections(entry: ThrottleConfig) -> bool:
    return entry.connections is not None or entry.connect_rate is not None


def _tokens(rate: float | None, burst_ms: int) -> _Tokens | None:
    return None if rate is None else _Tokens(rate, burst_ms)


def _value_of(per: str, facts: Facts) -> str:
    if per == "identity":
        return f"{facts.tenant}/{facts.identity.name}"
    if per == "client":
        return f"{facts.tenant}/{facts.client_id}"
    if per == "topic":
        return f"{facts.tenant}/{facts.topic or facts.subject}"
    if per in ("listener", "tenant", "client_ip"):
        return str(getattr(facts, per))
    return ""  # all, cluster: one bucket of its own
