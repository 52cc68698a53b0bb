"""AMQP content to stored messages and back, and other protocols' messages as AMQP content."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp.fields import field_of, table_of
from protocols.amqp.mapping import (
    Stored,
    address_head,
    content_of,
    extra_keys,
    message_of,
    priority_of,
    queue_head,
    stored_block,
    wire_of,
    without_bcc,
)
from protocols.amqp.method_codec import short_string
from protocols.amqp.properties import (
    EMPTY,
    BasicProperties,
    decode_properties,
    encode_properties,
)
from protocols.amqp.replies import AmqpFault
from protocols.canonical import Message, Properties, QueueKind, QueueRef, StoredMessage

QUEUES = (QueueRef(QueueKind.AMQP, "//q", store="broker-a"),)


def stored(pairs: Properties, body: bytes = b"body", topic: str = "t") -> StoredMessage:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs if value)
    return StoredMessage(
        record=b"",
        topic=topic,
        body=body,
        properties_text=text.encode(),
        queue_id=0,
        queue_offset=0,
        log_position=0,
        born_ms=1_700_000_000_123,
        store_ms=1_700_000_000_200,
    )


def as_stored(message: Message) -> StoredMessage:
    """As the gateway would write it."""
    pairs = (
        ("UNIQ_KEY", message.message_id or "ID"),
        ("TG_PROTOCOL", "amqp"),
        ("TG_SUBJECT", message.head.subject),
        *message.head.properties,
        *message.properties,
    )
    return stored(pairs, message.body, message.head.topic or "mqtt")


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=0, max_size=200), st.text(max_size=30), st.text(max_size=30))
def test_a_block_comes_back_byte_for_byte(noise: bytes, exchange: str, key: str) -> None:
    """Between queues nobody looks inside: even an unknown block is kept."""
    block = b"\x00\x04" + noise
    message = message_of(
        queue_head(exchange, key, QUEUES), stored_block(block, is_addressed=False), b"b", wall_ms=0
    )
    content = content_of(as_stored(message))
    assert (content.properties, content.body) == (block, b"b")
    if "\x01" not in exchange + key and "\x02" not in exchange + key:
        assert (content.exchange, content.routing_key) == (exchange, key)


@pytest.mark.parametrize(
    ("exchange", "key"),
    [("", "q"), ("ex", "a.b"), ("ex", ""), ("amq.topic", "a.b"), ("", "ü" * 90)],
)
@pytest.mark.parametrize("block", [EMPTY, b"\x80\x00\x01t", b"\x00\x04" + b"x" * 20_000])
def test_the_fast_way_out_agrees(exchange: str, key: str, block: bytes) -> None:
    """Deliveries are encoded with shortcuts; they mean the same."""
    head = address_head(key, -1) if exchange == "amq.topic" else queue_head(exchange, key, QUEUES)
    message = as_stored(message_of(head, stored_block(block, is_addressed=False), b"b", wall_ms=0))
    names, properties, body = wire_of(message)
    content = content_of(message)
    assert names == short_string(content.exchange) + short_string(content.routing_key)
    assert (properties, body) == content[2:]


FULL = BasicProperties(
    content_type="text/plain",
    content_encoding="gzip",
    headers=table_of({"n": 7, "flag": True, "s": "x", "TAGS": "mine", "deep": {"a": 1}}),
    delivery_mode=2,
    priority=4,
    correlation_id="corr",
    reply_to="back",
    expiration="5000",
    message_id="MID",
    timestamp=1_600_000_000,
)


def test_what_others_may_receive_is_also_text() -> None:
    """To amq.topic: text properties beside the raw block; id, expiry and time as fields."""
    block = encode_properties(FULL)
    as_block = stored_block(block, is_addressed=True)
    assert as_block.properties[1:] == (
        ("TG_CONTENT_TYPE", "text/plain"),
        ("TG_CONTENT_ENCODING", "gzip"),
        ("TG_REPLY_TO", "back"),
        ("TG_CORRELATION_ID", "corr"),
        ("n", "7"),
        ("flag", "true"),
        ("s", "x"),
        ("TG_U_TAGS", "mine"),
    )
    assert as_block.priority == 4
    message = message_of(address_head("a.b", 4), as_block, b"x", wall_ms=1000)
    assert message.message_id == "MID"
    assert message.expires_at_ms == 6000
    assert message.born_ms == 1_600_000_000_000
    assert message.head.subject == "a/b"
    content = content_of(as_stored(message))
    assert content == ("amq.topic", "a.b", block, b"x")


def test_a_time_that_nothing_can_hold_is_none() -> None:
    block = encode_properties(BasicProperties(timestamp=(1 << 64) - 1))
    as_block = stored_block(block, is_addressed=True)
    message = message_of(address_head("a.b", 4), as_block, b"x", wall_ms=1000)
    assert message.born_ms == 0
    assert content_of(as_stored(message)).properties == block


def test_a_long_block_rides_in_the_queues_own_copy() -> None:
    """Too long for a property; to amq.topic it is refused, since others would see the body."""
    block = encode_properties(BasicProperties(headers=table_of({"h": "x" * 20_000})))
    as_block = stored_block(block, is_addressed=False)
    message = message_of(queue_head("", "q", QUEUES), as_block, b"body", wall_ms=0)
    assert message.body == block + b"body"
    assert content_of(as_stored(message)) == ("", "q", block, b"body")
    with pytest.raises(AmqpFault) as caught:
        stored_block(block, is_addressed=True)
    assert caught.value.code == 406


def test_a_bad_expiration_is_406() -> None:
    """In RabbitMQ's words."""
    with pytest.raises(AmqpFault, match="invalid expiration 'abc': no_integer"):
        stored_block(encode_properties(BasicProperties(expiration="abc")), is_addressed=False)


