"""Names of properties both ways, and what a stored message looks like to a subscriber."""

import gc

from hypothesis import given
from hypothesis import strategies as st

from protocols.canonical import StoredMessage
from protocols.mqtt import mapping
from protocols.mqtt.mapping import Heads, packet_properties, stored_properties
from protocols.mqtt.packets import V5, V311
from protocols.mqtt.properties import Property
from protocols.mqtt.rendering import Renderings, stored_value

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
NAMES = TEXT | st.sampled_from(("TAGS", "KEYS", "TG_U_x", "TG_UE_x", "CE_id", "mqtt_topic", "__a"))


def stored(
    pairs: dict[str, str] | tuple[tuple[str, str], ...], body: bytes = b"x"
) -> StoredMessage:
    items = pairs.items() if isinstance(pairs, dict) else pairs
    text = "".join(f"{name}\x01{value}\x02" for name, value in items)
    return StoredMessage(
        record=b"",
        topic="sensors",
        body=body,
        properties_text=text.encode(),
        queue_id=0,
        queue_offset=0,
        log_position=0,
        born_ms=0,
        store_ms=0,
    )


@given(users=st.lists(st.tuples(NAMES, TEXT), max_size=4), data=st.binary(max_size=8))
def test_properties_survive_the_store(users: list[tuple[str, str]], data: bytes) -> None:
    """User properties in order, repeats and odd names included; correlation data to the byte."""
    properties = (
        (int(Property.CORRELATION_DATA), data),
        *((int(Property.USER_PROPERTY), pair) for pair in users),
    )
    message = stored(stored_properties(properties))
    assert packet_properties(message.property_pairs()) == properties


def test_correlation_data_is_text_where_it_is_some() -> None:
    """Other protocols are told it as it was meant; the rest as base64."""
    for data, text in ((b"c-1", "c-1"), ("kä".encode(), "kä"), (b"\x00\xff", "base64:AP8=")):
        pairs = stored_properties(((int(Property.CORRELATION_DATA), data),))
        assert pairs == (("TG_CORRELATION_ID", text),)


def test_a_stored_value_is_found_without_parsing() -> None:
    """Only whole names count."""
    text = b"xTG_SUBJECT\x01no\x02TG_SUBJECT\x01a/b\x02K\x01TG_SUBJECT\x02"
    assert stored_value(text, b"TG_SUBJECT") == b"a/b"
    assert stored_value(text, b"K") == b"TG_SUBJECT"
    assert stored_value(text, b"SUBJECT") == b""


def test_a_record_of_another_protocol() -> None:
    """Its address is its topic; brokers' own names stay behind; others are user properties."""
    message = stored({"UNIQ_KEY": "1", "TAGS": "t", "color": "red", "CLUSTER": "c"})
    rendering = Renderings().find(message)
    assert rendering.tail.topic == b"sensors"
    assert packet_properties(message.property_pairs()) == (
        (Property.USER_PROPERTY, ("color", "red")),
    )
    assert rendering.parts(V311, 0, False, (), 0) == (b"\x30\x0a\x00\x07sensors", b"x")


def test_an_address_no_client_can_be_told() -> None:
    """Wildcards in a derived address: not offered."""
    assert Renderings().find(stored({"TG_SUBJECT": "a/#"})).tail.topic == b""


def test_a_cloud_event() -> None:
    """Attributes become user properties; no data is an empty payload."""
    message = stored(
        {"CE_specversion": "1.0", "CE_id": "7", "CE_contenttype": "a/b", "TG_CONTENT_TYPE": "a/b"},
        b"\x00",
    )
    assert packet_properties(message.property_pairs()) == (
        (Property.USER_PROPERTY, ("specversion", "1.0")),
        (Property.USER_PROPERTY, ("id", "7")),
        (Property.CONTENT_TYPE, "a/b"),
    )
    _, tail = Renderings().find(message).parts(V5, 0, False, (), 0)
    assert tail.endswith(b"a/b")


def test_expiry_is_what_is_left_rounded_up() -> None:
    """1,001 ms are 2 s; what is over is over."""
    rendering = Renderings().find(stored({"TG_EXPIRES_AT": "5000"}))
    assert not rendering.is_expired(4999)
    assert rendering.is_expired(5000)
    _, tail = rendering.parts(V5, 0, False, (), 3999)
    assert tail == b"\x05\x02\x00\x00\x00\x02x"


def test_a_client_of_thousands_of_topics_takes_from_what_all_may_spare() -> None:
    """Each of its topics has one head, until nothing is left; what it took comes back."""
    spare = mapping.Spare(5)
    heads = Heads("c", spare=spare)
    topics = [f"t/{number}" for number in range(mapping.HEADS_MAX + 5)]
    first = [heads.find(topic, 1, False) for topic in topics]
    assert [heads.find(topic, 1, False) for topic in topics] == first
    assert spare.left == 0
    other = heads.find("one more", 1, False)  # the memory starts anew, as without any to spare
    assert spare.left == 5
    assert heads.find("one more", 1, False) is other
    assert heads.find(topics[0], 1, False) is not first[0]
    for topic in topics[: mapping.HEADS_MAX]:
        heads.find(topic, 1, False)
    assert spare.left == 4  # for "one more"
    del heads
    gc.collect()
    assert spare.left == 5
