"""The short way in: sends whose messages are plain become runs, without an object a message."""

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Final

from protocols.canonical import DISPATCH_KEY
from protocols.errors import Code, PeerError
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import SendHeader
from protocols.remoting.matrix import np
from protocols.remoting.plain_batches import Batch, Rows
from protocols.remoting.plain_records import PlainRecords
from protocols.remoting.records import decode_properties
from store.answers import Pending, TopicConfig
from store.handlers.answers import not_available, response_code
from store.handlers.appends import Gathered, Seeming, WaitingPlain, answer_to_be
from store.handlers.connection import Connection
from store.handlers.context import Context
from store.late import is_addressed
from store.log.messages import tag_hash
from store.plain import PlainHead, PlainRows, PlainRun, RunResult

BATCH_COUNT_MAX: Final = 10_000
LANES_MAX: Final = 100_000
"""(Topic, queue) pairs whose shared bytes are remembered."""

DISPATCHED: Final = (DISPATCH_KEY,)
REGION: Final = "DefaultRegion"
SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
TRANSACTION_BITS: Final = 0xC
V6_BITS: Final = 0x30
OK: Final = int(Code.OK)
IDS_MIN: Final = 64
"""Message ids from which columns are faster (measured)."""

_BATCH_HEAD: Final = struct.Struct(">IIIiI")
_U16: Final = struct.Struct(">H")

Member = tuple[bytes | memoryview, int, bytes]
"""(body, flag, properties text)."""


class Lane(PlainHead):
    """What all sends to one message queue share, checked once."""

    __slots__ = ("config", "records", "topic_config", "version")

    def __init__(self, context: Context, topic: TopicConfig, queue_id: int) -> None:
        name = topic.name
        super().__init__(name, queue_id, DISPATCHED if is_addressed(name) else ())
        self.topic_config = topic
        self.version = context.engine.catalog.topics_version
        self.config = context.config
        self.records = PlainRecords(name, queue_id, context.store_host, context.config.cluster)


def learn_lane(context: Context, header: SendHeader, config: TopicConfig) -> None:
    """A send was checked: the next plain ones to its queue need no look, until a topic changes."""
    queue_id = header.queue_id
    is_plain = 0 <= queue_id < config.write_queue_count and not config.attributes
    if is_plain and header.topic[0] != "%":
        if len(context.lanes) >= LANES_MAX:
            context.lanes.clear()
        context.lanes[header.topic, str(queue_id)] = Lane(context, config, queue_id)


def _renewed(context: Context, lane: Lane) -> bool:
    """Whether *lane* is still right: the topic that changed is mostly another one than its own."""
    catalog = context.engine.catalog
    if catalog.topics.get(lane.topic) is not lane.topic_config:
        return False
    lane.version = catalog.topics_version
    return True


def split_batch(body: bytes | memoryview) -> list[Member]:
    """The members of a client batch (320). Raises PeerError if a length lies outside."""
    view = memoryview(body)
    members: list[Member] = []
    at, size_all = 0, len(view)
    unpack, unpack_size = _BATCH_HEAD.unpack_from, _U16.unpack_from
    while at < size_all:
        try:
            size, _, _, flag, body_size = unpack(view, at)
            start = at + 20
            (text_size,) = unpack_size(view, start + body_size)
        except struct.error as error:
            raise PeerError(f"batch: {error}") from error
        text_at = start + body_size + 2
        end = text_at + text_size
        if end != at + size or end > size_all:
            raise PeerError(f"batch: member of {size} bytes at {at} does not fit")
        members.append((view[start : start + body_size], flag, bytes(view[text_at:end])))
        at = end
    return members


def send_plain(context: Context, connection: Connection, request: RemotingCommand) -> bool:
    """
    Take in a send (310, 320) whose queue is known and whose messages are plain.

    False: nothing happened, it must be looked at. Raises PeerError for a malformed batch.
    """
    fields = request.fields
    lane = context.lanes.get((fields.get("b", ""), fields.get("e", "")))
    if (
        lane is None
        or lane.config is not context.config
        or (lane.version != context.engine.catalog.topics_version and not _renewed(context, lane))
        or context.appends.is_pressed
    ):
        return False
    try:
        sys_flag, born_ms = int(fields.get("f") or 0), int(fields.get("g") or 0)
        flag, reconsume_count = int(fields.get("h") or 0), int(fields.get("j") or 0)
    except ValueError:
        return False
    is_strange = (sys_flag | reconsume_count) >> 31 or born_ms >> 62  # below zero or too large
    if sys_flag & (TRANSACTION_BITS | V6_BITS) or is_strange:
        return False
    is_batch = request.code == SEND_BATCH or fields.get("m") == "true"
    born_ms = born_ms or context.now_ms
    facts = (sys_flag, born_ms, connection.host, reconsume_count)
    bytes_max = lane.config.limits.message_bytes_max
    if is_batch:
        return _gather(
            context, connection, request, Batch(lane.records, request.body, *facts), lane
        )
    text, body = fields.get("i", "").encode(), request.body
    first_id = lane.records.message_id(text)
    if not first_id or len(body) > bytes_max:
        return False
    pieces: list[bytes | memoryview] = []
    size = lane.records.add(pieces, body, text, flag, *facts)
    tag = _tag(text) if b"TAGS\x01" in text else 0
    run = PlainRun(lane, (b"".join(pieces),), (size,), (tag,))
    context.appends.add_plain(connection, answer_to_be(request), run, first_id)
    return True


