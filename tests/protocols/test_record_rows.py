"""Rows of a matrix are the records that pieces are, byte for byte."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.remoting.record_rows import plain_rows
from protocols.remoting.templates import RecordTemplate
from protocols.rows import ROWS_MIN, Rows

pytest.importorskip("numpy")

PROPERTIES = (("TAGS", "mqtt_proxy"), ("TG_SUBJECT", "plant/7/temp"))


def messages(count: int, size: int) -> tuple[list[bytes], list[bytes]]:
    random = Random(count * 1000 + size)
    return [random.randbytes(size) for _ in range(count)], [b"%032X" % at for at in range(count)]


@settings(max_examples=50)
@given(
    count=st.integers(ROWS_MIN, 3 * ROWS_MIN),
    size=st.integers(1, 600),
    topic=st.sampled_from(("mqtt", "t" * 127, "t" * 128)),
    queue_id=st.integers(0, 1 << 31),
    born_ms=st.integers(0, 1 << 48),
)
def test_rows_are_what_pieces_are(
    count: int, size: int, topic: str, queue_id: int, born_ms: int
) -> None:
    bodies, ids = messages(count, size)
    template = RecordTemplate(topic, PROPERTIES)
    pieces: list[bytes | memoryview] = []
    sizes = template.add_plain(pieces, bodies, ids, queue_id, born_ms)
    bodies_as_rows = Rows.of(bodies)
    assert bodies_as_rows is not None
    rows = plain_rows(template, bodies_as_rows, ids, queue_id, born_ms)
    assert rows == b"".join(pieces)
    assert sizes == [len(rows) // count] * count


@pytest.mark.parametrize(
    "bodies", [[b"x"] * (ROWS_MIN - 1), [b""] * ROWS_MIN, [b"x", b"xyz", *[b"xy"] * ROWS_MIN]]
)
def test_few_empty_and_unlike_bodies_take_the_other_way(bodies: list[bytes]) -> None:
    assert Rows.of(bodies) is None
