"""Client batches at the gateway's front, to topics that keep batches together and to others."""

import struct

import pytest

from protocols.remoting.inner_batches import MARK
from tests.support.fake_services import FakeServices
from tests.support.remoting_front import Client, front

BODIES = (b"one", b"two")


def packed() -> bytes:
    """``i32 size, magic, crc, flag, i32 n + body, i16 n + properties`` each."""
    return b"".join(
        struct.pack(">IIIiI", 22 + len(body), 0, 0, 0, len(body)) + body + b"\x00\x00"
        for body in BODIES
    )


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_batch_has_one_id_where_its_topic_keeps_it(keeps: bool) -> None:
    """And its members carry it; elsewhere each member has its own."""
    services = FakeServices()
    if keeps:
        services.topics.batches.add("T")
    async with front(services) as address:
        client = await Client().connect(address)
        for _ in range(2):  # the topic is looked at once
            answer = await client.send(
                "T", packed(), is_batch=True, properties="UNIQ_KEY\x01BATCH\x02"
            )
            assert answer.fields.get("batchUniqId") == ("BATCH" if keeps else None)
            assert answer.fields["msgId"].count(",") == (0 if keeps else 1)
        read, _, end = await services.topics.read("T", "", 0, 0, 9, 0)
        await client.remoting.close()
    assert end == 4
    marks = [message.properties.get(MARK) for message in read]
    assert marks == ["BATCH 2" if keeps else None] * 4
