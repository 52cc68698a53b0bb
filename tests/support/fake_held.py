"""Transactions and recalls of ``FakeServices``: what was asked for, and who may be asked back."""

from collections.abc import Callable

from protocols.errors import Code, Refused
from protocols.pipeline import HalfCheck, HalfPlace


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
