"""
What the gateway can ask of one store, whatever kind of broker it is.

``TidegateLink`` implements it with private codes. A link to an Apache broker implements the
same with standard codes (310 with INNER_MULTI_DISPATCH, pop, light-queue pull); what it cannot
keep is listed in ``capabilities``.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from gateway.clusters.batches import Run, known_code
from protocols.canonical import Delivery, Properties, QueueRef, ReceiptHandle, StoredMessage
from protocols.errors import Code, Refused
from protocols.groups import GroupSpec, PopRequest, QueueStat
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Peer
from protocols.remoting.settling import AckItem, MarkItem
from protocols.remoting.templates import RecordTemplate

ASK_S_MAX: Final = 5.0
"""For a standard request that brokers answer at once."""


ONCE_KEYS_MAX: Final = 4096
"""Once-keys of one request, released or looked for."""


class LinkState(Enum):
    """How far a link is."""

    DOWN = "down"  # circuit open: what must go here waits for a while and is refused
    LOST = "lost"  # a moment ago it was up: wait for it
    UP = "up"


class Capabilities(NamedTuple):
    """What this broker can do for us; all of it on our own store."""

    is_tidegate: bool = True
    has_fences: bool = True
    has_streams: bool = True
    has_once_keys: bool = True
    ends_pops: bool = False
    """A pop that waits can be cancelled: it takes nothing any more."""


TIDEGATE = Capabilities()

AckAnswered = Callable[[Sequence[tuple[int, int]] | None], None]
"""Gets (grant, code) per item, or None: the store is gone and the outcome unknown."""

HandlesAnswered = Callable[[Sequence[tuple[int, ReceiptHandle | None]] | None], None]
"""Gets (code, handle that counts from now on) per item, or None: the outcome is unknown."""


class StreamPort(Protocol):
    """The logical stream's end of one store's stream."""

    def arrived(self, link: "StoreLink", deliveries: Sequence[Delivery]) -> None:
        """Deliveries of one DELIVER frame, in entry order."""
        ...

    def ended(self, link: "StoreLink", code: Code, hint: str) -> None:
        """The store ended the stream for good (fenced, taken over, queue gone)."""
        ...

    def lost(self, link: "StoreLink") -> None:
        """The connection is gone and with it the stream; open it again when the link is up."""
        ...


class StoreLink(Protocol):
    """One store (a broker name of one cluster)."""

    cluster: str
    broker: str
    capabilities: Capabilities
    store_epoch: int
    """Rises with each start of the store, where it has one."""

    on_check: "Callable[[StoreLink, RemotingCommand], None] | None"
    """Gets CHECK_TRANSACTION_STATE (39) of this broker."""

    on_reply: "Callable[[Peer, RemotingCommand], None] | None"
    """Gets PUSH_REPLY_MESSAGE_TO_CLIENT (326) of this broker, and what to answer it at."""

    @property
    def state(self) -> LinkState: ...

    @property
    def is_congested(self) -> bool:
        """So much waits for this store that publishers should stop."""
        ...

    # ── sends ───────────────────────────────────────────────────────────────────────────

    def template(self, topic: str, text: Properties | bytes, born_host: bytes) -> RecordTemplate:
        """What all records of one head share, at this store."""
        ...

    def submit(self, run: Run) -> None:
        """Queue messages; they leave with ``flush`` at the end of the tick."""
        ...

    def flush(self) -> None: ...

    def take_pending(self, *, everything: bool = False) -> list[Run]:
        """Remove what is in no written frame, to route it again."""
        ...

    def take_withdrawn(self) -> list[Run]:
        """Remove what is in no written frame and was withdrawn (``Batch.is_withdrawn``)."""
        ...

    def give_up(self, keeps: Callable[[Run], bool]) -> bool:
        """
        It is away: refuse what is written and not answered, unless *keeps* says that it may wait
        for the store; whether anything does.
        """
        ...

    async def release_once(self, keys: Sequence[bytes]) -> None:
        """These once-keys may name other messages; durable when this returns. Raises Refused."""
        ...

    async def find_once(self, keys: Sequence[bytes]) -> Sequence[int]:
        """1 for each once-key that has a message there. Raises Refused."""
        ...

    # ── groups and streams ──────────────────────────────────────────────────────────────

    async def open_group(self, spec: GroupSpec, *, start: str = "") -> int:
        """Make the group known; its number here. *start* overrides the spec's. Raises Refused."""
        ...

    async def drop_group(self, name: str, owner_epoch: int) -> None: ...

    def new_stream(self) -> int:
        """A number for a stream, kept by it across reconnects."""
        ...

    async def open_stream(
        self,
        stream: int,
        group: int,
        spec: GroupSpec,
        port: StreamPort,
        *,
        credit: int,
        holds: Sequence[tuple[int, int]],
        is_resuming: bool,
    ) -> int:
        """How many deliveries come first because they were in flight. Raises Refused."""
        ...

    def set_credit(self, stream: int, total: int) -> None:
        """May deliver up to *total* since it was opened; leaves at the end of the tick."""
        ...

    async def reclaim_credit(self, stream: int, total: int) -> None:
        """Lower the total; when this returns, nothing beyond it is on its way."""
        ...

    async def close_stream(self, stream: int) -> None:
        """End it; what was acked before is done, the rest returns."""
        ...

    async def retire_stream(self, stream: int) -> None:
        """Nothing new goes to it; when this returns, nothing is on its way either."""
        ...

    def ack(self, epoch: int, items: Sequence[AckItem], answered: AckAnswered | None) -> None:
        """
        Ack, change or release, coalesced per tick. *epoch*: in which these were granted.

        Without *answered* they are sent again after a lost connection until they are answered.
        """
        ...

    def ack_handles(
        self, changes: Sequence[tuple[ReceiptHandle, int, int]], answered: HandlesAnswered
    ) -> None:
        """Ack, change or release popped deliveries: (handle, ``AckAction``, delay ms) each."""
        ...

    def mark(self, epoch: int, items: Sequence[MarkItem]) -> None:
        """Write packet ids and stages; not awaited."""
        ...

    def renew(self, reason: str) -> None:
        """Connect anew, where a connection keeps anything: what was asked is not answered."""
        ...

    async def mark_durably(self, epoch: int, items: Sequence[MarkItem]) -> bool: ...

    async def pop(self, request: PopRequest, *, count: int, wait_ms: int) -> list[Delivery]: ...

    async def adopt(self, spec: GroupSpec, taker: str, invisible_ms: int) -> list[Delivery]:
        """What *taker* popped here and has not settled, under new handles; [] if nobody knows."""
        ...

    # ── queues ──────────────────────────────────────────────────────────────────────────

    async def create_queue(self, ref: QueueRef, policy: Mapping[str, int | str]) -> None: ...

    async def delete_queue(self, ref: QueueRef, group: str) -> QueueStat: ...

    async def purge_queue(self, ref: QueueRef, group: str) -> int: ...

    async def stat_queue(self, ref: QueueRef, group: str) -> QueueStat: ...

    async def retained(
        self, tenant: str, subject_filters: Sequence[str]
    ) -> list[StoredMessage]: ...

    # ── the rest ────────────────────────────────────────────────────────────────────────

    async def ask(
        self, command: RemotingCommand, *, timeout_s: float = ASK_S_MAX
    ) -> RemotingCommand:
        """A standard request that brokers of all kinds answer. Raises Refused."""
        ...

    async def fence(self, gateway: str, gateway_epoch: int) -> None: ...

    async def create_topic(self, topic: str, queue_count: int) -> int:
        """Unless it is there; how many queues it has."""
        ...

    async def read(
        self, topic: str, queue_id: int, offset: int, count: int, wait_ms: int
    ) -> tuple[list[StoredMessage], int, int]:
        """(messages, smallest offset, end offset)."""
        ...

    async def offset(self, topic: str, queue_id: int, at_ms: int) -> int: ...


# What a whole request's refusal means (``ResponseCode``); anything else is the store's fault.
CODES: Mapping[int, Code] = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.UNSUPPORTED,
    ResponseCode.SERVICE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.GO_AWAY: Code.HA_NOT_AVAILABLE,
    ResponseCode.MESSAGE_ILLEGAL: Code.MESSAGE_CORRUPTED,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.QUERY_NOT_FOUND: Code.NOT_FOUND,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.ILLEGAL_OPERATION: Code.PRECONDITION_FAILED,
    ResponseCode.POLLING_TIMEOUT: Code.MESSAGE_NOT_FOUND,
}


def refusal_of(answer: RemotingCommand, subject: str) -> Refused:
    """The refusal that a response with a code other than success is; our stores tell ours."""
    code = CODES.get(answer.code, Code.INTERNAL_SERVER_ERROR)
    told = answer.fields.get("code", "")
    if told.isdecimal():
        code = known_code(int(told))
    return Refused(code, subject, answer.remark or f"response code {answer.code}")
