"""``tidegate explain``: every step of the decision about one request."""

import json
import sys
from pathlib import Path
from typing import Any

import click

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--protocol", required=True, help="mqtt, amqp, cloudevents, grpc, remoting.")
@click.option("--identity", required=True, help="User name, or anonymous.")
@click.option("--topic", required=True, help="Address (MQTT topic) or topic name.")
@click.option(
    "--operation",
    type=click.Choice(["publish", "consume"]),
    default="publish",
    show_default=True,
)
@click.option("--group", default="", help="Consumer group.")
@click.option("--tenant", default="")
@click.option("--role", "roles", multiple=True, help="Role of the identity; may be repeated.")
@click.option("--listener", default="", help="Default: the first of the protocol.")
@click.option("--client-id", default="", help="Default: the identity.")
@click.option("--client-ip", default="127.0.0.1", show_default=True)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE")
@click.option("-c", "--config", "file", type=FILE, help="Configuration file.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As for the daemons.")
@click.option("--live", default="", metavar="URL", help="Ask a running gateway's admin listener.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain(
    file: Path | None, settings: tuple[str, ...], live: str, as_json: bool, **request: Any
) -> None:
    """Say why a request is allowed or denied and where it goes; exit 1 if nowhere."""
    result = _ask(live, request) if live else _offline(file, settings, request)
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
    else:
        click.echo("\n".join(result["lines"]))
    sys.exit(0 if result["is_allowed"] and result["route"] else 1)


def _offline(file: Path | None, settings: tuple[str, ...], request: dict[str, Any]) -> Any:
    from gateway import config as configuration
    from gateway.explanation import answer
    from gateway.policy import Policy

    loaded = configuration.read(file, settings)
    return answer(loaded, Policy.from_config(loaded.config), request)


def _ask(url: str, request: dict[str, Any]) -> Any:
    """The running gateway's answer: its rules, its buckets."""
    import urllib.parse
    import urllib.request

    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise click.UsageError("--live wants http://host:port of an admin listener")
    pairs = [
        (name, item)
        for name, value in request.items()
        for item in (value if isinstance(value, tuple) else (value,))
    ]
    address = f"{url.rstrip('/')}/api/explain?{urllib.parse.urlencode(pairs)}"
    with urllib.request.urlopen(address, timeout=10) as response:
        return json.load(response)
