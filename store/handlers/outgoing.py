"""
One standing stream, and the DELIVER frame that a tick builds for a connection.
"""

from array import array
from collections.abc import Sequence

from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from protocols.remoting.delivering import join_deliver, pack_run
from protocols.remoting.private import FRAME_BYTES_MAX, FRAME_ITEMS_MAX, PrivateCode
from store.groups.unacked import Stretch
from store.handlers.connection import Connection
from store.handlers.presence import GatewayKey

ITEM_BYTES = 40
"""What a delivery adds to a frame beside its record, roughly: its item and its read tags."""

FRAME_RESERVE = 64 << 10
"""Left free in a frame for heads and read tags, which ``ITEM_BYTES`` only estimates."""


class Stream:
    """One standing pop of one group for one gateway."""

    __slots__ = (
        "connection",
        "credit",
        "gateway",
        "group",
        "holder",
        "is_exclusive",
        "is_retired",
        "lost_at",
        "member",
        "number",
        "priority",
        "sent",
    )

    def __init__(
        self, connection: Connection, gateway: GatewayKey, number: int, group: int, holder: int
    ) -> None:
        self.connection = connection
        self.gateway = gateway
        self.number = number
        """Chosen by the gateway; names the stream on its connection."""

        self.group = group
        self.holder = holder
        """What the engine knows its deliveries by."""

        self.credit = 0
        self.sent = 0
        self.is_exclusive = False
        """Nobody else may read the group."""

        self.priority = 0
        """Streams with a lower one get what those with a higher one have no credit for."""

        self.member = ""
        """Its name to strategies that hash."""

        self.is_retired = False
        """It takes nothing any more, and waits for what is out to be settled."""

        self.lost_at: float | None = None
        """When its connection was lost; its deliveries wait so long for a resume."""


class Outbox:
    """The DELIVER of one connection and tick, being built as packed pieces."""

    __slots__ = (
        "_bottom",
        "_indexed_count",
        "_indexes",
        "_top",
        "byte_count",
        "connection",
        "deliveries",
        "is_slow",
        "lengths",
        "positions",
        "records",
        "runs",
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_slow = connection.peer.is_slow
        """The gateway leaves much unread: it gets nothing more in this tick."""

        self.records: list[bytes | memoryview] = []
        """Bytes of all records, neighbours as one piece."""

        self.positions = array("Q")
        self.lengths: list[int] = []
        """Of each record."""

        self.deliveries: list[bytes] = []
        self.runs: list[bytes] = []
        self._indexes: dict[int, int] = {}
        self._indexed_count = 0
        """So many records of the table can be found; the others when somebody asks."""

        self._bottom, self._top = 0, -1
        """Between them lie the positions of all records."""

        self.byte_count = 0

    @property
    def indexes(self) -> dict[int, int]:
        """Position of a record → where it stands in the table."""
        count, indexed = len(self.positions), self._indexed_count
        if indexed < count:
            places = zip(self.positions[indexed:], range(indexed, count), strict=True)
            self._indexes.update(places)
            self._indexed_count = count
        return self._indexes

    @property
    def room(self) -> int:
        """Deliveries that still fit; an estimate by bytes, exact by count."""
        if self.byte_count >= FRAME_BYTES_MAX >> 1:
            return 0
        return FRAME_ITEMS_MAX - len(self.deliveries) - len(self.runs)

    @property
    def is_empty(self) -> bool:
        return not self.deliveries and not self.runs

    def would_overflow(self, record_bytes: int) -> bool:
        """Whether the frame must leave before a record of so many bytes is added."""
        is_large = self.byte_count + record_bytes > FRAME_BYTES_MAX - FRAME_RESERVE
        return not self.is_empty and (is_large or len(self.deliveries) >= FRAME_ITEMS_MAX)

    def add_records(
        self,
        positions: Sequence[int],
        lengths: Sequence[int],
        records: Sequence[bytes | memoryview],
        byte_count: int,
    ) -> int:
        """The index of the first in the table; *records*: the bytes of all, in order."""
        first = len(self.positions)
        bottom, top = positions[0], positions[-1]
        self._bottom = min(self._bottom, bottom) if first else bottom
        self._top = max(self._top, top)
        self.positions.extend(positions)
        self.lengths += lengths
        self.records += records
        self.byte_count += byte_count
        return first

    def unknown_count(self, positions: Sequence[int], at: int) -> int:
        """How many of *positions* from *at* on are not in the table."""
        indexes, stop = self.indexes, at + 1
        while stop < len(positions) and positions[stop] not in indexes:
            stop += 1
        return stop - at

    def known_count(self, positions: Sequence[int], at: int, first: int) -> int:
        """How many of *positions* from *at* on lie side by side in the table, from *first* on."""
        table = self.positions
        wanted = len(positions) - at
        if table[first : first + wanted] == array("Q", positions[at:]):
            return wanted
        count = 1
        while first + count < len(table) and table[first + count] == positions[at + count]:
            count += 1
        return count

    def add_stretch(self, stream: int, group: int, stretch: Stretch, store_epoch: int) -> None:
        """As few runs as its records make, of which the table may have some."""
        positions = stretch.positions
        count, at = len(positions), 0
        if positions[0] > self._top or positions[-1] < self._bottom:  # none is in the table
            self._add_run(stream, group, stretch, self._add_part(stretch, store_epoch), count)
            return
        while at < count:
            first = self.indexes.get(positions[at], -1)
            if first >= 0:
                stop = at + self.known_count(positions, at, first)
            else:
                stop = at + self.unknown_count(positions, at)
                part = stretch if stop - at == count else stretch.part(at, stop)
                first = self._add_part(part, store_epoch)
            self._add_run(stream, group, stretch, first, stop - at)
            at = stop

    def _add_part(self, part: Stretch, store_epoch: int) -> int:
        """Records that the table does not have; the index of the first."""
        size = part.byte_count + ITEM_BYTES * len(part.positions)
        if self.would_overflow(size):
            self.send(store_epoch)
        return self.add_records(part.positions, part.lengths, part.pieces, size)

    def _add_run(self, stream: int, group: int, stretch: Stretch, first: int, count: int) -> None:
        self.runs.append(pack_run(stream, group, 0, 1, stretch.flags, first, count, stretch.tags))
        self.byte_count += ITEM_BYTES

    def send(self, store_epoch: int) -> None:
        """Queue the DELIVER; the outbox starts anew."""
        if self.is_empty:
            return
        body = join_deliver(
            store_epoch, self.positions, self.lengths, self.records, self.deliveries, self.runs
        )
        command = RemotingCommand(PrivateCode.DELIVER, None, body, flag=ONEWAY_FLAG, is_binary=True)
        self.connection.peer.send((command,))
        self.records, self.positions, self.lengths = [], array("Q"), []
        self.deliveries, self.runs = [], []
        self._indexes.clear()
        self._indexed_count = 0
        self._bottom, self._top = 0, -1
        self.byte_count = 0
