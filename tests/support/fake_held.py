"""Transactions, replies, questions to brokers of ``FakeServices``: what was asked for, by whom."""

from collections.abc import Callable, Mapping

from protocols.errors import Code, Refused
from protocols.rocketmq import BrokerAnswer, HalfCheck, HalfPlace, Push, Reply


class FakeHeld:
    """Implements ``HeldMessages`` over nothing: tests look at the lists and ask questions."""

    def __init__(self) -> None:
        self.ended: list[tuple[HalfPlace, bool]] = []
        self.recalled: list[tuple[str, str]] = []
        self.checks: dict[str, list[Callable[[HalfCheck], None]]] = {}
        self.refuses: Code | None = None

    async def end_transaction(self, place: HalfPlace, *, is_commit: bool) -> None:
        if self.refuses is not None:
            raise Refused(self.refuses, place.group, "as the test wants it")
        self.ended.append((place, is_commit))

    async def recall(self, topic: str, handle: str) -> str:
        if self.refuses is not None:
            raise Refused(self.refuses, topic, "as the test wants it")
        self.recalled.append((topic, handle))
        return "recalled-id"

    def answer_checks(self, group: str, check: Callable[[HalfCheck], None]) -> Callable[[], None]:
        checks = self.checks.setdefault(group, [])
        checks.append(check)

        def undo() -> None:
            checks.remove(check)
            if not checks:
                self.checks.pop(group, None)

        return undo


class FakeBrokers:
    """Implements ``Brokers``: what was asked, answered by the next of ``answers``."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int, dict[str, str], bytes]] = []
        self.answers: list[BrokerAnswer] = []
        self.brokers: list[str] = ["broker-a"]

    @property
    def cluster(self) -> str:
        return "fake-cluster"

    def names(self, topic: str) -> list[str]:
        return self.brokers

    async def ask(
        self,
        topic: str,
        broker: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        wait_ms: int = 0,
    ) -> BrokerAnswer:
        self.asked.append((topic, broker, code, dict(fields), body))
        if not self.answers:
            raise Refused(Code.HA_NOT_AVAILABLE, broker, "the store is away")
        return self.answers.pop(0)


class FakeReplies:
    """Implements ``Replies``: answers reach whoever waits under their id."""

    def __init__(self) -> None:
        self.waiting: dict[str, Push] = {}

    async def asking(
        self, topic: str, request_id: str, wait_ms: int, push: Push
    ) -> tuple[str, str]:
        self.waiting[request_id] = push
        return "requests@fake", "fake-cluster"

    async def answer(self, reply: Reply) -> None:
        push = self.waiting.pop(reply.request_id, None)
        if push is None or reply.to != "requests@fake":
            raise Refused(Code.INTERNAL_ERROR, reply.topic, "nobody waits for this answer")
        await push(reply)
