"""``tidegate store``: run one message store, or look into the folder of one."""

import sys
from pathlib import Path

import click

from protocols.daemon import config as documents
from protocols.daemon.cli import daemon_options, fail_config
from protocols.errors import ConfigError
from store.config import StoreConfig
from store.inspection.cli import inspect, verify

HEAP_BYTES = 128 << 20
"""The recent blocks (``cache_bytes_max``), and as much for all else."""


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
    from protocols.daemon.lifecycle import run, use_large_pages
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

    def build() -> Store:
        use_large_pages(HEAP_BYTES)
        return Store(checked, auth=auth, is_alone=True)

    sys.exit(run(build, pid_file=pid_file, log_level=log_level))


command.add_command(inspect)
command.add_command(verify)
