"""``tidegate store``: run one message store, or look into the folder of one."""

import sys
from pathlib import Path

import click

from protocols.daemon import config as documents
from protocols.daemon.cli import daemon_options, fail_config
from protocols.errors import ConfigError
from store.config import StoreConfig
from store.inspection.cli import inspect, verify


@click.group("store", invoke_without_command=True)
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
    """Run a message store: one log, acknowledged after fdatasync."""
    if context.invoked_subcommand is not None:
        return
    from protocols.daemon.lifecycle import run
    from store.app import Store

    try:
        document = documents.read(config, settings)
        checked = documents.section(document, "store", StoreConfig)
        auth = documents.cluster_auth(document)
    except ConfigError as error:
        fail_config(error)
    if not checked.zone:
        checked = checked.model_copy(update={"zone": str(document.value.get("zone") or "")})
    if data is not None:
        checked = checked.model_copy(update={"data": data})
    sys.exit(
        run(
            lambda: Store(checked, auth=auth, is_alone=True), pid_file=pid_file, log_level=log_level
        )
    )


command.add_command(inspect)
command.add_command(verify)
