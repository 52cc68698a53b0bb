"""Translations between remoting and the canonical types."""

import gzip
import struct
import zlib

import pytest

from protocols.canonical import SendResult
from protocols.errors import Code, Refused
from protocols.groups import Start
from protocols.pipeline import TopicInfo
from protocols.remoting import delays, mapping
from protocols.remoting.bodies import ConsumerData
from protocols.remoting.codes import RequestCode, SysFlag
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import HeaderError, SendHeader, send_header

HEADER = SendHeader(producer_group="g", topic="T", queue_id=2, broker="broker-a", born_ms=5)


def convert(header: SendHeader, body: bytes = b"body", now_ms: int = 1000) -> list[mapping.Message]:
    return mapping.to_messages(header, body, mapping.Heads(), now_ms=now_ms, body_bytes_max=1000)


def test_every_code_has_a_response() -> None:
    """No outcome of the pipeline is without words."""
    assert set(mapping.RESPONSE_OF) == set(Code)


def test_v1_and_v2_headers_are_the_same() -> None:
    """10 has long names, 310 one letter each."""
    header = HEADER._replace(properties="a\x01b\x02")
    letters = header.to_fields()
    assert letters["b"] == "T"
    assert send_header(RemotingCommand(RequestCode.SEND_MESSAGE_V2, letters)) == header
    from protocols.remoting.headers import SEND_FIELDS

    long_names = {
        long: letters[letter] for long, letter in SEND_FIELDS.values() if letter in letters
    }
    assert send_header(RemotingCommand(RequestCode.SEND_MESSAGE, long_names)) == header


@pytest.mark.parametrize("missing", ["a", "b", "e"])
def test_missing_send_field(missing: str) -> None:
    fields = HEADER.to_fields()
    del fields[missing]
    with pytest.raises(HeaderError):
        send_header(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields))


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE])
def test_numbers_that_no_record_can_hold(code: int) -> None:
    """A clock before 1970 is none; what is out of range else is refused by name."""
    from protocols.remoting.headers import SEND_FIELDS

    form = int(code == RequestCode.SEND_MESSAGE_V2)
    names = {name: forms[form] for name, forms in SEND_FIELDS.items()}
    letters = HEADER.to_fields()
    fields = {
        names[name]: letters[forms[1]] for name, forms in SEND_FIELDS.items() if forms[1] in letters
    }
    for born in ("-5", "9" * 30):
        header = send_header(RemotingCommand(code, {**fields, names["born_ms"]: born}))
        assert header == HEADER._replace(born_ms=0)
    for name in ("sys_flag", "reconsume_count"):
        for number in ("-1", "2147483648"):
            with pytest.raises(HeaderError, match="out of range"):
                send_header(RemotingCommand(code, {**fields, names[name]: number}))
    assert send_header(RemotingCommand(code, {**fields, names["queue_id"]: "-9"})).queue_id == -1


def test_properties_become_fields() -> None:
    """Tag, keys, id and message group are fields; the rest travels on."""
    text = (
        "TAGS\x01t\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01id\x02__SHARDINGKEY\x01s\x02a\x01b\x02a\x01c\x02"
    )
    (message,) = convert(HEADER._replace(properties=text))
    assert (message.head.tag, message.keys, message.message_id) == ("t", "k1 k2", "id")
    assert (message.head.order_key, message.head.is_fifo) == ("s", True)
    assert message.properties == (("a", "b"), ("a", "c"))
    assert (message.head.broker, message.head.message_queue_id) == ("broker-a", 2)
    assert message.born_ms == 5


def test_a_queue_without_its_broker_is_that_of_any() -> None:
    """Of the only one, mostly: Go's client names none, and keeps an order by its queues."""
    (message,) = convert(HEADER._replace(broker=""))
    assert (message.head.broker, message.head.message_queue_id) == ("", 2)
    (message,) = convert(HEADER._replace(broker="", queue_id=-7))
    assert message.head.message_queue_id == -1


def test_heads_are_reused() -> None:
    """The pipeline caches by head object."""
    heads = mapping.Heads()
    one, two = (
        mapping.to_messages(HEADER, b"x", heads, now_ms=0, body_bytes_max=9)[0].head
        for _ in range(2)
    )
    assert one is two


