"""``tidegate drain``, ``weight``, ``store list|forget``: what leaves, and what has gone."""

import json
import sys
import time
from typing import Any, Final
from urllib.parse import quote

import click

from gateway.commands.admin_client import Admin, admin_options

POLL_S: Final = 0.5


@click.command()
@click.option("--over", default="30s", show_default=True, help="Clients leave evenly over it.")
@click.option(
    "--to",
    "targets",
    multiple=True,
    metavar="LISTENER=HOST:PORT",
    help="Where clients of a listener or protocol are sent; default: gateways that the name "
    "servers know, those of the same zone first.",
)
@click.option("--no-wait", is_flag=True, help="Do not wait for the end.")
@click.option("--undo", is_flag=True, help="Serve again.")
@click.option("--status", "only_status", is_flag=True, help="Say how far it is.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@admin_options
def drain(
    over: str,
    targets: tuple[str, ...],
    no_wait: bool,
    undo: bool,
    only_status: bool,
    as_json: bool,
    url: str,
    token: str,
    user: str,
) -> None:
    """
    Take a gateway out of service: its clients go to other gateways, in steps.

    /readyz says no, new clients are refused, MQTT 5 clients are redirected (0x9D), AMQP
    connections are closed with 320; in the end the listeners close. The process stays.
    """
    admin = Admin(url, token, user)
    if undo or only_status:
        _show(admin.ask("DELETE" if undo else "GET", "/api/drain"), as_json)
        return
    to: dict[str, str] = {}
    for text in targets:
        name, sign, address = text.partition("=")
        if not sign:
            raise click.UsageError(f"--to {text}: wants LISTENER=HOST:PORT")
        to[name] = address
    found = admin.ask("POST", "/api/drain", {"over": over, "to": to})
    while not no_wait and found["stage"] == "draining":
        if sys.stderr.isatty():
            click.echo(f"\r{found['clients']} clients ", nl=False, err=True)
        time.sleep(POLL_S)
        found = admin.ask("GET", "/api/drain")
    _show(found, as_json)
    sys.exit(0 if no_wait or found["stage"] == "drained" else 1)


def _show(found: Any, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(f"{found['gateway']}: {found['stage']}, {found['clients']} clients")


@click.command()
@click.argument("route", required=False)
@click.argument("weights", nargs=-1, metavar="[CLUSTER=WEIGHT]...")
@click.option("--reset", is_flag=True, help="Back to what the file says.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@admin_options
def weight(
    route: str | None,
    weights: tuple[str, ...],
    reset: bool,
    as_json: bool,
    url: str,
    token: str,
    user: str,
) -> None:
    """
    Show the weights of ROUTE's targets (of all routes), or set them at every gateway.

    Weight 0 drains a cluster: it gets nothing new and is still read from. What is set holds over
    restarts and reloads until --reset. A target is named by its cluster, or cluster/topic.
    """
    admin = Admin(url, token, user)
    row = _parse(weights)
    if (row or reset) and route is None:
        raise click.UsageError("which route?")
    if row and reset:
        raise click.UsageError("--reset takes no weights")
    if route is not None and row:
        admin.ask("PUT", f"/api/weights/{quote(route, safe='')}", row)
    elif route is not None and reset:
        admin.ask("DELETE", f"/api/weights/{quote(route, safe='')}")
    rows = admin.ask("GET", "/api/weights")["weights"]
    rows = [item for item in rows if route in (None, item["route"])]
    if as_json:
        click.echo(json.dumps({"weights": rows}))
    for item in () if as_json else rows:
        of_file = f"  (file: {item['file_weight']})" if _is_set(item) else ""
        topic = f"/{item['topic']}" if item["topic"] else ""
        click.echo(f"{item['route']}\t{item['cluster']}{topic}\t{item['weight']}{of_file}")
    sys.exit(0 if rows else 1)


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@admin_options
def store_list(as_json: bool, url: str, token: str, user: str) -> None:
    """List the stores that gateways know, and those that they wait for."""
    _show_stores(Admin(url, token, user).ask("GET", "/api/stores"), as_json)


@click.command("forget")
@click.argument("name")
@click.option("--cluster", default="default", show_default=True, help="As gateways call it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@admin_options
def store_forget(name: str, cluster: str, as_json: bool, url: str, token: str, user: str) -> None:
    """
    Store NAME is gone for good: no gateway waits for it any more.

    What it has and nobody else is lost. It must not come back with its old data folder: what was
    sent again meanwhile would be there twice.
    """
    path = f"/api/stores/{quote(cluster, safe='')}/{quote(name, safe='')}"
    _show_stores(Admin(url, token, user).ask("DELETE", path), as_json)


def _show_stores(found: Any, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found))
        return
    for item in found["stores"]:
        waited = "waited for" if item["is_waited_for"] else "gone"
        note = "" if item["state"] == "up" else f"\t{waited}"
        click.echo(f"{item['cluster']}\t{item['store']}\t{item['state']}{note}")


def _is_set(item: dict[str, Any]) -> bool:
    return bool(item["weight"] != item["file_weight"])


def _parse(weights: tuple[str, ...]) -> dict[str, int]:
    row: dict[str, int] = {}
    for text in weights:
        name, sign, number = text.rpartition("=")
        if not sign or not number.isdigit():
            raise click.UsageError(f"{text}: wants CLUSTER=WEIGHT")
        row[name] = int(number)
    return row
