"""``tidegate namesrv``: run a name server, or ask one."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from namesrv.config import NamesrvConfig
from protocols.daemon import config as documents
from protocols.daemon.cli import daemon_options, fail_config
from protocols.errors import ConfigError, GatewayError


@click.group("namesrv", invoke_without_command=True)
@daemon_options
@click.pass_context
def command(
    context: click.Context,
    config: Path | None,
    data: Path | None,
    settings: tuple[str, ...],
    pid_file: Path | None,
    log_level: str,
) -> None:
    """Run a name server: which brokers there are and which queues each keeps."""
    if context.invoked_subcommand is not None:
        return
    from namesrv.app import NameServer
    from protocols.daemon.lifecycle import run

    try:
        document = documents.read(config, settings)
        checked = documents.section(document, "namesrv", NamesrvConfig)
        if data is not None:
            checked = checked.model_copy(update={"data": data})
        auth = documents.cluster_auth(document)
    except ConfigError as error:
        fail_config(error)
    sys.exit(run(lambda: NameServer(checked, auth=auth), pid_file=pid_file, log_level=log_level))


@command.command()
@click.option("-n", "--namesrvAddr", "address", default="127.0.0.1:9876", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
def gateways(address: str, as_json: bool) -> None:
    """List the gateways that a name server knows: addresses, protocols, load."""
    try:
        found = asyncio.run(_fetch_gateways(address))
    except GatewayError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(found))
        return
    for gateway in found:
        protocols = gateway["protocols"]
        listeners = " ".join(f"{name}={where}" for name, where in protocols.items())
        click.echo(
            f"{gateway['gateway']}  connections={gateway['connection_count']} "
            f"messages/s={gateway['messages_per_s']}  {listeners}"
        )


async def _fetch_gateways(address: str) -> list[dict[str, Any]]:
    import msgspec

    from protocols.remoting.client import RemotingClient
    from protocols.remoting.command import RemotingCommand
    from protocols.remoting.private import GatewayList, PrivateCode

    client = await RemotingClient.connect(address)
    try:
        answer = await client.request(RemotingCommand(PrivateCode.GATEWAY_LIST))
    finally:
        await client.close()
    if answer.code != 0:
        raise GatewayError(f"{address} answers {answer.code}: {answer.remark}")
    body = msgspec.msgpack.decode(answer.body, type=GatewayList)
    return [
        {
            "gateway": item.gateway,
            "protocols": item.protocols,
            "zone": item.zone,
            "connection_count": item.connection_count,
            "messages_per_s": item.messages_per_s,
        }
        for item in body.gateways
    ]
