"""``tidegate send``, ``pop``, ``tail``, ``trace`` and ``dlq``: messages from the command line."""

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import click

from gateway.commands.stores import Queue, Stores, Target, target_options
from protocols import clock
from protocols.canonical import StoredMessage
from protocols.errors import Code, PeerError, Refused
from protocols.remoting.codes import PullFlag, RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import (
    DEAD_LETTER_PREFIX,
    PopHandle,
    decode_start_offsets,
)
from protocols.remoting.headers import SendHeader
from protocols.remoting.records import (
    MessageIds,
    decode_records,
    encode_properties,
    parse_offset_message_id,
)

TOOLS_GROUP: Final = "CID_RMQ_SYS_TIDEGATE_TOOLS"
NORMAL_TOPIC: Final = "0"
"""The r of pop handles: the topic itself, no retry topic."""

LOOPBACK: Final = bytes((127, 0, 0, 1))
SUSPEND_MS: Final = 15_000
ORIGIN_PROPERTIES: Final = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC", "REAL_TOPIC")


# ── send ────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--key", default="", help="Business key.")
@click.option("--tag", default="")
@click.option("--group", "order_key", default="", help="Message group: order is kept within it.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@target_options
def send(
    topic: str,
    body: str | None,
    key: str,
    tag: str,
    order_key: str,
    properties: tuple[str, ...],
    as_json: bool,
    namesrv: str,
    config: Path | None,
) -> None:
    """Send BODY (or stdin) to TOPIC; prints where it went once it is stored."""
    data = sys.stdin.buffer.read() if body is None else body.encode()
    pairs = [(name, value) for name, _, value in (text.partition("=") for text in properties)]
    for name, value in (("KEYS", key), ("TAGS", tag), ("__SHARDINGKEY", order_key)):
        if value:
            pairs.append((name, value))

    async def work(stores: Stores) -> dict[str, Any]:
        return await send_one(stores, topic, data, pairs, order_key=order_key)

    result = Target(namesrv, config).run(work)
    click.echo(json.dumps(result) if as_json else "{id} {broker}/{queue}@{offset}".format(**result))


async def send_one(
    stores: Stores,
    topic: str,
    body: bytes,
    properties: list[tuple[str, str]],
    *,
    order_key: str = "",
) -> dict[str, Any]:
    """Store one message in a queue of *topic*; raises Refused."""
    queues = await stores.queues(topic, is_writing=True)
    if not queues:
        raise Refused(Code.TOPIC_NOT_FOUND, topic, "no writable queue")
    ids = MessageIds(LOOPBACK, os.getpid(), random.getrandbits(32))
    message_id = ids.take(clock.wall_ms()).decode()
    seed = sum(order_key.encode()) if order_key else clock.wall_ms()
    queue = queues[seed % len(queues)]
    header = SendHeader(
        producer_group=TOOLS_GROUP,
        topic=topic,
        queue_id=queue.queue_id,
        born_ms=clock.wall_ms(),
        properties=encode_properties([*properties, ("UNIQ_KEY", message_id)]).decode(),
        broker=queue.broker,
    )
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_fields(), body)
    answer = await stores.ask(stores.addresses[queue.broker], command)
    return {
        "id": message_id,
        "offset_id": answer.fields.get("msgId", ""),
        "topic": topic,
        "broker": queue.broker,
        "queue": queue.queue_id,
        "offset": int(answer.fields.get("queueOffset", -1)),
    }


