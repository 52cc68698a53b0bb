"""Groups, which read queues, and what is asked and told about their deliveries."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from protocols.canonical import QueueRef, ReceiptHandle
from protocols.errors import Code


class Start(Enum):
    """Where a group that a store does not know yet begins to read."""

    END = "end"  # what is stored from now on
    EARLIEST = "earliest"  # all that is kept
    EPOCH = "epoch"  # the start of the store's present epoch (a store that was down at open)


class Read(NamedTuple):
    """One queue of a group's read set."""

    queue: QueueRef | None = None
    """A light queue; None: the message queues of *topic*."""

    topic: str = ""
    tag: int = 0
    """Chosen by the opener, echoed in ``Delivery.reads``; unique within the group."""


class ShareStrategy(IntEnum):
    """Which of the streams of one group gets a message."""

    ROUND_ROBIN = 0
    RANDOM = 1
    STICKY = 2
    """The oldest stream, as long as it is there."""

    HASH_CLIENT = 3
    """By the publisher's client id."""

    HASH_TOPIC = 4
    """By the address of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """
    A group at every store that keeps one of its queues.

    Opening is idempotent: the same name again adopts the existing cursor; *reads* is then the
    new read set (added queues start at *start*, missing ones end here).
    """

    name: str
    """Unique per cluster: ``mqtt/<tenant>/<client id>``, ``share/…``, ``amqp/<vhost>/<queue>``,
    ``rmq/<group>/<topic>``."""

    reads: tuple[Read, ...]
    incarnation: int = 0
    """Directory version of its creation; 0 for groups the directory does not know."""

    owner_epoch: int = 0
    """Fencing for sessions: each store keeps the highest and refuses lower ones; 0: none."""

    is_volatile: bool = False
    """No logged cursor, gone at a restart and when its stream ends; visible before the sync."""

    is_auto_ack: bool = False
    """A delivery is done when it is handed over (volatile groups whose gateway keeps count)."""

    is_inherited: bool = False
    """Deliveries of a lost stream stay in flight for the next owner (sessions)."""

    is_fifo: bool = False
    """Messages of one order key are handed out one after the other."""

    is_exclusive: bool = False
    """A stream opened with it is the only one: refused (FORBIDDEN) while there are others, and
    others while it is open."""

    is_priority: bool = False
    """Of a topic whose message queues are priorities: higher ones are handed out first."""

    stream_priority: int = 0
    """Of a stream opened with it: others with a higher one are served first as long as they have
    credit."""

    strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN
    """How the streams of the group share; that of the stream opened last holds for all."""

    member: str = ""
    """Names a stream opened with it to the hashing strategies, alike at all stores."""

    attempts_max: int = 0
    """After so many attempts a message goes to the dead-letter topic; 0: no limit."""

    dead_letter_topic: str = ""
    skips_qos0_on_resume: bool = False
    start: Start = Start.END
    cluster: str = ""
    policy: tuple[tuple[str, int | str], ...] = ()
    """Of the group itself, at each store: ``max_length`` (ready entries), ``overflow``
    (``drop-head`` or ``drop-new``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopRequest:
    """Take up to *count* messages of *group* and hide them for *invisible_ms*."""

    group: GroupSpec
    count: int
    invisible_ms: int
    wait_ms: int = 0
    """Long poll: how long to wait for the first message."""

    queue_id: int = -1
    """Only this message queue of the topic; -1: all."""

    broker: str = ""
    """Only this store; empty: all stores of the cluster."""

    tags: tuple[str, ...] = ()
    """Only these tags; others are done for this group. Empty: all."""

    sql: str = ""
    """Only messages that this SQL92 expression matches; others are done for this group."""

    attempt_id: str = ""
    """Names this receive of the client: the same again gets what its answer may have lost."""

    taker: str = ""
    """The client, if any gateway may ask what it holds (``Pipeline.adopt``)."""

    is_counted: bool = False
    """Deliveries are to say how many more are ready, where the store can."""


class InvisibleTimeChange(NamedTuple):
    """A new invisible time for one delivery; 0 returns it to its place at once."""

    handle: ReceiptHandle
    invisible_ms: int
    is_renewal: bool = False
    """Still in the client's hands: its handle stays good (where the broker can do that)."""


class AckResult(NamedTuple):
    """What became of one ack or change."""

    code: Code = Code.OK
    handle: ReceiptHandle | None = None
    """After a change: the handle that counts from now on."""

    hint: str = ""


class QueueStat(NamedTuple):
    """Exact counts of one light queue and its group."""

    ready_count: int
    in_flight_count: int
    stored_count: int
    """Entries ever put in."""

    consumer_count: int = 0
    """Streams on its group, over all gateways."""
