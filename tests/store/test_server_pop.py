"""Pop by RocketMQ's standard codes: handles, order, those that were popped too often."""

import asyncio
from pathlib import Path

import msgspec

from protocols.remoting import bodies
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import (
    PopHandle,
    decode_message_offsets,
    decode_start_offsets,
    encode_bit_set,
)
from protocols.remoting.nearly_json import parse
from protocols.remoting.records import decode_records
from store.app import Store
from tests.support.standard_codes import make_group, pull_fields, send
from tests.support.store_server import GatewayEnd, ask, connected, running_store


def pop_fields(**more: str) -> dict[str, str]:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "order": "false",
    }
    return fields | more


def handles(answer: RemotingCommand) -> list[PopHandle]:
    """The handles that a Java client makes of a pop's answer."""
    starts = decode_start_offsets(answer.fields["startOffsetInfo"])
    times = (int(answer.fields["popTime"]), int(answer.fields["invisibleTime"]))
    revive = int(answer.fields["reviveQid"])
    return [
        PopHandle(starts[key], *times, revive, key[0], "broker-a", key[1], offset)
        for key, offsets in decode_message_offsets(answer.fields["msgOffsetInfo"]).items()
        for offset in offsets
    ]


def handle_fields(handle: PopHandle, **more: str) -> dict[str, str]:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": str(handle.queue_id),
        "offset": str(handle.queue_offset),
        "extraInfo": handle.encode(),
    }
    return fields | more