def test_a_broken_block_is_501() -> None:
    """Where it must be read."""
    with pytest.raises(AmqpFault) as caught:
        stored_block(b"\x01\x00\xff", is_addressed=False)
    assert caught.value.code == 501


def test_mqtt_messages_as_amqp() -> None:
    """Address, content type, user properties, request and reply; QoS 0 is transient."""
    content = content_of(
        stored(
            (
                ("UNIQ_KEY", "ID1"),
                ("TAGS", "mqtt_proxy"),
                ("TG_PROTOCOL", "mqtt"),
                ("TG_SUBJECT", "plants/9/temp"),
                ("mqtt_topic", "plants/9/temp"),
                ("mqtt_qos", "0"),
                ("TG_CONTENT_TYPE", "text/plain"),
                ("TG_REPLY_TO", "answers/9"),
                ("TG_CORRELATION_ID", "c"),
                ("unit", "C"),
                ("TG_U_KEYS", "own"),
                ("TG_EXPIRES_AT", "1700000005200"),
            )
        )
    )
    assert (content.exchange, content.routing_key) == ("amq.topic", "plants.9.temp")
    properties = decode_properties(content.properties)
    assert properties == BasicProperties(
        content_type="text/plain",
        headers=table_of({"unit": "C", "KEYS": "own", "x-reply-to-topic": "answers.9"}),
        delivery_mode=1,
        correlation_id="c",
        reply_to="answers.9",
        expiration="5000",
        message_id="ID1",
        timestamp=1_700_000_000,
    )


def test_cloud_events_as_amqp_and_back() -> None:
    """Attributes are headers ``ce-…``; the media type is the content type."""
    message = stored(
        (("UNIQ_KEY", "I"), ("CE_id", "1"), ("CE_color", "red"), ("CE_contenttype", "a/b"))
    )
    properties = decode_properties(content_of(message).properties)
    assert properties.content_type == "a/b"
    assert properties.headers is not None
    assert properties.headers["ce-id"].value == "1"
    assert properties.headers["ce-color"].value == "red"
    block = encode_properties(
        BasicProperties(headers=table_of({"ce-id": "1", "cloudEvents:source": "s"}))
    )
    assert stored_block(block, is_addressed=True).properties[1:] == (
        ("CE_id", "1"), ("CE_source", "s")
    )  # fmt: skip


