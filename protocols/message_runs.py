"""Many messages of one head on their way in, without an object for each."""

from collections.abc import Sequence
from typing import overload

from protocols.canonical import Head, Message
from protocols.rows import Rows


class MessageRun(Sequence[Message]):
    """
    Messages that differ in nothing but their body, without an object for each.

    What an adapter hands in when it has hundreds of them from one read. The pipeline knows the
    type and goes over ``bodies``, or over ``rows`` where they are of one size; for everybody else
    it is a sequence of messages.
    """

    __slots__ = ("_bodies", "_count", "head", "rows", "size_bytes")

    def __init__(self, head: Head, bodies: list[bytes] | Rows) -> None:
        self.head = head
        self.rows: Rows | None = None
        self._bodies: list[bytes] | None = None
        if isinstance(bodies, list):
            self._bodies = bodies
            self._count = len(bodies)
            self.size_bytes = len(bodies[0]) if self._count == 1 else sum(map(len, bodies))
        else:
            self.rows = bodies
            self._count = len(bodies)
            self.size_bytes = self._count * bodies.size

    @property
    def bodies(self) -> list[bytes]:
        """Made when they are wanted."""
        if self._bodies is None:
            assert self.rows is not None
            self._bodies = self.rows.to_list()
        return self._bodies

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> "MessageRun": ...

    def __getitem__(self, index: int | slice) -> "Message | MessageRun":
        if isinstance(index, slice):
            return MessageRun(self.head, (self.bodies if self.rows is None else self.rows)[index])
        return Message(self.head, self.bodies[index])
