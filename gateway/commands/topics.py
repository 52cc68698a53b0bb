"""``tidegate topic`` and ``tidegate group``: what the stores keep, and how far readers are."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from gateway.commands.stores import Stores, Target, offset_table, target_options
from protocols.errors import Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand


def print_rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """A table, or one JSON list."""
    if as_json:
        click.echo(json.dumps(rows))
        return
    if not rows:
        return
    columns = list(rows[0])
    widths = [max(len(str(row[name])) for row in [*rows, {name: name}]) for name in columns]
    for cells in [columns, *([str(row[name]) for name in columns] for row in rows)]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        click.echo(line.rstrip())


# ── topics ──────────────────────────────────────────────────────────────────────────────


@click.group()
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@target_options
def topic_list(as_json: bool, namesrv: str, config: Path | None) -> None:
    """List the topics that the name servers know."""

    async def work(stores: Stores) -> list[str]:
        return await stores.topics()

    names = Target(namesrv, config).run(work)
    click.echo(json.dumps(names) if as_json else "\n".join(names))


@topic.command("create")
@click.argument("name")
@click.option("--queues", default=4, show_default=True, type=click.IntRange(1, 1024))
@click.option(
    "--type",
    "message_type",
    type=click.Choice(["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"]),
    help="Attribute message.type.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@target_options
def topic_create(
    name: str,
    queues: int,
    message_type: str | None,
    as_json: bool,
    namesrv: str,
    config: Path | None,
) -> None:
    """Create topic NAME on every store of the cluster."""
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    if message_type:
        fields["attributes"] = f"+message.type={message_type}"
    rows = _on_all(Target(namesrv, config), RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    print_rows(rows, as_json=as_json)


@topic.command("delete")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@target_options
def topic_delete(name: str, as_json: bool, namesrv: str, config: Path | None) -> None:
    """Delete topic NAME, with all its messages, on every store."""
    fields = {"topic": name}
    rows = _on_all(Target(namesrv, config), RequestCode.DELETE_TOPIC_IN_BROKER, fields)
    print_rows(rows, as_json=as_json)


@topic.command("describe")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@target_options
def topic_describe(name: str, as_json: bool, namesrv: str, config: Path | None) -> None:
    """Show the message queues of topic NAME and their offsets."""

    async def work(stores: Stores) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for queue in await stores.queues(name):
            low = await stores.offset(name, queue, RequestCode.GET_MIN_OFFSET)
            high = await stores.offset(name, queue, RequestCode.GET_MAX_OFFSET)
            rows.append(
                {
                    "broker": queue.broker,
                    "queue": queue.queue_id,
                    "first": low,
                    "end": high,
                    "messages": high - low,
                }
            )
        return rows

    print_rows(Target(namesrv, config).run(work), as_json=as_json)


# ── groups ──────────────────────────────────────────────────────────────────────────────


@click.group()
def group() -> None:
    """List, describe and reset consumer groups."""


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@target_options
def group_list(as_json: bool, namesrv: str, config: Path | None) -> None:
    """List the consumer groups of all stores."""

    async def work(stores: Stores) -> list[dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        for address in (await stores.brokers()).values():
            command = RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            answer = await stores.ask(address, command)
            table = bodies.decode_body(bodies.GroupConfigTable, answer.body)
            for name, item in table.subscription_group_table.items():
                rows[name] = {"group": name, "attempts_max": item.retry_max_times + 1}
        return [rows[name] for name in sorted(rows)]

    print_rows(Target(namesrv, config).run(work), as_json=as_json)


@group.command("describe")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@target_options
def group_describe(name: str, as_json: bool, namesrv: str, config: Path | None) -> None:
    """Show how far group NAME is in every queue; exit 1 if it reads nothing."""

    async def work(stores: Stores) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for address in (await stores.brokers()).values():
            command = RemotingCommand(RequestCode.GET_CONSUME_STATS, {"consumerGroup": name})
            answer = await stores.request(address, command)
            if answer.code != ResponseCode.SUCCESS:
                continue
            for queue, values in offset_table(answer.body):
                done, end = values["consumerOffset"], values["brokerOffset"]
                rows.append(
                    {
                        "topic": queue["topic"],
                        "broker": queue["brokerName"],
                        "queue": int(queue["queueId"]),
                        "done": done,
                        "end": end,
                        "lag": end - done,
                    }
                )
        return sorted(rows, key=lambda row: (row["topic"], row["broker"], row["queue"]))

    rows = Target(namesrv, config).run(work)
    print_rows(rows, as_json=as_json)
    sys.exit(0 if rows else 1)


@group.command("reset")
@click.argument("name")
@click.argument("topic_name", metavar="TOPIC")
@click.option(
    "--to", "to", default="end", show_default=True, help="start, end, or wall time in ms."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@target_options
def group_reset(
    name: str, topic_name: str, to: str, as_json: bool, namesrv: str, config: Path | None
) -> None:
    """Move group NAME, which reads TOPIC by offset, to a place in time."""
    if to not in ("start", "end") and not to.isdigit():
        raise click.UsageError("--to wants start, end or milliseconds since 1970")
    timestamp = {"start": "0", "end": "-1"}.get(to, to)
    fields = {"group": name, "topic": topic_name, "timestamp": timestamp, "isForce": "true"}
    rows = _on_all(Target(namesrv, config), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    print_rows(rows, as_json=as_json)


def _on_all(target: Target, code: RequestCode, fields: dict[str, str]) -> list[dict[str, Any]]:
    """The same request to every store; exit 1 if one of them refuses."""

    async def work(stores: Stores) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for broker, address in sorted((await stores.brokers()).items()):
            try:
                await stores.ask(address, RemotingCommand(code, dict(fields)))
                rows.append({"broker": broker, "outcome": "ok"})
            except Refused as error:
                rows.append({"broker": broker, "outcome": error.hint})
        return rows

    rows = target.run(work)
    if not rows or any(row["outcome"] != "ok" for row in rows):
        click.echo(json.dumps(rows), err=True)
        sys.exit(1)
    return rows
