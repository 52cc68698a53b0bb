"""Pull by offset (11, 361): what Spark, pull consumers and Apache's push consumers use."""

from functools import partial
from typing import Final, NamedTuple

from protocols import clock
from protocols.errors import Code, Refused
from protocols.remoting.codes import PullFlag, RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import PullHeader, pull_header
from store.answers import ReadResult, ReadStatus
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.filters import ALL, Wants, parse_filter
from store.handlers.permissions import reading_forbidden
from store.handlers.subscription_groups import is_retry_topic, known_group, use_group
from store.handlers.topics import no_such_topic
from store.log.ahead import Coming

SUSPEND_MS_MAX = 60_000
"""Longest long poll; clients ask for 15 or 20 s."""

CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_NEW: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.NO_QUEUE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.NO_MATCH: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_LARGE: ResponseCode.PULL_OFFSET_MOVED,
}

# Plain numbers: an operation with an IntFlag costs 0.6 µs, and this is the hottest way out.
_COMMIT_OFFSET: Final = int(PullFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)
_SUCCESS: Final = int(ResponseCode.SUCCESS)

_OFFSET: Final = "queueOffset"


class Pull(NamedTuple):
    """A pull that may wait."""

    header: PullHeader
    """Of the first one of its kind: its queue offset may be another."""

    wants: Wants
    count_max: int
    bytes_max: int
    offset: int


class Course:
    """What the last pull of a connection asked for: mostly the next one wants to go on with it."""

    __slots__ = ("fields", "wanted")

    def __init__(self, fields: dict[str, str], wanted: Pull) -> None:
        self.fields = fields
        self.wanted = wanted

    def next(self, fields: dict[str, str]) -> Pull | None:
        """The pull of *fields* if only its offset is another."""
        offset = fields.get(_OFFSET, "")
        known = self.fields
        known[_OFFSET] = offset
        if known != fields or not offset.isascii() or not offset.isdigit():
            return None
        header, wants, count_max, bytes_max, _ = self.wanted
        return Pull(header, wants, count_max, bytes_max, int(offset))