def test_where_answers_go() -> None:
    """RabbitMQ's header for MQTT, else reply-to: a key of ``amq.topic`` here, an address there."""

    def text_of(**names: Any) -> dict[str, str]:
        block = encode_properties(BasicProperties(**names))
        return dict(stored_block(block, is_addressed=True).properties[1:])

    assert text_of(reply_to="a.b/c") == {"TG_REPLY_TO": "a/b.c"}
    header = table_of({"x-reply-to-topic": "r.*", "x-correlation-id": "c" * 300})
    assert text_of(reply_to="q", headers=header) == {
        "TG_REPLY_TO": "r/%2B",
        "TG_CORRELATION_ID": "c" * 300,
    }
    assert text_of(correlation_id="own", headers=header)["TG_CORRELATION_ID"] == "own"
    message = stored((("TG_REPLY_TO", "r/s"), ("TG_CORRELATION_ID", "c" * 300)))
    out = decode_properties(content_of(message).properties)
    assert (out.reply_to, out.correlation_id) == ("r.s", "")
    assert out.headers == table_of({"x-reply-to-topic": "r.s", "x-correlation-id": "c" * 300})


def test_the_media_type_of_an_event_is_its_content_type() -> None:
    """And no header; an event without data has an empty body."""
    headers = {f"cloudEvents:{name}": "1.0" for name in ("specversion", "id", "source", "type")}
    block = encode_properties(BasicProperties(content_type="a/b", headers=table_of(headers)))
    pairs = dict(stored_block(block, is_addressed=True).properties)
    assert pairs["CE_contenttype"] == pairs["TG_CONTENT_TYPE"] == "a/b"
    content = content_of(stored((("CE_specversion", "1.0"), ("CE_contenttype", "a/b")), b"\x00"))
    properties = decode_properties(content.properties)
    assert properties.headers == table_of({"ce-specversion": "1.0"})
    assert (properties.content_type, content.body) == ("a/b", b"")


def test_remoting_messages_as_amqp() -> None:
    """Tag, keys and own properties are headers; the topic is the address."""
    message = stored((("UNIQ_KEY", "I"), ("TAGS", "red"), ("KEYS", "k1 k2"), ("own", "1")))
    content = content_of(message)
    assert (content.exchange, content.routing_key) == ("amq.topic", "t")
    headers = decode_properties(content.properties).headers
    assert headers == table_of({"TAGS": "red", "KEYS": "k1 k2", "own": "1"})


def test_cc_and_bcc() -> None:
    """More keys; BCC leaves no trace."""
    headers = table_of({"CC": ["a", "b"], "BCC": ["c"], "own": 1})
    block = encode_properties(BasicProperties(headers=headers))
    assert extra_keys(block) == ["a", "b", "c"]
    left = decode_properties(without_bcc(block)).headers
    assert left is not None
    assert sorted(left) == ["CC", "own"]
    with pytest.raises(AmqpFault, match="unacceptable_type_in_header"):
        extra_keys(encode_properties(BasicProperties(headers=table_of({"CC": "a"}))))
    assert extra_keys(EMPTY) == []


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"content_type": "text/plain", "delivery_mode": 2},
        {"content_encoding": "gzip", "headers": {"a": field_of("b")}, "correlation_id": "c"},
    ],
)
def test_the_priority_is_found_without_decoding(others: dict[str, Any]) -> None:
    """Whatever stands before it in the block."""
    assert priority_of(encode_properties(BasicProperties(priority=7, **others))) == 7
    assert priority_of(encode_properties(BasicProperties(**others))) == -1


def test_no_properties_store_nothing() -> None:
    """An empty block costs no property."""
    assert stored_block(EMPTY, is_addressed=True) == Stored(())
