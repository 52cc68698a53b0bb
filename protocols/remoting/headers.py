"""
Typed access to header fields, which are text on the wire.

A mandatory field that is absent, or one that is no number, is a HeaderError: servers answer it
with SYSTEM_ERROR and its text as the remark, as Apache's do.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from protocols.canonical import told_ms
from protocols.errors import GatewayError
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand

Fields = Mapping[str, str]


class HeaderError(GatewayError):
    """A header field is missing or malformed: the request fails, its connection goes on."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"the custom field <{name}> {problem}")
        self.name = name


def text_field(fields: Fields, name: str, default: str | None = None) -> str:
    """The field's text; *default* if absent; HeaderError if absent without a default."""
    value = fields.get(name)
    if value is None:
        if default is None:
            raise HeaderError(name, "is null")
        return default
    return value


def int_field(fields: Fields, name: str, default: int | None = None) -> int:
    """The field as an integer; *default* if absent or empty."""
    value = fields.get(name)
    if value is None or value == "":
        if default is None:
            raise HeaderError(name, "is null")
        return default
    try:
        return int(value)
    except ValueError:
        raise HeaderError(name, f"is no number: '{value[:40]}'") from None


def _number(fields: Fields, name: str) -> int:
    """A Java ``int`` that is not below zero; 0 if absent."""
    value = int_field(fields, name, 0)
    if value >> 31:
        raise HeaderError(name, f"is out of range: {value}")
    return value


def bool_field(fields: Fields, name: str, default: bool = False) -> bool:
    """``true`` in any case is true, as Java's ``Boolean.parseBoolean`` has it."""
    value = fields.get(name)
    return default if value is None else value.lower() == "true"


def bool_text(value: bool) -> str:
    return "true" if value else "false"


# ── send ────────────────────────────────────────────────────────────────────────────────

SEND_FIELDS: Final = {
    "producer_group": ("producerGroup", "a"),
    "topic": ("topic", "b"),
    "default_topic": ("defaultTopic", "c"),
    "default_queue_count": ("defaultTopicQueueNums", "d"),
    "queue_id": ("queueId", "e"),
    "sys_flag": ("sysFlag", "f"),
    "born_ms": ("bornTimestamp", "g"),
    "flag": ("flag", "h"),
    "properties": ("properties", "i"),
    "reconsume_count": ("reconsumeTimes", "j"),
    "is_unit": ("unitMode", "k"),
    "reconsume_max": ("maxReconsumeTimes", "l"),
    "is_batch": ("batch", "m"),
    "broker": ("bname", "n"),
}
"""Name here → name in SEND_MESSAGE (10) and letter in SEND_MESSAGE_V2 (310) and batch (320)."""

_V2_CODES: Final = frozenset(
    (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    )
)


class SendHeader(NamedTuple):
    """``SendMessageRequestHeader`` and its V2 with one-letter names."""

    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_queue_count: int = 4
    queue_id: int = -1
    sys_flag: int = 0
    born_ms: int = 0
    flag: int = 0
    properties: str = ""
    reconsume_count: int = 0
    is_unit: bool = False
    reconsume_max: int = -1
    """−1: the client did not say."""

    is_batch: bool = False
    broker: str = ""

    def to_fields(self) -> dict[str, str]:
        """One-letter fields for 310 and 320."""
        fields: dict[str, str] = {}
        for name, value in self._asdict().items():
            if (name == "broker" and not value) or (name == "reconsume_max" and value < 0):
                continue
            text = bool_text(value) if isinstance(value, bool) else str(value)
            fields[SEND_FIELDS[name][1]] = text
        return fields


