"""The steps of the script: what gateways, consumers and operators do to a store, by chance."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from protocols.canonical import RELEASED_ONCE_PREFIX, QueueKind, queue_key
from protocols.errors import Code
from protocols.remoting.private import DirectoryWrite, IndexItem, Join, ReadItem
from protocols.remoting.sending import (
    ITEM,
    NO_ONCE_KEY,
    ItemFlag,
    SendFrame,
    SendSet,
    SetFlag,
    decode_send,
    decode_send_answer,
    encode_send,
    encode_set,
)
from store.answers import STORE_FULL, AppendRecord, Pending, TopicConfig
from store.engine import Engine
from tests.simulation.checks import expect
from tests.simulation.consumers import Consumers
from tests.simulation.power import drop_files, prepare_segment, write_snapshot
from tests.simulation.reference import Entry, Model, QueueName
from tests.simulation.simulated_disk import PowerLost
from tests.simulation.world import Gateway
from tests.store.engine_kit import filter_key, make_record

A, B = filter_key("a"), filter_key("b")
Q = queue_key("", QueueKind.AMQP, "q")
RETAINED_KEY = queue_key("", QueueKind.RETAINED, "r")
SUBJECTS = ("s/1", "s/2", "s/3")
KEYS: tuple[tuple[bytes, ...], ...] = ((), (A,), (B,), (A, B), (Q,), (A, Q))
SIZES = (0, 20, 20, 300, 2500)

Item = tuple[SendSet, bytes, int, bytes, dict[str, str], int]
"""(set, body, order key, once-key, properties, flags)."""


def by_topic(names: Sequence[str]) -> list[ReadItem]:
    return [ReadItem(tag=tag, topic=name) for tag, name in enumerate(names, 1)]


def by_key(keys: Sequence[bytes]) -> list[ReadItem]:
    return [ReadItem(tag=tag, key=key) for tag, key in enumerate(keys, 1)]


class Script(Consumers):
    """Set up once, then steps; ``run`` ends with a look at everything."""

    def __init__(self, seed: int, **facts: Any) -> None:
        self.jumps = seed % 3 == 0
        """The wall clock of this run jumps by hours; then once-keys are left alone."""

        self.once_keys: list[bytes] = []
        super().__init__(seed, **facts)
        self.is_set_up = False
        while not self.is_set_up:
            try:
                self._set_up()
            except PowerLost:
                self.crash("torn")
        self.steps: list[Callable[[], None]] = [
            *[self.send] * 7,
            *[self.append] * 2,
            *[self.consume] * 6,
            *[self.settle_deliveries] * 4,
            *[self.mark_deliveries] * 3,
            *[self.seal] * 5,
            *[self.write] * 8,
            *[self.drain] * 2,
            self.tell,
            *[self.tick] * 2,
            *[self.keep_house] * 2,
            *[self.configure] * 2,
            *[self.put_directory] * 2,
            self.lease,
            self.late_entry,
            self.change_reads,
            self.end_stream,
            self.take_over,
            self.purge,
            self.light_queue,
            self.repeat_frame,
        ]
        if self.is_tight:
            self.steps += [self.catch_up, self.keep_house, self.tick] * 3 + [self.leave_nothing]
        else:
            self.steps.append(self.fill_disk)

    def _set_up(self) -> None:
        put = self.engine.catalog.put_topic
        for name, count, perm in (("t", 2, 6), ("locked", 1, 4)):
            if name not in self.head.topics:
                put(TopicConfig(name, count, count, perm), self.now)
                self.change(partial(_put_topic, name=name, count=count))
        self.open("g", by_key((A, B)))
        self.open("f", by_key((A,)), is_fifo=True)
        self.open("s", by_key((A, B)), is_inherited=True)
        self.open("p", by_topic(("t",)), attempts_max=3, dead_letter_topic="%DLQ%p")
        self.drain()
        self.is_set_up = True

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.random.choice(self.steps)()
                if self.random.random() < 0.05:
                    self._fault()
            except PowerLost:
                self.crash(self.random.choice(["torn", "torn", "drop", "keep"]))
                self._come_back()
            except OSError as error:
                self.fail(error)
                self.crash("kill")
                self._come_back()
        self._end()

    def _end(self) -> None:
        self.disk.sync_errors = self.disk.write_errors = 0
        self.crash("torn")
        self._come_back()
        self.drain()
        self._check(self.disk.fork(self.seed))

    def _fault(self) -> None:
        fault = self.random.randrange(7)
        if fault == 0:
            self.disk.sync_errors = 1
        elif fault >= 5:
            self._close()
        elif fault == 1:
            self.disk.write_errors = 1
        elif fault == 2:
            self.crash("kill")
            self._come_back()
        else:
            self.disk.countdown = self.random.randrange(8)

    def _close(self) -> None:
        """A clean end, though the last sync may fail; then a start."""
        self.engine.close(self.now)
        self.disk.sync_errors = self.random.randrange(2)
        self.drain()
        self.crash(self.random.choice(["kill", "torn"]))
        self._come_back()

    def _come_back(self) -> None:
        """The gateways ask about their frames; what never ran goes into new ones."""
        self.disk.sync_errors = self.disk.write_errors = 0
        for gateway in self.gateways:
            open_frames, gateway.unanswered = gateway.unanswered, []
            ran = self.head.frames.get(gateway.name, {})
            for number in open_frames:
                pending = self.engine.gateways.settle(gateway.name, gateway.epoch, number, self.now)
                wanted = ran.get(number)
                expect(f"frame {number} ran", pending.value.did_run, wanted is not None)
                if wanted is not None:
                    answer = decode_send_answer(pending.value.answer)
                    expect(f"answer of {number}", list(answer.positions), wanted[0])
                if self.random.random() < 0.5:  # else the store is told by a later answer
                    gateway.answered = max(gateway.answered, number)

    # ── send ────────────────────────────────────────────────────────────────────────────

    def body(self) -> bytes:
        self.sent += 1
        return b"%d:" % self.sent + bytes(self.random.choice(SIZES))

    def send(self) -> None:
        gateway = self.random.choice(self.gateways)
        gateway.frame += 1
        self.send_items(gateway, [self._item() for _ in range(self.random.choice([1, 1, 2, 5]))])

    def send_items(self, gateway: Gateway, items: Sequence[Item]) -> None:
        frame = _frame(gateway, items)
        wanted = self._plan(gateway, items, len(frame.records))
        pending = self.engine.send(gateway.name, frame, self.now)
        answer = pending.value
        self.expect_waits(pending)
        codes = {index: code for index, (code, _) in answer.refused.items()}
        positions = list(answer.positions)
        expect("refused", codes, wanted[1])
        expect("offsets", list(answer.offsets), wanted[0])
        result = (positions, wanted[0], codes)
        self.change(
            partial(_store_frame, gateway.name, gateway.frame, items, result, self.now.wall_ms)
        )
        number = gateway.frame
        gateway.unanswered.append(number)

        def answered(done: Pending[Any]) -> None:
            if done.error is None:
                gateway.unanswered.remove(number)
                gateway.answered = number

        pending.notify = answered

    def _item(self) -> Item:
        random = self.random
        topic = "locked" if random.random() < 0.1 else "t"
        keys = random.choice(KEYS)
        flags, properties, extra = int(SetFlag.IS_PRIMARY), {}, 1
        body = self.body()
        if random.random() < 0.15:
            flags |= SetFlag.IS_RETAINED
            keys = (*keys, RETAINED_KEY)
            properties = {"TG_SUBJECT": random.choice(SUBJECTS)}
            if random.random() < 0.3:
                extra |= ItemFlag.RETAIN | ItemFlag.CLEARS_RETAINED
        elif keys and random.random() < 0.2:
            flags = 0  # a copy: in no message queue
        queue_id = 0 if topic == "locked" else random.randrange(2)
        once_key = NO_ONCE_KEY
        if not self.jumps and random.random() < 0.15:
            if self.once_keys and random.random() < 0.4:
                once_key = random.choice(self.once_keys)
            else:
                start = self.random.choice([b"once", RELEASED_ONCE_PREFIX + b"\0"])
                once_key = start + b"%012d" % self.sent
                self.once_keys.append(once_key)
            extra |= ItemFlag.HAS_ONCE_KEY
        order = random.choice([0, 0, 1, 2, 3])
        return SendSet(flags, topic, queue_id, keys), body, order, once_key, properties, extra

    def _plan(
        self, gateway: Gateway, items: Sequence[Item], size: int
    ) -> tuple[list[int], dict[int, int]]:
        """(offsets, refusals by item) that the frame should be answered with."""
        model = self.head.fork()
        is_full = not self.engine.room.has_room_for(size)
        stuck = model.stuck(gateway.name, gateway.answered)
        offsets: list[int] = []
        codes: dict[int, int] = {}
        for index, (one, body, order, once_key, _, flags) in enumerate(items):
            lights = [key for key in one.keys if key != Q or Q in model.queues]
            code = 0
            if one.topic == "locked" and one.flags & SetFlag.IS_PRIMARY:
                code = Code.FORBIDDEN
            elif not one.flags & SetFlag.IS_PRIMARY and not lights:
                code = Code.NOT_FOUND
            if is_full:
                code = STORE_FULL
            elif order in stuck:
                code = Code.PRECONDITION_FAILED
            if code:
                codes[index] = code
                offsets.append(-1)
                if order:
                    stuck.add(order)
                continue
            if flags & ItemFlag.HAS_ONCE_KEY and once_key in model.once:
                offsets.append(model.once[once_key][1])
                continue
            names = _names(model, one)
            is_primary = bool(one.flags & SetFlag.IS_PRIMARY)
            offset = len(model.queues[one.topic, one.queue_id]) if is_primary else -1
            offsets.append(offset)
            model.append(names, Entry(0, 0, body, order))
            if flags & ItemFlag.HAS_ONCE_KEY:
                model.once[once_key] = (0, offset)
        return offsets, codes

    def probe(self, engine: Engine, model: Model) -> None:
        """Order keys that stuck are stuck after the crash as well."""
        for gateway in self.gateways if "t" in model.topics else ():
            one = SendSet(int(SetFlag.IS_PRIMARY), "t", 0, ())
            items = [(one, b"?", order, NO_ONCE_KEY, {}, 1) for order in (1, 2, 3)]
            frame = _frame(gateway, items, gateway.frame + 2)
            if not engine.room.has_room_for(len(frame.records)):
                continue
            refused = engine.send(gateway.name, frame, self.now).value.refused
            stuck = model.stuck(gateway.name, gateway.answered)
            expect("stuck keys", {index + 1 for index in refused}, stuck)

    def append(self) -> None:
        """Standard codes."""
        body, queue_id = self.body(), self.random.randrange(2)
        order = self.random.choice([0, 1])
        record = AppendRecord("t", queue_id, make_record("t", body), (A,), order)
        is_full = not self.engine.room.has_room_for(len(record.record))
        (result,) = self.engine.append([record], self.now).value
        if is_full:
            expect("a full store answers", result.code, STORE_FULL)
            return
        entry = Entry(result.position, result.position, body, order)
        expect("offset", result.offset, len(self.head.queues["t", queue_id]))
        names: list[QueueName] = [("t", queue_id), A]
        self.change(lambda model: model.append(names, entry))

    def repeat_frame(self) -> None:
        """The answer got lost: the same frame again is the same answer, and nothing is stored."""
        gateway = self.random.choice(self.gateways)
        if not gateway.unanswered:
            return
        number = gateway.unanswered[-1]
        frame = _frame(gateway, [], number)
        answer = self.engine.send(gateway.name, frame, self.now).value
        expect("repeated frame", list(answer.positions), self.head.frames[gateway.name][number][0])

    def late_entry(self) -> None:
        entries = [one for one in self.head.queues["t", 0] if one.position < self.engine.confirmed]
        if entries:
            one = self.random.choice(entries)
            item = IndexItem(one.position, [B, A])
            ((_, code),) = self.engine.index(self.engine.epoch, [item], self.now).value
            if code == Code.MESSAGE_NOT_FOUND and self.is_tight:
                return
            expect("a late entry", code, Code.OK)
            position = self.engine._core.entries.positions[-1]
            entry = Entry(position, one.position, one.body, one.order)
            self.change(lambda model: model.append([B, A], entry))

    # ── operators ───────────────────────────────────────────────────────────────────────

    def configure(self) -> None:
        number = self.random.randrange(100)
        if number < 40:
            name, value = f"k{number % 3}", b"%d" % number if number % 2 else None
            self.expect_waits(self.engine.catalog.put_setting("kv", name, value, self.now))
            self.change(lambda model: _set(model.settings, name, value))
        elif number < 80:
            key = ("readers", "t", number % 2)
            self.engine.catalog.commit_offsets([(*key, number)], self.now)
            self.change(lambda model: model.offsets.__setitem__(key, number))
        elif number < 90:
            self.engine.catalog.put_topic(TopicConfig("x", 1, 1), self.now)
            self.change(partial(_put_topic, name="x", count=1))
        else:
            self.engine.catalog.delete_topic("x", self.now)
            self.change(lambda model: model.topics.pop("x", None) and None)

    def put_directory(self) -> None:
        key = f"d/{self.random.randrange(4)}"
        value = self.random.choice([b"one", b"two", None])
        version = self.head.version_of(key)
        wanted = self.random.choice([None, version, version + 1])
        gateway = self.random.choice([*self.leases, ""])
        epoch = self.leases[gateway][0] if gateway else 0
        write = DirectoryWrite(
            key=key, value=value, if_version=wanted, is_bound=bool(gateway) and value is not None
        )
        put = self.engine.gateways.directory_put(gateway, epoch, [write], self.now)
        ((did_win, _),) = put.value
        expect("a conditional write wins", did_win, wanted in (None, version))
        if did_win:
            owner = (gateway, epoch) if write.is_bound else ("", 0)
            self.change(lambda model: model.put(key, value, owner) and None)

    def lease(self) -> None:
        name = self.random.choice(["gw1", "gw2"])
        found = self.leases.get(name)
        monotonic = self.now.monotonic
        if found is not None and self.random.random() < 0.6:
            expect("renewed", self.engine.gateways.renew(name, found[0], 0, self.now), True)
            self.leases[name] = (found[0], monotonic)
            return
        if found is not None:
            self.engine.gateways.leave(name, found[0], self.now)
            self._lease_ended(name)
            return
        request = Join(gateway=name, instance="i")
        epoch = self.engine.gateways.join(request, self.now).value.gateway_epoch
        self.leases[name] = (epoch, monotonic)
        (record,) = [one for one in self._written() if one.key == f"gateway/{name}"]
        value = record.value
        self.change(lambda model: model.put(f"gateway/{name}", value, (name, epoch)) and None)

    def light_queue(self) -> None:
        """A queue that somebody declares and deletes, with its group."""
        if Q in self.head.queues:
            self.engine.light_queues.drop(Q, "q", self.now)
            self.change(_drop_q)
        else:
            self.engine.light_queues.create(Q, "q", {}, self.now)
            self.change(lambda model: model.queues.__setitem__(Q, []))
            self.open("q", by_key((Q,)))

    def change_reads(self) -> None:
        """A subscription comes or goes."""
        keys = self.random.choice([(A, B), (A,), (B,)])
        self.open("g", by_key(keys))

    def fill_disk(self) -> None:
        """No room for messages; acks and configuration go on."""
        self.disk.free = self.random.choice([0, 1 << 40, 1 << 40])
        self.turn_clock(1.5)
        self.tick()

    def tick(self) -> None:
        jump_s = self.random.choice([0, 0, 3600, -3600]) if self.jumps else 0
        self.turn_clock(self.random.choice([0.01, 0.5, 2.0, 6.0]), jump_s)
        self.let_time_decide()

    def keep_house(self) -> None:
        write_snapshot(self.engine, self.disk, self.now)
        if self.random.random() < 0.3:
            prepare_segment(self.engine, self.disk)
        self._seal()
        drop_files(self.engine, self.disk)

    def _seal(self) -> None:
        """The index of sealed segments goes to files, step by step, other work between."""
        work = self.sealing or self.engine.background.seal_due()
        self.sealing = None
        if work is None:
            return
        while not work.gather():
            pass
        if self.random.random() < 0.5:
            work.execute(self.disk)
            while not work.release():
                pass
            self.engine.background.seal_done()
        else:
            self.sealing = work


# ── the reference's side ────────────────────────────────────────────────────────────────


def _set(table: dict[str, bytes], name: str, value: bytes | None) -> None:
    table.pop(name, None)
    if value is not None:
        table[name] = value


def _put_topic(model: Model, *, name: str, count: int) -> None:
    model.topics[name] = count
    for queue_id in range(count):
        model.queues.setdefault((name, queue_id), [])


def _drop_q(model: Model) -> None:
    model.groups.pop("q", None)
    model.drop_queue(Q)


def _names(model: Model, one: SendSet) -> list[QueueName]:
    """Queues that an item enters."""
    lights: list[QueueName] = [key for key in one.keys if key != Q or Q in model.queues]
    return [(one.topic, one.queue_id), *lights] if one.flags & SetFlag.IS_PRIMARY else lights


def _store_frame(
    gateway: str,
    number: int,
    items: Sequence[Item],
    result: tuple[list[int], list[int], dict[int, int]],
    wall_ms: int,
    model: Model,
) -> None:
    positions, offsets, codes = result
    for index, (one, body, order, once_key, properties, flags) in enumerate(items):
        position = positions[index]
        is_repeat = flags & ItemFlag.HAS_ONCE_KEY and once_key in model.once
        if index in codes or is_repeat:
            continue
        entry = Entry(position, position, body, order)
        model.append(_names(model, one), entry)
        if flags & ItemFlag.HAS_ONCE_KEY:
            model.once[once_key] = (position, offsets[index])
        if one.flags & SetFlag.IS_RETAINED:
            model.retained.pop(properties["TG_SUBJECT"], None)
            if not flags & ItemFlag.CLEARS_RETAINED:
                model.retained[properties["TG_SUBJECT"]] = entry
    model.frames.setdefault(gateway, {})[number] = result
    refusals = model.refusals.setdefault(gateway, {})
    refusals |= {items[index][2]: number for index in codes if items[index][2]}


def _frame(gateway: Gateway, items: Sequence[Item], number: int = 0) -> SendFrame:
    """As the wire would bring it."""
    sets = list(dict.fromkeys([one for one, *_ in items]))
    rows, records = [], []
    for one, body, order, once_key, properties, flags in items:
        records.append(make_record(one.topic, body, **properties))
        rows.append(ITEM.pack(len(records[-1]), sets.index(one), flags, order, 0, once_key))
    encoded = [encode_set(one) for one in sets]
    frame = number or gateway.frame
    return decode_send(encode_send(gateway.epoch, frame, gateway.answered, encoded, rows, records))
