"""What the header ``x-delay`` asks for, and what a message is when its time has come."""

import pytest

from protocols.amqp.delaying import DELAY_MS_MAX, delay_ms_of, make_due
from protocols.amqp.fields import Field, Table
from protocols.amqp.mapping import Content
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties


def block_of(headers: Table) -> bytes:
    return encode_properties(BasicProperties(headers=headers))


@pytest.mark.parametrize(
    ("field", "delay_ms"),
    [
        (Field("I", 5000), 5000),
        (Field("l", 1 << 60), DELAY_MS_MAX),
        (Field("S", "250"), 250),
        (Field("d", 1.9), 1),
        (Field("I", -5000), 0),
        (Field("S", "-250"), 0),
        (Field("S", "soon"), 0),
        (Field("t", True), 0),
        (Field("V", None), 0),
    ],
)
def test_a_delay_is_a_number_or_its_text(field: Field, delay_ms: int) -> None:
    """What is none, or negative since it was delayed before, delays nothing."""
    assert delay_ms_of(block_of({"x-delay": field})) == delay_ms


def test_without_the_header_nothing_is_delayed() -> None:
    assert delay_ms_of(encode_properties(BasicProperties(content_type="a"))) == 0


@pytest.mark.parametrize(
    ("field", "negated"),
    [
        (Field("I", 5), Field("I", -5)),
        (Field("i", 5), Field("l", -5)),
        (Field("S", "5"), Field("S", "-5")),
    ],
)
def test_when_it_is_due_the_header_is_negated(field: Field, negated: Field) -> None:
    """It keeps its type where that can be; BCC is a key and then gone; the rest stays."""
    carbon = {name: Field("A", [Field("S", name.lower())]) for name in ("CC", "BCC")}
    block = block_of({"x-delay": field, "n": Field("I", 1), **carbon})
    due = make_due(Content("later", "key", block, b"body"))
    assert due.keys == ["key", "cc", "bcc"]
    headers = decode_properties(due.properties).headers
    assert headers == {"x-delay": negated, "n": Field("I", 1), "CC": carbon["CC"]}
