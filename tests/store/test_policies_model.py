"""
Queues with policies beside a model that is a list and a few rules: what is ready, what is out, what
was handed over and why, after any sequence of what clients, time and restarts do.
"""

from collections.abc import Callable
from random import Random

import pytest

from protocols.errors import Code
from protocols.remoting.settling import AckAction
from store.answers import Granted
from store.policies.terms import DROP_HEAD, NONE, REJECT, REJECT_DEAD_LETTER, Terms, terms_of
from tests.store.engine_kit import body_of
from tests.store.test_engine_policies import KEY, LETTERS, Store
from tests.store.test_index_files import snapshot

STEPS = 60
HOLDER = 1
ACTIONS = (AckAction.ACK, AckAction.ACK, AckAction.CHANGE, AckAction.RELEASE, AckAction.REJECT)


class Message:
    """One body; they are numbered, and compared, in the order of sending."""

    def __init__(self, number: int, level: int, expires_ms: int) -> None:
        self.number = number
        self.body = b"%d:" % number + bytes(number % 7 * 10)
        self.level = level
        self.expires_ms = expires_ms
        self.attempts = 0


class Model:
    """What the pages say, without an index."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.ready: list[Message] = []
        self.out: list[Message] = []
        self.letters: list[tuple[bytes, str]] = []
        self.stored_count = 0

    def line(self, level: int) -> list[Message]:
        found = [one for one in self.ready if one.level == level]
        return sorted(found, key=lambda one: one.number)

    def lines(self) -> list[list[Message]]:
        return [self.line(level) for level in range(self.terms.levels, -1, -1)]

    def put(self, message: Message) -> bool:
        if self.terms.overflow in (REJECT, REJECT_DEAD_LETTER) and not self._fits(message):
            if self.terms.overflow == REJECT_DEAD_LETTER:
                self.leave(message, "maxlen")
            return False
        self.ready.append(message)
        self.stored_count += 1
        return True

    def _fits(self, message: Message) -> bool:
        count, size = len(self.ready) + 1, self.size + len(message.body)
        too_many = self.terms.max_length != NONE and count > self.terms.max_length
        return not too_many and (self.terms.max_bytes == NONE or size <= self.terms.max_bytes)

    @property
    def size(self) -> int:
        return sum([len(one.body) for one in self.ready])

    def leave(self, message: Message, reason: str) -> None:
        if self.terms.dead_letter:
            self.letters.append((message.body, reason))

    def enforce(self, now_ms: int) -> None:
        for line in self.lines():
            self.expire(line, now_ms)
        if not self.terms.has_limit or self.terms.overflow != DROP_HEAD:
            return
        for line in self.lines():
            while line and self._is_too_much():
                self.ready.remove(line[0])
                self.leave(line.pop(0), "maxlen")

    def _is_too_much(self) -> bool:
        limit, bytes_limit = self.terms.max_length, self.terms.max_bytes
        is_long = limit != NONE and len(self.ready) > limit
        return is_long or (bytes_limit != NONE and self.size > bytes_limit)

    def expire(self, line: list[Message], now_ms: int) -> None:
        while line and line[0].expires_ms <= now_ms:
            self.ready.remove(line[0])
            self.leave(line.pop(0), "expired")

    def take(self, count: int, now_ms: int) -> list[Message]:
        taken: list[Message] = []
        for line in self.lines():
            if len(taken) == count:
                break
            self.expire(line, now_ms)
            part = line[: count - len(taken)]
            gone = [one.expires_ms <= now_ms for one in part]
            taken += part[: gone.index(True)] if True in gone else part
            if True in gone:
                break
        for one in taken:
            self.ready.remove(one)
            one.attempts += 1
        self.out += taken
        return taken

    def settle(self, chosen: list[Message], action: AckAction) -> None:
        for one in chosen:
            self.out.remove(one)
            if action == AckAction.REJECT:
                self.leave(one, "rejected")
            elif action == AckAction.RELEASE:
                one.attempts -= 1
                self.ready.append(one)
            elif action == AckAction.CHANGE:
                self.give_back(one)

    def give_back(self, one: Message) -> None:
        if self.terms.attempts_max and one.attempts >= self.terms.attempts_max:
            self.leave(one, "delivery_limit")
        else:
            self.ready.append(one)


class Play:
    """Both of them, and a script."""

    def __init__(self, seed: int, policy: dict[str, int | str]) -> None:
        self.chance = Random(seed)
        self.store = Store()
        self.group = self.store.queue(**policy)
        self.model = Model(terms_of(policy))
        self.granted: dict[int, Granted] = {}
        self.number = 0

    @property
    def now_ms(self) -> int:
        return self.store.now.wall_ms

    def run(self) -> None:
        acts: list[Callable[[], None]] = [
            self.put, self.put, self.put, self.take, self.take, self.settle, self.settle,
            self.wait, self.wait, self.purge, self.restart, self.seal,
        ]  # fmt: skip
        for _ in range(STEPS):
            self.chance.choice(acts)()
            self.check()
        self.restart()
        self.check()
        while self.model.ready:
            self.store.later(1)
            self.take()
            self.check()
        assert sorted(self.store.letters()) == sorted(self.model.letters)

    def check(self) -> None:
        counts, model = self.store.counts(), self.model
        found = (counts.ready_count, counts.in_flight_count, counts.stored_count)
        assert found == (len(model.ready), len(model.out), model.stored_count)

    # ── acts ────────────────────────────────────────────────────────────────────────────

    def put(self) -> None:
        for _ in range(self.chance.choice((1, 2, 5))):
            level = self.chance.randrange(self.model.terms.levels + 1)
            ttl_ms = self.chance.choice((0, 0, 1500, 4000))
            times = [self.now_ms + ttl_ms] if ttl_ms else []
            if self.model.terms.expire_ms != NONE:
                times.append(self.now_ms + self.model.terms.expire_ms)
            message = Message(self.number, level, min(times, default=1 << 62))
            self.number += 1
            facts: dict[str, object] = {"TG_PRIORITY": str(level)} if level else {}
            self.store.send(
                message.body, keys=[KEY], set_flags=0, expires=times[0] if ttl_ms else 0, **facts
            )
            self.model.put(message)
        self.enforce()

    def enforce(self) -> None:
        self.store.enforce()
        self.model.enforce(self.now_ms)

    def take(self) -> None:
        count = self.chance.choice((1, 3, 8))
        granted = self.store.take(self.group, count, holder=HOLDER)
        self.store.drain()
        taken = self.model.take(count, self.now_ms)
        bodies = [body_of(self.store.engine.record_at(one.record_position)) for one in granted]
        assert bodies == [one.body for one in taken]
        assert [one.attempt for one in granted] == [one.attempts for one in taken]
        self.granted |= {one.number: grant for one, grant in zip(taken, granted, strict=True)}

    def settle(self) -> None:
        out = self.model.out
        chosen = self.chance.sample(out, self.chance.randrange(len(out) + 1))
        action = self.chance.choice(ACTIONS)
        if chosen:
            grants = [self.granted.pop(one.number) for one in chosen]
            assert set(self.store.ack(self.group, grants, action)) == {Code.OK}
            self.model.settle(chosen, action)
        self.enforce()

    def wait(self) -> None:
        self.store.later(self.chance.choice((0.1, 1.0, 3.0)))
        self.enforce()

    def purge(self) -> None:
        if self.chance.random() < 0.3:
            self.store.engine.light_queues.purge(KEY, "amqp//q", self.store.now)
            self.store.drain()
            self.model.ready.clear()

    def seal(self) -> None:
        self.store.seal()

    def restart(self) -> None:
        """Killed: what was out comes back when its consumer is there again."""
        if self.chance.random() < 0.5:
            snapshot(self.store)
        self.store.restart()
        self.store.engine.resume(self.group, HOLDER, [], self.store.now)
        self.store.drain()
        for one in sorted(self.model.out, key=lambda one: one.number):
            self.model.give_back(one)
        self.model.out.clear()
        self.granted.clear()
        self.enforce()


POLICIES: tuple[dict[str, int | str], ...] = (
    {"max_length": 6, "expire_ms": 3000, "delivery_limit": 1, **LETTERS},
    {"max_length": 6, "max_bytes": 150, "max_priority": 3, "delivery_limit": 2, **LETTERS},
    {"expire_ms": 3000, "max_priority": 2, **LETTERS},
    {"max_length": 6, "overflow": "reject", "max_priority": 2, "expire_ms": 4000, **LETTERS},
    {"max_bytes": 200, "overflow": "reject-dead-letter", "delivery_limit": 1, **LETTERS},
    {"max_length": 0, "max_priority": 1},
    {},
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: " ".join(policy))
@pytest.mark.parametrize("seed", range(3))
def test_the_queue_is_what_the_model_says(seed: int, policy: dict[str, int | str]) -> None:
    Play(seed, policy).run()
