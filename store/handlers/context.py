"""
What handlers work with: the engine, who is connected, what waits.

A handler is a plain function: it gets the context, the connection and the request, and returns
the answer, or None when the answer comes later (``when_durable``, ``Waits``). It never awaits:
one event loop serves all, and the engine is a library of quick calls.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from protocols import clock
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting.bodies import QueueData
from protocols.remoting.command import RemotingCommand
from protocols.remoting.plain_batches import Shapes
from protocols.remoting.private import GroupOpen
from protocols.remoting.records import NO_HOST, MessageIds, decode_record
from protocols.remoting.settling import AckAction, AckItem
from store.answers import Granted, Pending, TopicConfig
from store.config import StoreConfig
from store.engine import Engine
from store.handlers.answers import not_available
from store.handlers.appends import Appends
from store.handlers.backlog import Backlog
from store.handlers.client_table import ClientTable, QueueLocks
from store.handlers.comings import Comings
from store.handlers.connection import Connection
from store.handlers.presence import GatewayKey, Presences
from store.handlers.rates import Rates
from store.handlers.searches import Searches
from store.handlers.streams import Streams
from store.handlers.waits import Waits
from store.metrics import ServerCounters

if TYPE_CHECKING:
    from store.handlers.plain import Lane

logger = logging.getLogger("tidegate.store")

T = TypeVar("T")

FindQueues = Callable[[str, Callable[[Sequence[QueueData]], None]], None]
"""(topic, who is told which queues brokers have of it)."""


def call_now(then: Callable[[], object]) -> None:
    """For a store without name servers."""
    then()


@dataclass(slots=True, kw_only=True)
class Context:
    """One store, as its handlers see it."""

    config: StoreConfig
    engine: Engine
    waits: Waits
    appends: Appends
    streams: Streams
    presences: Presences
    searches: Searches
    topics_changed: Callable[[], None] = lambda: None
    """Tells the name servers of another topic table."""

    config_changes: int = 0
    """Changes of the configuration since the start: some of it shows in the topic table."""

    when_routed: Callable[[Callable[[], object]], None] = call_now
    """Calls what it gets when the name servers know the topics as they are, or are slow."""

    secret: str = ""
    """Shared secret of the cluster; empty: connections need no credential."""

    access_key: str = ""
    """The name that the cluster's requests are signed with."""

    address: str = ""
    """``host:port`` as advertised to clients and gateways."""

    ip_address: str = ""
    """The same as ``ip:port``, for store hosts of records."""

    store_host: bytes = b"\x00" * 8
    """``ip_address`` as records carry it."""

    id_prefix: str = ""
    """``store_host`` in hex: what offset message ids begin with."""

    ids: MessageIds = field(default_factory=lambda: MessageIds(NO_HOST, 0, 0))
    """Makes message ids for producers that set none."""

    system_topics: dict[str, TopicConfig] = field(default_factory=dict)
    """Names every broker registers; they are not in the log."""

    clients: ClientTable = field(default_factory=ClientTable)
    locks: QueueLocks = field(default_factory=QueueLocks)
    lanes: dict[tuple[str, str], "Lane"] = field(default_factory=dict)
    """(topic, queue id) → what plain sends there share."""

    shapes: Shapes = field(default_factory=Shapes)
    """Of client batches."""

    backlog: Backlog = field(default_factory=Backlog)
    comings: Comings = field(default_factory=Comings)
    rates: Rates = field(default_factory=Rates)
    owner_epochs: dict[int, int] = field(default_factory=dict)
    """Highest owner epoch that opened each group in this run."""

    pop_specs: dict[int, GroupOpen] = field(default_factory=dict)
    """Groups that clients pop, as they were opened last."""

    resets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """(group, topic, queue id) → offset that an operator set: the next pull is sent there."""

    find_queues: FindQueues | None = None
    """Where else a topic is; None: there is no name server to ask."""

    check_turn: int = 0
    """Producers of a group are asked in turn about its transactions."""

    now_ms: int = 0
    """Wall time when the read began whose requests are handled."""

    counters: ServerCounters = field(default_factory=ServerCounters)
    started: clock.Now = field(default_factory=clock.read)

    def topic(self, name: str) -> TopicConfig | None:
        """A topic of the log, or a system topic."""
        return self.engine.catalog.topics.get(name) or self.system_topics.get(name)

    def store_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at *offset* was stored; 0: there is none."""
        position = self.engine.entry_position(topic, queue_id, offset)
        if position < 0:
            return 0
        try:
            return decode_record(self.engine.record_at(position)).store_ms
        except Refused:
            return 0

    def pop_groups(self, group: str) -> list[str]:
        """Names of the engine's groups behind a RocketMQ group: one for each topic it pops."""
        prefix = f"rmq/{group}/"
        return [name for name in self.engine.group_names() if name.startswith(prefix)]

    def popped_topics(self, group: str) -> set[str]:
        return {name.split("/", 2)[2] for name in self.pop_groups(group)}

    def done_offset(self, group: str, topic: str, queue_id: int) -> int:
        """
        Offset below which everything is done for a RocketMQ group; -1: it has not begun.

        Readers by offset have committed it; of a group that pops the store knows.
        """
        return self.places(group, topic, queue_id)[0]

    def places(self, group: str, topic: str, queue_id: int) -> tuple[int, int]:
        """(``done_offset``, offset up to which messages were handed out); -1: not begun."""
        places = self.engine.group_places(f"rmq/{group}/{topic}", topic, queue_id)
        if places is not None:
            return places
        offset = self.engine.catalog.query_offset(group, topic, queue_id)
        return offset, offset

    def groups_seen(self) -> list[str]:
        """RocketMQ groups that have read or popped something, or are connected."""
        popped = {name.split("/", 2)[1] for name in self.engine.group_names() if name[:4] == "rmq/"}
        committed = self.engine.catalog.offset_groups()
        return sorted({*committed, *popped, *self.clients.consumer_groups()})

    @property
    def is_busy(self) -> bool:
        """More is waiting for the disk than we want to hold."""
        waiting = self.engine.pending_bytes + self.appends.byte_count
        return waiting > self.config.limits.pending_bytes_max

    def when_durable(
        self,
        connection: Connection,
        request: RemotingCommand,
        pending: Pending[T],
        make: Callable[[T], RemotingCommand],
    ) -> None:
        """Answer *request* with what *make* makes of the result, once it is durable."""
        if pending.is_done:
            connection.answer(request, make(pending.result()))
            return

        def notify(done: "Pending[T]") -> None:  # in quotes, or it is made for each answer
            if done.error is not None:
                connection.answer(request, not_available(request, str(done.error)))
            else:
                connection.answer(request, make(done.value))

        pending.notify = notify

    def when_topics_known(
        self, connection: Connection, request: RemotingCommand, pending: Pending[T]
    ) -> None:
        """The same for a change of topics: answered when who asks for routes will see it."""

        def answer() -> None:
            connection.answer(request, request.answer())

        def notify(done: "Pending[T]") -> None:
            if done.error is not None:
                connection.answer(request, not_available(request, str(done.error)))
            else:
                self.when_routed(answer)

        if pending.is_done:
            pending.result()
            self.when_routed(answer)
        else:
            pending.notify = notify

    def end_gateway(self, key: GatewayKey, code: Code, remark: str, now: Now) -> None:
        """This epoch of a gateway is over at this store, and every one before it."""
        for presence in list(self.presences.live()):
            if presence.key.gateway == key.gateway and presence.key.epoch <= key.epoch:
                self.presences.end(presence.key)
        self.streams.end_gateway(key, code, remark, now)

    def read_record(self, group: int, grant: Granted, now: Now) -> bytes | None:
        """The message of a delivery; None (and the entry done) if it cannot be read any more."""
        try:
            return self.engine.record_at(grant.record_position)
        except Refused as error:
            logger.error("entry %d of group %d is lost: %s", grant.position, group, error.hint)
            self.engine.ack(self.engine.epoch, (AckItem(group, grant.position, grant.grant),), now)
            return None

    def release(self, group: int, granted: Sequence[Granted], now: Now) -> None:
        """Put back what was taken and not sent; no attempt counts."""
        items = [AckItem(group, g.position, g.grant, AckAction.RELEASE) for g in granted]
        self.engine.ack(self.engine.epoch, items, now)

    def require_directory(self) -> None:
        """Raise Refused unless this is the directory store."""
        if not self.config.directory:
            raise Refused(Code.UNSUPPORTED, self.config.name, "this is not the directory store")


Handler = Callable[[Context, Connection, RemotingCommand], RemotingCommand | None]