async def test_popped_messages_are_hidden_and_acked(client: RemotingClient) -> None:
    """200050 takes from all queues, 200051 ends a delivery, 200151 ends many."""
    for queue_id in (0, 0, 1, 1):
        await send(client, b"x", queue_id=queue_id)
    answer = await ask(client, RequestCode.POP_MESSAGE, pop_fields())
    assert answer.code == ResponseCode.SUCCESS
    taken = handles(answer)
    assert len(decode_records(answer.body)) == len(taken) == 4
    empty = await ask(client, RequestCode.POP_MESSAGE, pop_fields())
    assert empty.code == ResponseCode.POLLING_TIMEOUT
    acked = await ask(client, RequestCode.ACK_MESSAGE, handle_fields(taken[0]))
    assert acked.code == 0
    entries = [
        {
            "c": "G",
            "t": "T",
            "r": "0",
            "so": handle.start_offset,
            "q": handle.queue_id,
            "rq": handle.revive_queue_id,
            "pt": handle.popped_ms,
            "it": handle.invisible_ms,
            "b": encode_bit_set([handle.queue_offset - handle.start_offset]),
        }
        for handle in taken[1:]
    ]
    body = msgspec.json.encode({"brokerName": "broker-a", "acks": entries})
    assert (await ask(client, RequestCode.BATCH_ACK_MESSAGE, None, body)).code == 0
    stats = await ask(client, RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
    table = parse(stats.body)["offsetTable"]
    assert sum(item["brokerOffset"] - item["consumerOffset"] for item in table.values()) == 0


async def test_change_invisible_time_makes_a_new_handle(client: RemotingClient) -> None:
    """200053 with a short time: it comes again, counted; the old handle does nothing."""
    await send(client, b"x")
    answer = await ask(client, RequestCode.POP_MESSAGE, pop_fields())
    (old,) = handles(answer)
    await asyncio.sleep(0.002)  # handles differ by their pop time, in milliseconds
    change = handle_fields(old, invisibleTime="30")
    changed = await ask(client, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
    assert changed.code == 0
    assert int(changed.fields["popTime"]) > old.popped_ms
    again = await ask(client, RequestCode.POP_MESSAGE, pop_fields(pollTime="5000"))
    assert decode_records(again.body)[0].reconsume_count == 1
    stale = await ask(client, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
    assert stale.code == ResponseCode.NO_MESSAGE


async def test_handles_outlive_a_restart(tmp_path: Path) -> None:
    """What was popped before the store ended is acked, or put off, after it has come back."""
    async with running_store(tmp_path) as store, connected(store) as client:
        for body in (b"acked", b"put off"):
            await send(client, body)
        acked, put_off = handles(await ask(client, RequestCode.POP_MESSAGE, pop_fields()))
    async with running_store(tmp_path) as store, connected(store) as client:
        none = await ask(client, RequestCode.POP_MESSAGE, pop_fields())
        assert none.code == ResponseCode.POLLING_TIMEOUT
        assert (await ask(client, RequestCode.ACK_MESSAGE, handle_fields(acked))).code == 0
        sooner = handle_fields(put_off, invisibleTime="30")
        assert (await ask(client, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, sooner)).code == 0
        answer = await ask(client, RequestCode.POP_MESSAGE, pop_fields(pollTime="20000"))
        assert [one.body for one in decode_records(answer.body)] == [b"put off"]


async def test_the_last_message_of_a_young_topic_is_its_first(client: RemotingClient) -> None:
    """A new group that pops "from last" gets what is there while nothing has gone yet."""
    await send(client, b"early")
    answer = await ask(client, RequestCode.POP_MESSAGE, pop_fields(initMode="1"))
    assert [message.body for message in decode_records(answer.body)] == [b"early"]


async def test_a_pop_waits_for_a_message(store: Store, client: RemotingClient) -> None:
    """pollTime holds a pop until its group can take something; 200054 likewise."""
    update = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)).code == 0
    pop = pop_fields(initMode="1", pollTime="5000")
    waiting = asyncio.ensure_future(ask(client, RequestCode.POP_MESSAGE, pop))
    await ask(client, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    async with connected(store) as other:
        notice = asyncio.ensure_future(
            ask(
                other,
                RequestCode.NOTIFICATION,
                pop_fields(consumerGroup="H", pollTime="5000", initMode="1"),
            )
        )
        await ask(client, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        assert not waiting.done()
        await send(client, b"new")
        answer = await waiting
        assert [message.body for message in decode_records(answer.body)] == [b"new"]
        assert (await notice).fields["hasMsg"] == "true"


async def test_an_ordered_pop_waits_for_those_before(client: RemotingClient) -> None:
    """By message group, and by queue for messages without one, however they came in: as many as
    are asked for in one answer, and none of that order before all of them are done."""

    async def popped(count: int = 32, **more: str) -> RemotingCommand:
        fields = pop_fields(order="true", maxMsgNums=str(count), **more)
        return await ask(client, RequestCode.POP_MESSAGE, fields)

    def bodies_of(answer: RemotingCommand) -> list[bytes]:
        return [record.body for record in decode_records(answer.body)]

    for number in range(3):
        for text, stem in (("", "none"), ("__SHARDINGKEY\1a\2", "a"), ("__SHARDINGKEY\1b\2", "b")):
            identity = f"UNIQ_KEY\1{stem}{number}\2"
            await send(client, f"{stem}{number}".encode(), i=identity + text)
    first = await popped(4)
    assert bodies_of(first) == [b"none0", b"a0", b"b0", b"none1"]
    (b0,) = [one for one in handles(first) if one.queue_offset == 2]
    assert bodies_of(await popped()) == []
    await ask(client, RequestCode.ACK_MESSAGE, handle_fields(b0))
    assert bodies_of(await popped()) == [b"b1", b"b2"]
    none0, a0, _, none1 = handles(first)
    waiting = asyncio.create_task(popped(pollTime="60000"))
    for handle in (none1, a0):
        await ask(client, RequestCode.ACK_MESSAGE, handle_fields(handle))
    assert bodies_of(await waiting) == [b"a1", b"a2"]
    await ask(client, RequestCode.ACK_MESSAGE, handle_fields(none0))
    assert bodies_of(await popped()) == [b"none2"]


async def test_a_group_goes_on_where_it_stood(client: RemotingClient) -> None:
    """One that read by offset and pops now, and back."""
    where = {"consumerGroup": "G", "topic": "T", "queueId": "0"}

    async def popped() -> list[PopHandle]:
        return handles(await ask(client, RequestCode.POP_MESSAGE, pop_fields(queueId="-7")))

    for _ in range(9):
        await send(client, b"x", queue_id=0)
    await make_group(client)
    commit = {**where, "commitOffset": "4"}
    await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    taken = await popped()
    assert [handle.queue_offset for handle in taken] == [4, 5, 6, 7, 8]
    for handle in taken[:2]:
        await ask(client, RequestCode.ACK_MESSAGE, handle_fields(handle))
    stands = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, where)
    assert stands.fields["offset"] == "6"
    await send(client, b"x", queue_id=0)
    for offset, stands_at in (("8", "8"), ("2", "8"), ("9", "9")):
        commit = {**where, "commitOffset": offset}
        await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        stands = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, where)
        assert stands.fields["offset"] == stands_at
    assert [handle.queue_offset for handle in await popped()] == [9]


async def test_a_message_popped_too_often_dies(client: RemotingClient) -> None:
    """After the group's last attempt it is in %DLQ%group."""
    config = bodies.GroupConfig(group_name="G", retry_max_times=1)
    body = bodies.encode_body(config)
    await ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    await send(client, b"poison")
    for attempt in range(2):
        pop = pop_fields(invisibleTime="20", pollTime="5000")
        answer = await ask(client, RequestCode.POP_MESSAGE, pop)
        assert decode_records(answer.body)[0].reconsume_count == attempt
    fields = pull_fields(0, "%DLQ%G", sysFlag="6", suspendTimeoutMillis="5000")
    fields["consumerGroup"] = "D"
    dead = await ask(client, RequestCode.PULL_MESSAGE, fields)
    assert decode_records(dead.body)[0].body == b"poison"


async def test_both_families_meet_in_one_group(store: Store, client: RemotingClient) -> None:
    """What a gateway's stream holds of ``rmq/G/T`` a standard pop does not get, and back."""
    await send(client, b"1")
    await send(client, b"2")
    popped = await ask(client, RequestCode.POP_MESSAGE, pop_fields(maxMsgNums="1"))
    assert popped.code == ResponseCode.SUCCESS
    gateway = GatewayEnd("gw-1")
    await gateway.connect(store)
    opened = await gateway.open_group("rmq/G/T", topic="T", start="earliest", attempts_max=17)
    assert not opened.is_new
    await gateway.open_stream(opened.group, 1, 10)
    (item,) = await gateway.received(1)
    assert gateway.bodies[0] != popped.body
    assert item.attempt == 1
    await gateway.close()
