"""``tidegate client`` and ``tidegate ban``: who is connected, and who may not be."""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import click

from gateway.commands.admin_client import Admin, admin_options


@click.group()
def client() -> None:
    """List and kick connected clients."""


@client.command("list")
@click.option("--protocol", default="", help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@admin_options
def list_clients(protocol: str, as_json: bool, url: str, token: str, user: str) -> None:
    """Connections of one gateway."""
    query = {"protocol": protocol} if protocol else {}
    found = Admin(url, token, user).ask("GET", "/api/clients", **query)
    names = ("protocol", "listener", "client_id", "identity", "peer")
    _show(found, (_line(item, *names) for item in found["clients"]), as_json)


@client.command()
@click.argument("client_id")
@admin_options
def kick(client_id: str, url: str, token: str, user: str) -> None:
    """Close the connections of CLIENT_ID at every gateway; it may come back."""
    path = f"/api/clients/{quote(client_id, safe='')}/kick"
    found = Admin(url, token, user).ask("POST", path, everywhere="1")
    click.echo(f"kicked here: {found['kicked']}; told every gateway")


@click.group()
def ban() -> None:
    """Keep clients, users or addresses out, at every gateway."""


@ban.command()
@click.argument("kind", type=click.Choice(["client", "user", "ip"]))
@click.argument("value")
@click.option("--for", "duration", default="", metavar="10m", help="Default: for good.")
@click.option("--tenant", default="", help="Of the client id or user; default: all.")
@click.option("--reason", default="")
@admin_options
def add(
    kind: str,
    value: str,
    duration: str,
    tenant: str,
    reason: str,
    url: str,
    token: str,
    user: str,
) -> None:
    """Ban VALUE: a client id, a user name, an address or CIDR range. Its connections are closed."""
    body: dict[str, Any] = {"kind": kind, "value": value, "tenant": tenant, "reason": reason}
    if duration:
        body["for"] = duration
    Admin(url, token, user).ask("POST", "/api/bans", body)
    click.echo(f"banned {kind} {value} {f'for {duration}' if duration else 'for good'}")


@ban.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@admin_options
def list_bans(as_json: bool, url: str, token: str, user: str) -> None:
    """Bans in force."""
    found = Admin(url, token, user).ask("GET", "/api/bans")
    names = ("kind", "value", "tenant", "until_ms", "reason", "by")
    _show(found, (_line(item, *names) for item in found["bans"]), as_json)


@ban.command()
@click.argument("kind", type=click.Choice(["client", "user", "ip"]))
@click.argument("value")
@click.option("--tenant", default="")
@admin_options
def remove(kind: str, value: str, tenant: str, url: str, token: str, user: str) -> None:
    """Let VALUE in again."""
    path = f"/api/bans/{kind}/{quote(value, safe='')}"
    Admin(url, token, user).ask("DELETE", path, **({"tenant": tenant} if tenant else {}))
    click.echo(f"{kind} {value} is banned no more")


@client.command()
@click.argument("kind", type=click.Choice(["client", "topic", "ip"]))
@click.argument("value")
@click.option("--for", "duration", default="5m", show_default=True, metavar="5m")
@admin_options
def trace(kind: str, value: str, duration: str, url: str, token: str, user: str) -> None:
    """Write what MQTT clients do to a file at the gateway: one client, topic filter or address."""
    body = {"kind": kind, "value": value, "for": duration}
    found = Admin(url, token, user).ask("POST", "/api/traces", body)
    click.echo(found["file"])


@client.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@admin_options
def slow(as_json: bool, url: str, token: str, user: str) -> None:
    """MQTT subscribers that got messages late, the worst first."""
    found = Admin(url, token, user).ask("GET", "/api/slow-subscriptions")
    rows = (
        f"{item['latency_ms']} ms\t{_line(item, 'client_id', 'topic')}" for item in found["slow"]
    )
    _show(found, rows, as_json)


def _line(item: Mapping[str, Any], *names: str) -> str:
    return "\t".join(str(item.get(name, "")) for name in names)


def _show(found: Any, lines: Iterable[str], as_json: bool) -> None:
    """All of it as JSON, or a line per item."""
    for line in (json.dumps(found),) if as_json else lines:
        click.echo(line)