# ── pop ─────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.argument("topic")
@click.option("--group", required=True, help="Consumer group; members share the messages.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1, 32))
@click.option("--wait", "wait_s", default=3.0, show_default=True, help="Seconds per store.")
@click.option("--invisible", "invisible_s", default=30, show_default=True, help="Seconds.")
@click.option(
    "--ack/--no-ack", default=True, show_default=True, help="Done for good, or come again."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@target_options
def pop(
    topic: str,
    group: str,
    count: int,
    wait_s: float,
    invisible_s: int,
    ack: bool,
    as_json: bool,
    namesrv: str,
    config: Path | None,
) -> None:
    """Take up to COUNT messages of TOPIC for a group; exit 1 if there are none."""

    async def work(stores: Stores) -> int:
        await stores.queues(topic)
        found = 0
        for broker in sorted(stores.addresses):
            if found >= count:
                break
            messages = await pop_from(
                stores, broker, topic, group, count - found, wait_s=wait_s, invisible_s=invisible_s
            )
            for message, handle in messages:
                show(message, as_json=as_json)
                if ack:
                    await ack_one(stores, topic, group, handle)
            found += len(messages)
        return found

    sys.exit(0 if Target(namesrv, config).run(work) else 1)


async def pop_from(
    stores: Stores,
    broker: str,
    topic: str,
    group: str,
    count: int,
    *,
    wait_s: float,
    invisible_s: int,
) -> list[tuple[StoredMessage, PopHandle]]:
    """Pop one store. Raises Refused."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "-1",
        "maxMsgNums": str(count),
        "invisibleTime": str(invisible_s * 1000),
        "pollTime": str(int(wait_s * 1000)),
        "bornTime": str(clock.wall_ms()),
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
        "bname": broker,
    }
    answer = await stores.request(
        stores.addresses[broker], RemotingCommand(RequestCode.POP_MESSAGE, fields), wait_s + 5
    )
    if answer.code != ResponseCode.SUCCESS:
        return []
    popped_ms = int(answer.fields["popTime"])
    revive = int(answer.fields.get("reviveQid", 0))
    starts = decode_start_offsets(answer.fields.get("startOffsetInfo", ""))
    result: list[tuple[StoredMessage, PopHandle]] = []
    for message in decode_records(bytes(answer.body)):
        start = starts.get((NORMAL_TOPIC, message.queue_id), message.queue_offset)
        handle = PopHandle(
            start,
            popped_ms,
            invisible_s * 1000,
            revive,
            NORMAL_TOPIC,
            broker,
            message.queue_id,
            message.queue_offset,
        )
        result.append((message, handle))
    return result


async def ack_one(stores: Stores, topic: str, group: str, handle: PopHandle) -> None:
    """Done for good. Raises Refused."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(handle.queue_id),
        "extraInfo": handle.encode(),
        "offset": str(handle.queue_offset),
        "bname": handle.broker,
    }
    command = RemotingCommand(RequestCode.ACK_MESSAGE, fields)
    await stores.ask(stores.addresses[handle.broker], command)


# ── tail ────────────────────────────────────────────────────────────────────────────────


@click.command()
@click.argument("topic")
@click.option("--from-start", is_flag=True, help="All that is kept, then what comes.")
@click.option("--count", default=0, help="End after so many; 0: go on.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@target_options
def tail(
    topic: str, from_start: bool, count: int, as_json: bool, namesrv: str, config: Path | None
) -> None:
    """Show the messages of TOPIC as they come, by offset: no group, nothing is consumed."""

    async def work(stores: Stores) -> None:
        try:
            await _tail(stores, topic, count=count, from_start=from_start, as_json=as_json)
        except ExceptionGroup as errors:  # a queue's store has gone, or refuses
            raise errors.exceptions[0] from None

    try:
        Target(namesrv, config).run(work)
    except KeyboardInterrupt:
        sys.exit(0)


async def _tail(stores: Stores, topic: str, *, count: int, from_start: bool, as_json: bool) -> None:
    """Show what all queues bring; *count* 0: for ever."""
    queues = await stores.queues(topic)
    shown = 0
    arrived: asyncio.Queue[StoredMessage] = asyncio.Queue(1000)
    async with asyncio.TaskGroup() as group:
        readers = [
            group.create_task(follow(stores, topic, queue, arrived.put, from_start=from_start))
            for queue in queues
        ]
        while True:
            show(await arrived.get(), as_json=as_json)
            shown += 1
            if shown == count:
                break
        for reader in readers:
            reader.cancel()


async def follow(
    stores: Stores,
    topic: str,
    queue: Queue,
    take: Callable[[StoredMessage], Any],
    *,
    from_start: bool,
) -> None:
    """Hand every message of one queue to *take*, for ever."""
    code = RequestCode.GET_MIN_OFFSET if from_start else RequestCode.GET_MAX_OFFSET
    offset = await stores.offset(topic, queue, code)
    while True:
        messages, offset = await pull(stores, topic, queue, offset, wait_ms=SUSPEND_MS)
        for message in messages:
            await take(message)


async def pull(
    stores: Stores, topic: str, queue: Queue, offset: int, *, wait_ms: int = 0, count: int = 32
) -> tuple[list[StoredMessage], int]:
    """Messages from *offset* on and where to go on. Raises Refused."""
    flags = PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if wait_ms else 0)
    fields = {
        "consumerGroup": TOOLS_GROUP,
        "topic": topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": str(int(flags)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        "bname": queue.broker,
    }
    answer = await stores.request(
        stores.addresses[queue.broker],
        RemotingCommand(RequestCode.PULL_MESSAGE, fields),
        wait_ms / 1000 + 5,
    )
    following = int(answer.fields.get("nextBeginOffset", offset))
    if answer.code == ResponseCode.SUCCESS:
        return list(decode_records(bytes(answer.body))), following
    if answer.code in (
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    ):
        return [], following
    raise Refused(Code.BAD_REQUEST, topic, answer.remark or f"answer {answer.code}")


async def all_of(stores: Stores, topic: str) -> AsyncIterator[StoredMessage]:
    """Every message of *topic* that is there now."""
    for queue in await stores.queues(topic):
        offset = await stores.offset(topic, queue, RequestCode.GET_MIN_OFFSET)
        end = await stores.offset(topic, queue, RequestCode.GET_MAX_OFFSET)
        while offset < end:
            messages, following = await pull(stores, topic, queue, offset)
            for message in messages:
                yield message
            if following <= offset:
                break
            offset = following


# ── trace, dlq ──────────────────────────────────────────────────────────────────────────


@click.command()
@click.argument("message_id")
@click.option("--topic", default="", help="Where to look for an id that names no store.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@target_options
def trace(message_id: str, topic: str, as_json: bool, namesrv: str, config: Path | None) -> None:
    """Find a message by its id: an offset id anywhere, others in TOPIC; exit 1 if not there."""

    async def work(stores: Stores) -> int:
        found = 0
        at = parse_offset_message_id(message_id)
        if at is not None and not topic:
            command = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(at[1])})
            answer = await stores.ask(at[0], command)
            for message in decode_records(bytes(answer.body)):
                show(message, as_json=as_json, is_full=True)
                found += 1
            return found
        if not topic:
            raise click.UsageError("this id names no store: say --topic")
        async for message in all_of(stores, topic):
            if message.message_id == message_id:
                show(message, as_json=as_json, is_full=True)
                found += 1
        return found

    try:
        sys.exit(0 if Target(namesrv, config).run(work) else 1)
    except PeerError as error:
        raise click.ClickException(str(error)) from error