def send_header(command: RemotingCommand) -> SendHeader:
    """The header of 10, 310, 320, 324 or 325. Raises HeaderError."""
    fields = command.fields
    form = 1 if command.code in _V2_CODES else 0
    if form:
        header = _short_header(command)
        if header is not None:
            return header

    def name(field: str) -> str:
        return SEND_FIELDS[field][form]

    return SendHeader(
        producer_group=text_field(fields, name("producer_group")),
        topic=text_field(fields, name("topic")),
        default_topic=text_field(fields, name("default_topic"), "TBW102"),
        default_queue_count=int_field(fields, name("default_queue_count"), 4),
        queue_id=max(int_field(fields, name("queue_id")), -1),
        sys_flag=_number(fields, name("sys_flag")),
        born_ms=told_ms(int_field(fields, name("born_ms"), 0)),
        flag=int_field(fields, name("flag"), 0),
        properties=text_field(fields, name("properties"), ""),
        reconsume_count=_number(fields, name("reconsume_count")),
        is_unit=bool_field(fields, name("is_unit")),
        reconsume_max=int_field(fields, name("reconsume_max"), -1),
        is_batch=bool_field(fields, name("is_batch")) or command.code == 320,
        broker=text_field(fields, name("broker"), ""),
    )


def _short_header(command: RemotingCommand) -> SendHeader | None:
    """The one-letter form in one go: the store's hottest path; None: look closer."""
    fields = command.fields
    get = fields.get
    try:
        sys_flag, born_ms = int(get("f") or 0), int(get("g") or 0)
        reconsume_count = int(get("j") or 0)
        if (sys_flag | reconsume_count) >> 31 or born_ms >> 62:  # below zero or too large
            return None
        return SendHeader(
            fields["a"],
            fields["b"],
            get("c", "TBW102"),
            int(get("d") or 4),
            max(int(fields["e"]), -1),
            sys_flag,
            born_ms,
            int(get("h") or 0),
            get("i", ""),
            reconsume_count,
            get("k") == "true",
            int(get("l") or -1),
            command.code == 320 or get("m") == "true",
            get("n", ""),
        )
    except (KeyError, ValueError):
        return None


# ── pull ────────────────────────────────────────────────────────────────────────────────


class PullHeader(NamedTuple):
    """``PullMessageRequestHeader`` (11, 361)."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    count_max: int
    sys_flag: int
    commit_offset: int
    suspend_ms: int
    subscription: str
    subscription_version: int
    expression_type: str
    bytes_max: int
    broker: str


def pull_header(fields: Fields) -> PullHeader:
    """Raises HeaderError."""
    get = fields.get
    try:  # as Java clients write it; anything else is looked at field by field
        return PullHeader(
            fields["consumerGroup"],
            fields["topic"],
            int(fields["queueId"]),
            int(fields["queueOffset"]),
            int(fields["maxMsgNums"]),
            int(fields["sysFlag"]),
            int(get("commitOffset") or 0),
            int(get("suspendTimeoutMillis") or 0),
            get("subscription", ""),
            int(get("subVersion") or 0),
            get("expressionType", "TAG"),
            int(get("maxMsgBytes") or 0),
            get("bname", ""),
        )
    except (KeyError, ValueError):
        return _pull_header_by_field(fields)


def _pull_header_by_field(fields: Fields) -> PullHeader:
    """Says which field is wrong."""
    return PullHeader(
        group=text_field(fields, "consumerGroup"),
        topic=text_field(fields, "topic"),
        queue_id=int_field(fields, "queueId"),
        queue_offset=int_field(fields, "queueOffset"),
        count_max=int_field(fields, "maxMsgNums"),
        sys_flag=int_field(fields, "sysFlag"),
        commit_offset=int_field(fields, "commitOffset", 0),
        suspend_ms=int_field(fields, "suspendTimeoutMillis", 0),
        subscription=text_field(fields, "subscription", ""),
        subscription_version=int_field(fields, "subVersion", 0),
        expression_type=text_field(fields, "expressionType", "TAG"),
        bytes_max=int_field(fields, "maxMsgBytes", 0),
        broker=text_field(fields, "bname", ""),
    )
