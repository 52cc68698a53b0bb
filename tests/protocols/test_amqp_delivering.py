"""A run of deliveries as frames: the same bytes as each of its messages alone."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp.channel import Unsettled
from protocols.amqp.codec import content_frames
from protocols.amqp.consumer import Consumer
from protocols.amqp.delivering import TAG_AND_BIT, frames_of
from protocols.amqp.mapping import counted, wire_of
from protocols.amqp.properties import EMPTY
from protocols.amqp.topology import Queue, QueueRecord
from tests.protocols.test_mqtt_columns import Kind, record_of, run_of

AMQP: Final = (("TG_PROTOCOL", "amqp"), ("TG_AMQP", "EAAC"), ("TG_ROUTING_KEY", "q"))
KINDS: Final = (
    Kind("MQTT", AMQP),
    Kind("MQTT", (*AMQP, ("TG_EXCHANGE", "news"))),
    Kind("MQTT", AMQP, has_id=False),
    Kind("MQTT", (("TG_PROTOCOL", "amqp"), ("TG_AMQP_BYTES", "2"), ("TG_ROUTING_KEY", "q"))),
    Kind("MQTT", (("TG_PROTOCOL", "mqtt"), ("TG_SUBJECT", "a/b"), ("mqtt_qos", "1"))),
)
HEAD: Final = b"\x00\x3c\x00\x3c\x01t"
FRAME_BYTES_MAX: Final = 20
"""Bodies above 12 bytes are cut."""

QUEUE = Queue(QueueRecord(vhost="/", name="q"))


@pytest.mark.parametrize("is_quorum", [False, True])
@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(
    items=st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.sampled_from(
                [b"\x00\x00", b"xx", b"yy", b"zzz", b"a body of three frames and more"]
            ),
        ),
        min_size=1,
        max_size=12,
    ),
    skipped=st.integers(0, 3),
)
def test_a_run_has_the_frames_of_its_messages(
    is_quorum: bool, items: list[tuple[Kind, bytes]], skipped: int
) -> None:
    """However publishers take turns, and whatever is in a body."""
    found = [
        record_of(kind, EMPTY + body if kind is KINDS[3] else body, number)
        for number, (kind, body) in enumerate(items)
    ]
    start = min(skipped, len(found) - 1)
    run = run_of(found, start, len(found))
    expected = []
    for tag, delivery in enumerate(run, 7):
        names, block, body = wire_of(delivery.message)
        block = counted(block, 1) if is_quorum else block
        method = HEAD + TAG_AND_BIT.pack(tag, 0) + names
        expected.append(content_frames(3, method, block, body, FRAME_BYTES_MAX))
    frames = frames_of(
        run, channel=3, head=HEAD, tag=7, is_quorum=is_quorum, frame_bytes_max=FRAME_BYTES_MAX
    )
    assert frames == b"".join(expected)


def test_a_held_run_is_settled_one_by_one() -> None:
    """Each tag with the handle that its delivery has, but for where in its topic it lies."""
    run = run_of([record_of(KINDS[0], b"x", number) for number in range(5)], 1, 5)
    unsettled = Unsettled()
    unsettled.take_tag()
    consumer = Consumer(None, QUEUE, "t", no_ack=False, is_exclusive=False, limit=0)  # type: ignore[arg-type] # nothing is asked of it
    unsettled.hold(run, QUEUE, consumer)
    assert unsettled.next_tag == 6
    entries = unsettled.settle(4, is_multiple=False, method=0)
    entries += unsettled.settle(3, is_multiple=True, method=0)
    entries += unsettled.take_all()
    assert [entry.tag for entry in entries] == [4, 2, 3, 5]
    assert [entry.handle for entry in entries] == [run.handles()[index] for index in (2, 0, 1, 3)]
    assert {(entry.queue, entry.consumer) for entry in entries} == {(QUEUE, consumer)}
