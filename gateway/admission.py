"""
What the throttle makes of a batch: how far it may go now, what is refused, what waits.

The buckets themselves are in ``throttle``. A batch that waits is looked at again later; until
then its client need not be read.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.backpressure import BackPressure
from gateway.clusters.batches import Batch, body_sizes
from gateway.throttle import Bucket, counts_inflight, fitting, piece, release, take
from protocols import clock
from protocols.canonical import SendResults
from protocols.errors import Code

ONE_BY_ONE: Final = frozenset({"mqtt", "amqp"})
"""Protocols without batches: what came in one read is no more than messages that came together."""


class Admitted(NamedTuple):
    """How far a run of messages was judged: those up to *goes_to* may go, the others may not."""

    judged_to: int
    goes_to: int
    waits: bool = False
    """Nothing goes for now: the batch comes back from here."""


class Admission:
    """Takes batches from their buckets; *resume* goes on with one that has waited."""

    def __init__(self, pressure: BackPressure, resume: Callable[[Batch], None]) -> None:
        self._pressure = pressure
        self._resume = resume
        self._loop = asyncio.get_running_loop()

    def admit(self, batch: Batch, buckets: tuple[Bucket, ...], start: int, stop: int) -> Admitted:
        """
        Take messages *start* to *stop* from *buckets*, or refuse them, or keep them for later.

        Of what a client sent one by one, the first may go though they came in one read with more
        than there is room for; a client's own batch is one.
        """
        if batch.admitted_to > start:  # they have waited their time
            return Admitted(batch.admitted_to, batch.admitted_to)
        now = clock.monotonic()
        sizes = body_sizes(batch.messages, start, stop)
        if batch.call.protocol in ONE_BY_ONE:
            del sizes[piece(buckets, sizes, now) :]
        count = len(sizes)
        stop = start + count
        verdict = take(buckets, count, sum(sizes), now)
        if verdict.refused_by:
            hint = f"throttle {verdict.refused_by}; retry in {verdict.retry_s:.1f} s"
            count = fitting(buckets, sizes, now) if batch.call.protocol in ONE_BY_ONE else 0
            batch.remaining += stop - start - count
            batch.fail(start + count, stop, Code.TOO_MANY_REQUESTS, hint)
            if not count:
                return Admitted(stop, start)
            verdict = take(buckets, count, sum(sizes[:count]), now)
        if not verdict.is_taken:
            return self._wait(batch, start, verdict.delay_s)
        if counts_inflight(buckets):
            _tell_when_stored(batch, buckets, count)
        if verdict.delay_s > 0:
            batch.admitted_to = start + count
            return self._wait(batch, start, verdict.delay_s)
        return Admitted(stop, start + count)

    def _wait(self, batch: Batch, start: int, delay_s: float) -> Admitted:
        self._pressure.hold(batch.call)
        self._loop.call_later(delay_s, self._go_on, batch)
        return Admitted(start, start, waits=True)

    def _go_on(self, batch: Batch) -> None:
        """Resumed first: it may be held again, and then nobody is told to read on."""
        self._resume(batch)
        self._pressure.let_go(batch.call)


def _tell_when_stored(batch: Batch, buckets: tuple[Bucket, ...], count: int) -> None:
    done = batch.done

    def released(results: SendResults) -> None:
        release(buckets, count)
        done(results)

    batch.done = released