def test_the_applications_own_flag() -> None:
    (message,) = convert(HEADER._replace(flag=-7))
    assert message.flag == -7
    (message,) = convert(HEADER._replace(is_batch=True), member(b"1", b"", flag=9))
    assert message.flag == 9


def member(body: bytes, text: bytes, flag: int = 0) -> bytes:
    size = 20 + len(body) + 2 + len(text)
    head = struct.pack(">IIIiI", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">H", len(text)) + text


def test_batch() -> None:
    """Each member is a message with its own properties."""
    body = member(b"1", b"UNIQ_KEY\x01a\x02") + member(b"22", b"UNIQ_KEY\x01b\x02")
    messages = convert(HEADER._replace(is_batch=True), body)
    assert [(item.body, item.message_id) for item in messages] == [(b"1", "a"), (b"22", "b")]
    assert messages[0].head is messages[1].head


LIKE_TEXTS = (
    "UNIQ_KEY\x01a\x02TAGS\x01t\x02k\x01v",
    "UNIQ_KEY\x01bb\x02TAGS\x01t\x02k\x01v",
    "TAGS\x01t\x02UNIQ_KEY\x01c\x02k\x01v",
    "TAGS\x01t\x02k\x01v\x02UNIQ_KEY\x01d",
    "TAGS\x01t\x02k\x01v\x02UNIQ_KEY\x01d\x02",
    "TAGS\x01u\x02k\x01v\x02UNIQ_KEY\x01d\x02",
    "TAGS\x01u\x02k\x01v\x02UNIQ_KEY\x01",
    "TAGS\x01u\x02k\x01v\x02",
    "UNIQ_KEY\x01e\x02UNIQ_KEY\x01f\x02",
    "UNIQ_KEY\x01e\x02UNIQ_KEY\x01g\x02",
    "xUNIQ_KEY\x01e\x02UNIQ_KEY\x01h\x02",
    "xUNIQ_KEY\x01e\x02UNIQ_KEY\x01i\x02",
    "UNIQ_KEY\x01j\x01k\x02",
    "UNIQ_KEY\x01l\x01k\x02",
    "",
)


def test_members_are_messages_as_if_alone() -> None:
    """However like the one before."""
    header = HEADER._replace(is_batch=True, sys_flag=int(SysFlag.COMPRESSED))
    members = [
        member(zlib.compress(b"%d" % number), text.encode(), flag=number // 16)
        for number, text in enumerate(2 * LIKE_TEXTS)
    ]
    heads = mapping.Heads()

    def messages(body: bytes) -> list[mapping.Message]:
        return mapping.to_messages(header, body, heads, now_ms=1000, body_bytes_max=1000)

    assert messages(b"".join(members)) == [messages(alone)[0] for alone in members]


@pytest.mark.parametrize(
    "body", [b"", b"abc", member(b"1", b"")[:-1], b"\0\0\0\1" + member(b"1", b"")[4:]]
)
def test_damaged_batch(body: bytes) -> None:
    with pytest.raises(Refused):
        convert(HEADER._replace(is_batch=True), body)


def test_packed_body_is_unpacked() -> None:
    """zlib of Java producers, gzip of gRPC's, is undone, so that every protocol reads the body."""
    for packed in (zlib.compress(b"y" * 500), gzip.compress(b"y" * 500)):
        for flags in (SysFlag.COMPRESSED, SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB):
            (message,) = convert(HEADER._replace(sys_flag=int(flags)), packed)
            assert (message.body, message.sys_flag) == (b"y" * 500, 0)


def test_packed_bomb_is_refused() -> None:
    """Unpacking stops at the largest body."""
    packed = zlib.compress(b"y" * 100_000)
    with pytest.raises(Refused) as caught:
        convert(HEADER._replace(sys_flag=1), packed)
    assert caught.value.code is Code.MESSAGE_BODY_TOO_LARGE
    with pytest.raises(Refused) as caught:
        convert(HEADER._replace(sys_flag=1), zlib.compress(b"y" * 500)[:10])
    assert caught.value.code is Code.MESSAGE_CORRUPTED


def test_other_packing_is_kept() -> None:
    flags = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD)
    (message,) = convert(HEADER._replace(sys_flag=flags), b"zstd")
    assert (message.body, message.sys_flag) == (b"zstd", flags)


