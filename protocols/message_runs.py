"""Many messages of one head on their way in, without an object for each."""

from collections.abc import Sequence
from typing import overload

from protocols.canonical import Head, Message


class MessageRun(Sequence[Message]):
    """
    Messages that differ in nothing but their body, without an object for each.

    What an adapter hands in when it has hundreds of them from one read. The pipeline knows the
    type and goes over ``bodies``; for everybody else it is a sequence of messages.
    """

    __slots__ = ("bodies", "head")

    def __init__(self, head: Head, bodies: list[bytes]) -> None:
        self.head = head
        self.bodies = bodies

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> "MessageRun": ...

    def __getitem__(self, index: int | slice) -> "Message | MessageRun":
        if isinstance(index, slice):
            return MessageRun(self.head, self.bodies[index])
        return Message(self.head, self.bodies[index])
