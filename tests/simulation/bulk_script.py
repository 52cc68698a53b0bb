"""
Frames of hundreds of messages, with the same judgement as the script's.

The store has ways of its own for those: items that are alike are stored run by run, others column
by column, and a restart takes them in by the block. Beside them: once-keys that are released, and a
group that nobody acknowledges, which reads what came without a word in the log.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from protocols.remoting.matrix import MATRIX_ITEMS_MIN
from protocols.remoting.private import GroupOpen
from protocols.remoting.sending import NO_ONCE_KEY, SendSet, SetFlag
from store.engine import Engine
from tests.simulation.checks import expect
from tests.simulation.reference import Entry, Model
from tests.simulation.script import RETAINED_KEY, SUBJECTS, A, B, Item, Script, by_key
from tests.simulation.world import CONFIG

BULK = replace(CONFIG, segment_bytes=128 << 10, snapshot_bytes=64 << 10, cache_bytes_max=64 << 10)
UNACKED = "u"
SETS = (
    SendSet(int(SetFlag.IS_PRIMARY), "t", 0, (A,)),
    SendSet(int(SetFlag.IS_PRIMARY), "t", 1, (A, B)),
    SendSet(int(SetFlag.IS_PRIMARY), "t", 0, ()),
    SendSet(0, "t", 0, (B,)),
)
RETAINED = SendSet(int(SetFlag.IS_PRIMARY | SetFlag.IS_RETAINED), "t", 0, (A, RETAINED_KEY))


class BulkScript(Script):
    """The script with larger steps."""

    def __init__(self, seed: int, **facts: Any) -> None:
        self.seen = 0
        """Position of the last entry that the unacknowledged group got."""

        super().__init__(seed, config=BULK, **facts)
        if seed % 2:  # the short way for groups that nobody acks ends with the first late entry
            self.steps = [step for step in self.steps if step != self.late_entry]
        self.steps += [
            *[self.send_runs] * 3,
            *[self.send_columns] * 3,
            *[self.read_unacked] * 4,
            *[self.release_keys] * 2,
        ]
        self._open_unacked()

    def _come_back(self) -> None:
        super()._come_back()
        self._open_unacked()

    # ── sends ───────────────────────────────────────────────────────────────────────────

    def send_runs(self) -> None:
        """Up to four stretches of items that say the same, one size or several."""
        items: list[Item] = []
        sizes = self.random.choice([(20,), (20,), (0, 60)])
        for _ in range(self.random.choice([1, 2, 4])):
            one, order = self.random.choice(SETS), self.random.choice([0, 0, 1])
            size, qos = self.random.choice(sizes), self.random.choice([0, 1])
            items += [self._plain(one, size, order, qos) for _ in range(64)]
        while len(items) < MATRIX_ITEMS_MIN:
            one, body, order, _, _, qos = items[-1]
            items.append(self._plain(one, len(body) - 9, order, qos))
        self._send_many(items)

    def send_columns(self) -> None:
        """No two neighbours are alike."""
        items: list[Item] = []
        for _ in range(self.random.choice([MATRIX_ITEMS_MIN, 160])):
            order, qos = self.random.choice([0, 0, 1, 2]), self.random.choice([0, 1, 2])
            size = self.random.choice([0, 7, 20, 90])
            items.append(self._plain(self.random.choice(SETS), size, order, qos))
        if self.random.random() < 0.3:
            one = self._plain(RETAINED, 20, 0, 1)
            items[50] = (*one[:4], {"TG_SUBJECT": self.random.choice(SUBJECTS)}, one[5])
        if self.random.random() < 0.2:  # some that are refused, repeated or noted elsewhere
            items[60:64] = [self._item() for _ in range(4)]
        self._send_many(items)

    def _plain(self, one: SendSet, size: int, order: int, qos: int) -> Item:
        self.sent += 1
        return one, b"%08d:" % self.sent + bytes(size), order, NO_ONCE_KEY, {}, qos

    def _send_many(self, items: Sequence[Item]) -> None:
        gateway = self.random.choice(self.gateways)
        gateway.frame += 1
        self.send_items(gateway, items)

    # ── once-keys ───────────────────────────────────────────────────────────────────────

    def release_keys(self) -> None:
        """Their exchanges are over: they may name other messages."""
        keys = self.random.sample(self.once_keys, min(len(self.once_keys), 3))
        if self.jumps or not keys:
            return
        self._expect_known(self.engine, self.head, keys)
        self.engine.gateways.release_once(keys, self.now)
        self.change(partial(_forget, keys))
        self._expect_known(self.engine, self.head, keys)

    def _expect_known(self, engine: Engine, model: Model, keys: Sequence[bytes]) -> None:
        known = engine.gateways.find_once(keys, self.now).value
        expect("once-keys", list(known), [key in model.once for key in keys])

    def probe(self, engine: Engine, model: Model) -> None:
        if not self.jumps:
            self._expect_known(engine, model, self.once_keys)
        super().probe(engine, model)

    # ── a group that nobody acks ────────────────────────────────────────────────────────

    def _open_unacked(self) -> None:
        """It is gone with each start, and begins where its queues end."""
        spec = GroupOpen(name=UNACKED, reads=by_key((A, B)), is_volatile=True, is_auto_ack=True)
        self.engine.open_group(spec, self.now)
        self.seen = max([entry.position for entry in self._unacked_entries()], default=0)

    def _unacked_entries(self) -> list[Entry]:
        queues = self.head.queues
        return [entry for key in (A, B) for entry in queues.get(key, ())]

    def read_unacked(self) -> None:
        """Whatever came, durable or not (the group is as volatile), once, in order."""
        count = self.random.choice([1, 10, 200])
        ready = {entry.position for entry in self._unacked_entries() if entry.position > self.seen}
        wanted = sorted(ready)[:count]
        number = self.engine.group_number(UNACKED)
        stretches = self.engine.take_unacked(number, count, self.now)
        if stretches is None:
            granted = self.engine.take(number, count, self.now, holder=1)
            found = [one.position for one in granted]
        else:
            found = [at for stretch in stretches for at in stretch.positions]
        expect("unacknowledged", found, wanted)
        self.seen = max(found, default=self.seen)


def _forget(keys: Sequence[bytes], model: Model) -> None:
    for key in keys:
        model.once.pop(key, None)