@pytest.mark.parametrize(
    ("header", "body", "code"),
    [
        (HEADER, b"x" * 1001, Code.MESSAGE_BODY_TOO_LARGE),
        (HEADER._replace(sys_flag=1), b"no zlib", Code.MESSAGE_CORRUPTED),
        (
            HEADER._replace(is_batch=True),
            bytes.fromhex("00000027 00000000 00000000 00000000 00000001 78 0010")
            + b"TRAN_MSG\x01true\x02  ",
            Code.MESSAGE_CORRUPTED,
        ),
        (HEADER._replace(properties="DELAY\x01soon\x02"), b"x", Code.ILLEGAL_DELIVERY_TIME),
    ],
)
def test_refused_sends(header: SendHeader, body: bytes, code: Code) -> None:
    with pytest.raises(Refused) as caught:
        convert(header, body)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("", 0),
        ("DELAY\x013\x02", 11_000),
        ("DELAY\x0199\x02", 1000 + 7_200_000),
        ("TIMER_DELAY_SEC\x012\x02", 3000),
        ("TIMER_DELAY_MS\x0150\x02", 1050),
        ("TIMER_DELIVER_MS\x019000\x02", 9000),
        ("TIMER_DELIVER_MS\x015\x02", 0),
    ],
)
def test_delivery_time(text: str, at_ms: int) -> None:
    """Levels, delays and times; a past time is a plain message."""
    assert convert(HEADER._replace(properties=text))[0].deliver_at_ms == at_ms


def test_send_back_delays() -> None:
    """Without a level: 10 s, 30 s, 1 min … by reconsume count."""
    assert [delays.send_back_delay_ms(0, count) for count in range(3)] == [10_000, 30_000, 60_000]
    assert delays.send_back_delay_ms(1, 5) == 1000


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", ()), ("", ()), ("A", ("A",)), ("A || B||A", ("A", "B")), ("A || *", ())],
)
def test_tags(expression: str, tags: tuple[str, ...]) -> None:
    assert mapping.parse_tags(expression) == tags


def test_route_has_every_broker_at_our_address() -> None:
    info = TopicInfo("T", "c", (("b1", 0, 6), ("b1", 1, 6), ("b2", 0, 4)))
    route = mapping.route_of(info, "h:1")
    assert [(q.broker_name, q.read_queue_nums, q.perm) for q in route.queue_datas] == [
        ("b1", 2, 6),
        ("b2", 1, 4),
    ]
    assert {broker.broker_addrs[0] for broker in route.broker_datas} == {"h:1"}


def test_a_topic_that_shrinks_is_still_read() -> None:
    info = TopicInfo("T", "c", (("b", 0, 6), ("b", 1, 4), ("b", 2, 4)))
    (queues,) = mapping.route_of(info, "h:1").queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (3, 1, 6)


def test_group_is_shared_with_other_protocols() -> None:
    """The same name and limits as gRPC members of the group use."""
    info = TopicInfo("T", "c", ())
    spec = mapping.group_spec("", "G", info, attempts_max=17, start=Start.END)
    assert (spec.name, spec.dead_letter_topic, spec.is_fifo) == ("rmq/G/T", "%DLQ%G", False)
    assert spec.reads[0].topic == "T"
    spec = mapping.group_spec("t", "G", info._replace(name="t%T"), attempts_max=1, start=Start.END)
    assert (spec.name, spec.reads[0].topic) == ("rmq/t%G/t%T", "T")


def test_start_follows_the_client() -> None:
    first = ConsumerData(consume_from_where="CONSUME_FROM_FIRST_OFFSET")
    assert mapping.start_of(first, "client") is Start.EARLIEST
    assert mapping.start_of(ConsumerData(), "client") is Start.END
    assert mapping.start_of(ConsumerData(), "earliest") is Start.EARLIEST


def test_send_answer() -> None:
    """The offset id names the gateway and the log position."""
    results = [SendResult(message_id="m", queue_id=1, queue_offset=7, log_position=300)]
    fields = mapping.send_answer_fields(results, "127.0.0.1:10911", is_traced=True)
    assert fields["msgId"] == "7F00000100002A9F000000000000012C"
    assert (fields["queueId"], fields["queueOffset"], fields["transactionId"]) == ("1", "7", "m")
