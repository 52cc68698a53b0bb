"""
The crash script with a consumer that leaves a few messages in each segment: they are relocated.

Small messages, nearly all acknowledged at once, segments of 8 KiB that may go after a second; so
most of what a crash interrupts is a relocation, or the end of a segment that one emptied.
"""

from dataclasses import replace

from protocols.remoting.private import AckItem
from tests.simulation.crash_script import RECYCLING, CrashScript
from tests.store.engine_kit import body_of

MOVING = replace(RECYCLING, segment_bytes=8 << 10, snapshot_bytes=4 << 10)


class MovingScript(CrashScript):
    """One run, from one seed."""

    def __init__(self, seed: int) -> None:
        self.relocated_count = 0
        self.left: set[int] = set()
        """Positions that the consumer will not acknowledge."""

        super().__init__(seed, config=MOVING)

    def _bodies(self, count: int) -> list[bytes]:
        first, self.sent = self.sent, self.sent + count
        size = self.random.choice([0, 20, 200])
        return [b"%d:" % number + bytes(size) for number in range(first, first + count)]

    def _step(self) -> None:
        act = self.random.choice(
            [self._send, self._send, self._consume, self._consume, self._commit, self._commit,
             self._commit, self._tick, self._tick, self._snapshot, self._snapshot, self._arm],
        )  # fmt: skip
        act()

    def _start(self) -> None:
        if self.crashes:
            self.relocated_count += self.engine.counters.relocated
        super()._start()

    def _consume(self) -> None:
        granted = self.engine.take(self.group, 32, self.now, holder=self.holder)
        bodies: list[bytes] = []
        items: list[AckItem] = []
        for one in granted:
            body = body_of(self.engine.record_at(one.record_position))
            assert body not in self.consumed
            if one.position not in self.left and self.random.random() < 0.03:
                self.left.add(one.position)
            if one.position not in self.left or self.random.random() < 0.02:
                items.append(AckItem(self.group, one.position, one.grant))
                bodies.append(body)
        self.ack_tried.update(bodies)
        pending = self.engine.ack(self.engine.epoch, items, self.now)
        pending.notify = lambda done: self.consumed.update(bodies)
        if pending.is_done:
            self.consumed.update(bodies)
