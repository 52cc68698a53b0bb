"""``tidegate top``: what gateways and stores are doing, over and over."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from gateway.commands.stores import Stores, Target, target_options
from protocols import clock
from protocols.errors import GatewayError
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import GatewayList
from protocols.remoting.private import PrivateCode

CLEAR: Final = "\x1b[H\x1b[2J"
COUNTS: Final = ("records_total", "granted_total", "acked_total", "commits_total")
"""Rising counts of a store, by their metric names; Apache's brokers have none of them."""

Counts = dict[str, dict[str, float]]


@click.command()
@click.option("--interval", default=2.0, show_default=True, help="Seconds between two pictures.")
@click.option("--count", default=0, help="End after so many pictures; 0: go on.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a picture.")
@target_options
def top(interval: float, count: int, as_json: bool, namesrv: str, config: Path | None) -> None:
    """Show gateways (clients, messages) and stores (rates, backlog, disk), again and again."""

    async def work(stores: Stores) -> None:
        pictures = 0
        before: Counts = {}
        at = 0.0
        while True:
            now = clock.monotonic()
            picture, counts = await _picture(stores, before, now - at)
            before, at = counts, now
            _show(picture, as_json)
            pictures += 1
            if pictures == count:
                return
            await asyncio.sleep(interval)

    try:
        Target(namesrv, config).run(work)
    except KeyboardInterrupt:
        sys.exit(0)


async def _picture(
    stores: Stores, before: Counts, elapsed_s: float
) -> tuple[dict[str, Any], Counts]:
    """What there is now; rates since *before*, none the first time."""
    rows: list[dict[str, Any]] = []
    counts: Counts = {}
    for broker, address in sorted((await stores.brokers()).items()):
        row: dict[str, Any] = {"store": broker, "address": address}
        try:
            table = await _runtime(stores, address)
        except GatewayError as error:
            rows.append({**row, "error": str(error)})
            continue
        counts[broker] = {name: float(table[name]) for name in COUNTS if name in table}
        rows.append({**row, **_of_store(table, counts[broker], before.get(broker, {}), elapsed_s)})
    return {"gateways": await _gateways(stores), "stores": rows}, counts


async def _runtime(stores: Stores, address: str) -> dict[str, str]:
    answer = await stores.ask(address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
    return bodies.decode_body(bodies.KvTable, answer.body).table


def _of_store(
    table: dict[str, str], now: dict[str, float], before: dict[str, float], elapsed_s: float
) -> dict[str, Any]:
    def rate(name: str, told: str) -> float:
        if name in now and name in before:
            return round((now[name] - before[name]) / max(elapsed_s, 1e-3), 1)
        return float((table.get(told, "0").split() or ["0"])[0])

    return {
        "in_per_s": rate("records_total", "putTps"),
        "out_per_s": rate("granted_total", "getTransferredTps"),
        "acks_per_s": rate("acked_total", ""),
        "commits_per_s": rate("commits_total", ""),
        "pending_bytes": int(float(table.get("pending_bytes", 0))),
        "disk_ratio": float(table.get("commitLogDiskRatio", 0)),
        "is_healthy": table.get("brokerActive", "true") == "true",
    }


async def _gateways(stores: Stores) -> list[dict[str, Any]]:
    """
    As they told the name server, by name: a row stays where it is, also when its gateway has
    registered again. Empty at Apache's.
    """
    try:
        answer = await stores.ask_names(PrivateCode.GATEWAY_LIST)
        found = msgspec.msgpack.decode(answer.body, type=GatewayList).gateways
    except (GatewayError, msgspec.MsgspecError):
        return []
    return [
        {
            "gateway": item.gateway,
            "zone": item.zone,
            "clients": item.connection_count,
            "messages_per_s": item.messages_per_s,
            "is_draining": item.is_draining,
            "listeners": len(item.listeners),
        }
        for item in sorted(found, key=lambda item: item.gateway)
    ]


def _show(picture: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(picture))
        return
    lines = [f"{'GATEWAY':<20}{'ZONE':<12}{'CLIENTS':>10}{'IN/S':>10}  "]
    for item in picture["gateways"]:
        draining = "draining" if item["is_draining"] else ""
        lines.append(
            f"{item['gateway']:<20}{item['zone'] or '-':<12}{item['clients']:>10}"
            f"{item['messages_per_s']:>10}  {draining}"
        )
    lines += [
        "",
        f"{'STORE':<20}{'IN/S':>10}{'OUT/S':>10}{'ACKS/S':>10}{'COMMITS/S':>11}{'DISK':>8}",
    ]
    for item in picture["stores"]:
        if "error" in item:
            lines.append(f"{item['store']:<20}{item['error']}")
            continue
        lines.append(
            f"{item['store']:<20}{item['in_per_s']:>10.0f}{item['out_per_s']:>10.0f}"
            f"{item['acks_per_s']:>10.0f}{item['commits_per_s']:>11.0f}{item['disk_ratio']:>8.1%}"
            f"{'' if item['is_healthy'] else '  cannot write'}"
        )
    click.echo((CLEAR if sys.stdout.isatty() else "") + "\n".join(lines))