@click.group()
def dlq() -> None:
    """Dead-letter topics."""


@dlq.command("list")
@click.argument("group", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@target_options
def dlq_list(group: str | None, as_json: bool, namesrv: str, config: Path | None) -> None:
    """List dead-letter topics and their size; with GROUP the messages in its own."""

    async def work(stores: Stores) -> None:
        if group is not None:
            async for message in all_of(stores, DEAD_LETTER_PREFIX + group):
                show(message, as_json=as_json, is_full=True)
            return
        for name in await stores.topics():
            if name.startswith(DEAD_LETTER_PREFIX):
                count = 0
                for queue in await stores.queues(name):
                    low = await stores.offset(name, queue, RequestCode.GET_MIN_OFFSET)
                    count += await stores.offset(name, queue, RequestCode.GET_MAX_OFFSET) - low
                row = {"group": name.removeprefix(DEAD_LETTER_PREFIX), "messages": count}
                click.echo(json.dumps(row) if as_json else f"{row['group']}  {count}")

    Target(namesrv, config).run(work)


@dlq.command("replay")
@click.argument("group")
@click.option("--to", "topic", default="", help="Topic; default: the one each message came from.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@target_options
def dlq_replay(group: str, topic: str, as_json: bool, namesrv: str, config: Path | None) -> None:
    """Send what is in GROUP's dead-letter topic again; the dead letters stay."""

    async def work(stores: Stores) -> int:
        count = 0
        async for message in all_of(stores, DEAD_LETTER_PREFIX + group):
            origins = [message.properties.get(name, "") for name in ORIGIN_PROPERTIES]
            where = topic or next(filter(None, origins), "")
            if not where:
                raise Refused(Code.ILLEGAL_TOPIC, message.message_id, "names no origin: say --to")
            dropped = (*ORIGIN_PROPERTIES, "UNIQ_KEY")
            kept = [pair for pair in message.property_pairs() if pair[0] not in dropped]
            result = await send_one(stores, where, message.body, kept)
            click.echo(json.dumps(result) if as_json else f"{result['id']} → {where}")
            count += 1
        return count

    sys.exit(0 if Target(namesrv, config).run(work) else 1)


def show(message: StoredMessage, *, as_json: bool, is_full: bool = False) -> None:
    """One message for the terminal; control characters are escaped."""
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = message.body.hex()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "id": message.message_id,
                    "topic": message.topic,
                    "subject": message.subject,
                    "queue": message.queue_id,
                    "offset": message.queue_offset,
                    "stored_ms": message.store_ms,
                    "properties": message.properties,
                    "body": text,
                }
            )
        )
        return
    shown = "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)
    click.echo(f"{message.subject} {message.queue_id}@{message.queue_offset} {shown}")
    if is_full:
        for name, value in message.property_pairs():
            click.echo(f"    {name} = {value!r}")
