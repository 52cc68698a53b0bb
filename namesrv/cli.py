"""``tidegate namesrv``: run a name server, or ask one."""

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from namesrv.config import NamesrvConfig
from protocols.daemon import config as documents
from protocols.daemon.cli import DaemonOptions, daemon_options, fail_config, parse_addresses
from protocols.errors import ConfigError, GatewayError

if TYPE_CHECKING:
    from protocols.remoting.discovery import GatewayList


@click.group("namesrv", invoke_without_command=True)
@daemon_options
@click.pass_context
def command(context: click.Context, options: DaemonOptions) -> None:
    """Run a name server: which brokers there are and which queues each keeps."""
    if context.invoked_subcommand is not None:
        return
    from namesrv.app import NameServer

    try:
        document = documents.read(options.config, options.settings)
        checked = documents.section(document, "namesrv", NamesrvConfig)
        if options.data is not None:
            checked = checked.model_copy(update={"data": options.data})
        auth = documents.cluster_auth(document)
    except ConfigError as error:
        fail_config(error)
    options.run(lambda: NameServer(checked, auth=auth))


@command.command()
@click.option(
    "-n",
    "--namesrvAddr",
    "addresses",
    default="127.0.0.1:9876",
    show_default=True,
    help="Name servers, a:p;b:p: the first that answers is asked.",
)
@click.option("--protocol", default="", help="Only gateways that speak it.")
@click.option("--zone", default="", help="Those of this zone first.")
@click.option("--topic", default="", help="Only gateways that serve this topic; shows its queues.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
def gateways(addresses: str, protocol: str, zone: str, topic: str, as_json: bool) -> None:
    """List the gateways that a name server knows: addresses, protocols, load; exit 1 if none."""
    from namesrv.http import gateways_as_json

    wishes = {"protocol": protocol, "zone": zone, "topic": topic}
    try:
        found = gateways_as_json(asyncio.run(_fetch_gateways(parse_addresses(addresses), wishes)))
    except GatewayError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(found["gateways"]))
    else:
        _show(found)
    if not found["gateways"]:
        click.echo(_none_found(protocol, topic), err=True)
    sys.exit(0 if found["gateways"] or not (protocol or topic) else 1)


def _none_found(protocol: str, topic: str) -> str:
    wishes = {"speaks": protocol, "serves": topic}
    asked = " and ".join(f"{verb} {wish}" for verb, wish in wishes.items() if wish)
    return f"no gateway {asked or 'has told of itself'}"


def _show(found: dict[str, Any]) -> None:
    for gateway in found["gateways"]:
        listeners = " ".join(f"{name}={where}" for name, where in gateway["protocols"].items())
        zone = f"  zone={gateway['zone']}" if gateway["zone"] else ""
        draining = "  draining" if gateway["is_draining"] else ""
        click.echo(
            f"{gateway['gateway']}{zone}{draining}  connections={gateway['connection_count']} "
            f"messages/s={gateway['messages_per_s']}  {listeners}"
        )
    for row in found["partitions"]:
        click.echo(f"    {row['cluster']}/{row['broker']}: {row['queues']} queues")


async def _fetch_gateways(addresses: list[str], wishes: dict[str, str]) -> "GatewayList":
    """Of the first name server that answers. Raises GatewayError."""
    import msgspec

    from protocols.remoting.client import RemotingClient
    from protocols.remoting.command import RemotingCommand
    from protocols.remoting.discovery import GatewayList
    from protocols.remoting.private import PrivateCode

    failure: GatewayError = GatewayError("no name server was given")
    for address in addresses:
        try:
            client = await RemotingClient.connect(address)
        except GatewayError as error:
            failure = error
            continue
        try:
            answer = await client.request(RemotingCommand(PrivateCode.GATEWAY_LIST, dict(wishes)))
        finally:
            await client.close()
        if answer.code != 0:
            raise GatewayError(f"{address} answers {answer.code}: {answer.remark}")
        return msgspec.msgpack.decode(answer.body, type=GatewayList)
    raise failure