def _gather(
    context: Context, connection: Connection, request: RemotingCommand, batch: Batch, lane: Lane
) -> bool:
    """A batch: with others that came with it if its members may be alike, else by itself."""
    shape = context.shapes.find(lane.records, batch.body)
    if (
        shape is not None
        and shape.body_size <= lane.config.limits.message_bytes_max
        and len(batch.body) <= BATCH_COUNT_MAX * shape.size
    ):
        context.appends.add_batch(Seeming(connection, request, lane, batch, shape))
        return True
    return add_apart(context, connection, request, batch, lane)


def add_apart(
    context: Context,
    connection: Connection,
    request: RemotingCommand,
    batch: Batch,
    head: PlainHead,
) -> bool:
    """A batch member by member; False: it must be looked at. Raises PeerError."""
    run = _run_of(head, batch, context.config.limits.message_bytes_max)
    if run is None:
        return False
    context.appends.add_plain(connection, answer_to_be(request), run, b"")
    return True


def runs_of(waiting: Sequence[WaitingPlain]) -> list[PlainRun | PlainRows]:
    """What waits, in order."""
    runs: list[PlainRun | PlainRows] = []
    for rows, items in groupby(waiting, _rows_of):
        group = [run for _, _, run, _ in items]
        if rows is None:
            runs += [run for run in group if isinstance(run, PlainRun)]
        else:
            runs.append(_build(rows, [run.head for run in group]))
    return runs


def _rows_of(waiting: WaitingPlain) -> Rows | None:
    run = waiting[2]
    return run.rows if isinstance(run, Gathered) else None


def _build(rows: Rows, heads: Sequence[PlainHead]) -> PlainRows:
    shape = rows.shape
    tag = _tag(shape.text) if b"TAGS\x01" in shape.text else 0
    records, sums = rows.build()
    return PlainRows(heads, rows.counts, records, shape.record_size, tag, sums)


def _run_of(head: PlainHead, batch: Batch, bytes_max: int) -> PlainRun | None:
    """The run of a batch, member by member; None: one is not plain. Raises PeerError."""
    members = split_batch(batch.body)
    if not 0 < len(members) <= BATCH_COUNT_MAX:
        return None
    return _run_each(batch.records, head, members, bytes_max, batch[2:])


def _run_each(
    records: PlainRecords,
    head: PlainHead,
    members: Sequence[Member],
    bytes_max: int,
    facts: tuple[int, int, bytes, int],
) -> PlainRun | None:
    """None: one of them is not plain. *facts*: what ``Batch`` says of all of them."""
    pieces: list[bytes | memoryview] = []
    lengths: list[int] = []
    tags: list[int] = []
    for body, member_flag, text in members:
        if not records.message_id(text) or len(body) > bytes_max:
            return None
        tags.append(_tag(text) if b"TAGS\x01" in text else 0)
        lengths.append(records.add(pieces, body, text, member_flag, *facts))
    return PlainRun(head, pieces, lengths, tags)


def answer_plain(
    context: Context, waiting: Sequence[WaitingPlain], pending: Pending[list[RunResult]]
) -> None:
    """Each waiter gets its result; the answers of one connection leave together."""
    trace = "true" if context.config.trace else "false"
    answers: dict[Connection, list[RemotingCommand]] = {}
    found: Sequence[RunResult] = () if pending.error is not None else pending.value
    ids = ids_of_runs(context.id_prefix, [result.positions for result in found])
    for index, (connection, request, run, first_id) in enumerate(waiting):
        if request.is_oneway:
            continue
        if pending.error is not None:
            made = not_available(request, str(pending.error))
        else:
            code, _, offsets, hint = found[index]
            if code != OK:
                made = request.answer(response_code(code), remark=hint)
            else:
                fields = {
                    "msgId": ids[index],
                    "queueId": str(run.head.queue_id),
                    "queueOffset": str(offsets[0]),
                    "MSG_REGION": REGION,
                    "TRACE_ON": trace,
                }
                if first_id:
                    fields["transactionId"] = first_id.decode("utf-8", "replace")
                if request.is_response:
                    made, request.fields = request, fields
                else:
                    made = request.answer(0, fields)
        given = answers.get(connection)
        if given is None:
            answers[connection] = [made]
        else:
            given.append(made)
    for connection, commands in answers.items():
        connection.peer.send(commands)


def ids_of_runs(prefix: str, runs: Sequence[Sequence[int]]) -> list[str]:
    """Of an answer for each run: *prefix* and position in hexadecimal, with commas between them."""
    counts = [len(positions) for positions in runs]
    if np is None or sum(counts) < max(IDS_MIN, 2 * len(runs)):
        return [message_ids(prefix, positions) if positions else "" for positions in runs]
    joined = array("Q")
    for positions in runs:
        joined.extend(positions)
    if sys.byteorder == "little":
        joined.byteswap()
    digits = joined.tobytes().hex().upper().encode()
    at = len(prefix)
    size = at + 17
    rows = np.empty((len(joined), size), np.uint8)
    rows[:, :at] = np.frombuffer(prefix.encode(), np.uint8)
    rows[:, at:-1] = np.frombuffer(digits, np.uint8).reshape(-1, 16)
    rows[:, -1] = ord(",")
    text = str(rows.reshape(-1).data, "ascii")
    ends = accumulate(counts, initial=0)
    return [text[start * size : end * size - 1] for start, end in pairwise(ends)]


def message_ids(prefix: str, positions: Sequence[int]) -> str:
    """Of an answer: *prefix* and position in hexadecimal, with commas between them."""
    if len(positions) == 1:
        return f"{prefix}{positions[0]:016X}"
    digits = struct.pack(f">{len(positions)}Q", *positions).hex(",", 8).upper()
    return prefix + digits.replace(",", f",{prefix}")


def _tag(text: bytes) -> int:
    tag = next((value for name, value in decode_properties(text) if name == "TAGS"), "")
    return tag_hash(tag)
