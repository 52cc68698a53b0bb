"""
What RocketMQ's clients need beside the four verbs: transactions, request and reply, their brokers.

Implemented in ``gateway/``.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from protocols.canonical import StoredMessage

# ── held messages ───────────────────────────────────────────────────────────────────────


class HalfPlace(NamedTuple):
    """Where a half message lies: what its transaction is ended by."""

    cluster: str
    broker: str
    position: int
    table_offset: int
    """Its queue offset as the broker told it; brokers of ours tell the position again."""

    group: str
    """Producer group."""

    message_id: str = ""
    """Of the half message; "": the client has not said it."""


class HalfCheck(NamedTuple):
    """A store asks how the transaction of a half message ended."""

    place: HalfPlace
    message: StoredMessage


class HeldMessages(Protocol):
    """What was stored and nobody sees yet: delayed messages and half messages."""

    async def end_transaction(self, place: HalfPlace, *, is_commit: bool) -> None:
        """Commit or roll back. Raises Refused (ended already, another group, store away)."""
        ...

    async def recall(self, topic: str, handle: str) -> str:
        """Withdraw a delayed message by RocketMQ's handle; its message id. Raises Refused."""
        ...

    def answer_checks(self, group: str, check: Callable[[HalfCheck], None]) -> Callable[[], None]:
        """
        Here is a live producer of *group*: *check* gets some of the stores' questions.

        Returns the undo.
        """
        ...


class Reply(NamedTuple):
    """An answer to a request of a RocketMQ client."""

    producer_group: str
    topic: str
    to: str
    """The client that waits, as its request named it."""

    request_id: str
    properties: str
    """In stored form."""

    body: bytes
    sys_flag: int = 0
    flag: int = 0
    born_ms: int = 0
    born_host: str = ""


Push = Callable[[Reply], Awaitable[None]]
"""Hands an answer to the client that waits. Raises Refused."""


class Replies(Protocol):
    """Request and reply of RocketMQ clients: answers are handed over and stored nowhere."""

    async def asking(
        self, topic: str, request_id: str, wait_ms: int, push: Push
    ) -> tuple[str, str]:
        """
        A client is about to send a request to *topic*; *push* gets its answer.

        Returns the name under which answers find this gateway and the broker cluster whose reply
        topic they are sent to. Raises Refused.
        """
        ...

    async def answer(self, reply: Reply) -> None:
        """To who asked, wherever it is; done when it has it. Raises Refused."""
        ...


# ── brokers ─────────────────────────────────────────────────────────────────────────────


class BrokerAnswer(NamedTuple):
    """What a broker said to a RocketMQ request."""

    code: int
    """RocketMQ's response code; 0: done."""

    fields: Mapping[str, str]
    body: bytes
    remark: str


class Brokers(Protocol):
    """
    RocketMQ requests that only a broker can answer, handed on as they are: pops by handle, queries.

    Whoever asks has checked what the client may do. Raises Refused: no such broker, it is away.
    """

    @property
    def cluster(self) -> str:
        """Name of the default broker cluster."""
        ...

    def names(self, topic: str) -> list[str]:
        """Brokers that are up, of the clusters that the routes name; of the default for ""."""
        ...

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
        """
        *broker* of the clusters that the routes name for *topic* (its stored name); it may hold
        the request for *wait_ms*.
        """
        ...
