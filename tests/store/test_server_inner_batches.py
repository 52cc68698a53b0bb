"""Batches to topics with ``queue.type=BatchCQ`` at a real store."""

from protocols.canonical import StoredMessage
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode
from protocols.remoting.inner_batches import INNER_BITS, last_offset, unpacked
from protocols.remoting.records import decode_records, parse_offset_message_id
from tests.store.test_server_standard import batch_of
from tests.support.standard_codes import pull, send_fields
from tests.support.store_server import ask

TOPIC = "Batches"
BODIES = [b"one", b"two", b"three"]


async def send(client: RemotingClient, batch_id: str) -> dict[str, str]:
    members = batch_of((body, b"UNIQ_KEY\x01" + batch_id.encode() + body) for body in BODIES)
    fields = send_fields(TOPIC, m="true", i=f"UNIQ_KEY\x01{batch_id}\x02")
    answer = await ask(client, RequestCode.SEND_BATCH_MESSAGE, fields, members)
    assert answer.code == 0, answer.remark
    return answer.fields


async def by_id(client: RemotingClient, fields: dict[str, str]) -> StoredMessage:
    place = parse_offset_message_id(fields["msgId"])
    assert place is not None
    answer = await ask(client, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place[1])})
    (message,) = decode_records(answer.body)
    return message


async def by_key(client: RemotingClient, key: str) -> list[StoredMessage]:
    fields = {"topic": TOPIC, "key": key, "maxNum": "9", "_UNIQUE_KEY_QUERY": "true"}
    fields |= {"beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    answer = await ask(client, RequestCode.QUERY_MESSAGE, fields)
    assert answer.code == 0, answer.remark
    return decode_records(answer.body)


async def test_a_batch_is_one_message_to_who_sent_it(client: RemotingClient) -> None:
    """One id, found by it as Apache keeps it; each member is a message to who reads."""
    update = {"topic": TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    update["attributes"] = "+queue.type=BatchCQ"
    assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)).code == 0
    await send(client, "BEFORE")
    told = await send(client, "BATCH")
    await send(client, "AFTER")
    assert (told["batchUniqId"], told["queueOffset"]) == ("BATCH", "3")
    assert "," not in told["msgId"]
    whole = await by_id(client, told)
    assert [message.record for message in await by_key(client, "BATCH")] == [whole.record]
    assert whole.sys_flag & INNER_BITS == INNER_BITS
    named = whole.properties
    assert (named["UNIQ_KEY"], named["INNER_NUM"], named["INNER_BASE"]) == ("BATCH", "3", "3")
    assert (whole.queue_offset, last_offset(whole)) == (3, 5)
    members = unpacked([whole], 4)
    assert [(member.queue_offset, member.body) for member in members] == [
        (4, b"two"),
        (5, b"three"),
    ]
    assert members[0].message_id == "BATCHtwo"
    (found,) = await by_key(client, "BATCHtwo")
    assert (found.body, found.sys_flag) == (b"two", 0)
    read = decode_records((await pull(client, 3, topic=TOPIC)).body)
    assert [message.body for message in read[:3]] == BODIES