def pull(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Messages from an offset on; waits for the first one if asked to."""
    course = connection.course
    wanted = course.next(request.fields) if isinstance(course, Course) else None
    header = pull_header(request.fields) if wanted is None else wanted.header
    config = context.topic(header.topic)
    if config is None:
        return no_such_topic(request, header.topic)
    if not 0 <= header.queue_id < max(config.read_queue_count, 1):
        raise Refused(
            Code.BAD_REQUEST,
            header.topic,
            f"queueId[{header.queue_id}] is illegal, topic:"
            f"[{header.topic}] readQueueNums:[{config.read_queue_count}]",
        )
    group = known_group(context, header.group) or use_group(context, header.group, clock.read())
    forbidden = reading_forbidden(context, config, group)
    if forbidden is not None:
        kind, remark = forbidden
        return request.answer(ResponseCode.NO_PERMISSION, {"forbiddenType": kind}, remark=remark)
    _commit(context, header)
    if wanted is None:
        wanted = _wanted(context, connection, request, header)
    if context.backlog.is_pressing() and _is_behind(context, wanted):
        read = partial(_attempt, context, connection, request, wanted, True)
        context.backlog.add(connection, read)
        return None
    waits = header.sys_flag & _SUSPEND and header.suspend_ms > 0
    if not _attempt(context, connection, request, wanted, not waits):
        context.waits.add(
            connection,
            ((header.topic, header.queue_id),),
            wait_s=min(header.suspend_ms, SUSPEND_MS_MAX) / 1000,
            wake=partial(_attempt, context, connection, request, wanted, False),
            expire=partial(_expire, context, connection, request, wanted),
        )
    return None


def _wanted(
    context: Context, connection: Connection, request: RemotingCommand, header: PullHeader
) -> Pull:
    """What it asks for; remembered where nothing but its own fields decides that."""
    limits = context.config.limits
    wanted = Pull(
        header,
        _wants(context, header),
        max(1, min(header.count_max, limits.pull_count_max)),
        min(header.bytes_max or limits.pull_bytes_max, limits.pull_bytes_max),
        header.queue_offset,
    )
    is_plain = header.sys_flag & _SUBSCRIPTION or is_retry_topic(header.topic)
    connection.course = Course(dict(request.fields), wanted) if is_plain else None
    return wanted


def _is_behind(context: Context, wanted: Pull) -> bool:
    """The reader catches up: after this pull it is not at the head yet."""
    header = wanted.header
    _, high = context.engine.offset_range(header.topic, header.queue_id)
    return wanted.offset + wanted.count_max < high


def _attempt(
    context: Context,
    connection: Connection,
    request: RemotingCommand,
    wanted: Pull,
    is_final: bool,
    may_wait: bool = True,
) -> bool:
    """Answer with what there is; True: answered, or to be when the disk has been read."""
    header = wanted.header
    if context.resets:
        reset = context.resets.pop((header.group, header.topic, header.queue_id), None)
        if reset is not None:
            connection.answer(request, _offset_reset(context, request, header, reset))
            return True
    comings = context.comings
    try:
        result = context.engine.read(
            header.topic,
            header.queue_id,
            wanted.offset,
            wanted.count_max,
            wanted.bytes_max,
            *wanted.wants,
            may_wait=may_wait and comings.has_room,
        )
    except Coming as coming:  # the second time it is read at once, whatever is in memory
        again = partial(_attempt, context, connection, request, wanted, is_final, False)
        comings.add(coming.key, connection, again)
        return True
    is_empty = result.status is ReadStatus.NO_NEW or (
        result.status is ReadStatus.NO_QUEUE and wanted.offset <= 0
    )
    if is_empty and not is_final:
        return False
    fields = _answer_fields(result)
    status = result.status
    if status is not ReadStatus.FOUND:
        answer = request.answer(CODES[status], fields, remark=status.name)
    else:
        pieces = result.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        count = result.record_count
        name = f"get {header.topic}@{header.group}"
        context.rates.add(name, count, clock.monotonic(), len(body))
        context.counters.pulled += count
        answer = request.answer(_SUCCESS, fields, body, remark="FOUND")
    connection.answer(request, answer)
    return True


def _expire(
    context: Context, connection: Connection, request: RemotingCommand, wanted: Pull
) -> None:
    """The long poll is over: answered with what there is, once that is in memory."""
    _attempt(context, connection, request, wanted, True)
    context.comings.hurry()


def _answer_fields(result: ReadResult) -> dict[str, str]:
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
        "offsetDelta": "0",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


def _offset_reset(
    context: Context, request: RemotingCommand, header: PullHeader, offset: int
) -> RemotingCommand:
    """An operator has moved the group: the client goes on there."""
    low, high = context.engine.offset_range(header.topic, header.queue_id)
    result = ReadResult(ReadStatus.OFFSET_TOO_SMALL, [], offset, low, high)
    return request.answer(
        ResponseCode.PULL_OFFSET_MOVED, _answer_fields(result), remark="OFFSET_RESET"
    )


def _commit(context: Context, header: PullHeader) -> None:
    """The offset that rides along with a pull (flag 1)."""
    if not context.counters.is_healthy:
        return
    if header.sys_flag & _COMMIT_OFFSET and header.commit_offset >= 0:
        key = (header.group, header.topic, header.queue_id)
        known = context.engine.catalog.query_offset(*key)
        if key not in context.resets and known != header.commit_offset:
            context.engine.catalog.commit_offsets([(*key, header.commit_offset)], clock.read())


def _wants(context: Context, header: PullHeader) -> Wants:
    """What the client filters by: its header, or the subscription of its heartbeat."""
    if is_retry_topic(header.topic):
        return ALL
    if header.sys_flag & _SUBSCRIPTION:
        kind, expression = header.expression_type, header.subscription
    else:
        known = context.clients.subscription(header.group, header.topic)
        if known is None:
            return ALL  # the client filters again: an unknown subscription costs bytes only
        kind, expression = known.expression_type, known.expression
    return parse_filter(kind, expression)


HANDLERS: dict[int, Handler] = {
    RequestCode.PULL_MESSAGE: pull,
    RequestCode.LITE_PULL_MESSAGE: pull,
}
