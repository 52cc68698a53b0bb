"""``tidegate store``: run one message store, or look into the folder of one."""

import click

from protocols.daemon import config as documents
from protocols.daemon.cli import DaemonOptions, daemon_options, fail_config
from protocols.errors import ConfigError
from store.config import StoreConfig
from store.inspection.cli import inspect, verify
from store.moving import move_directory


@click.group("store", invoke_without_command=True)
@daemon_options
@click.pass_context
def command(context: click.Context, options: DaemonOptions) -> None:
    """Run a message store: one log, acknowledged after fdatasync."""
    if context.invoked_subcommand is not None:
        return
    from protocols.daemon.lifecycle import use_large_pages
    from store.app import Store

    try:
        document = documents.read(options.config, options.settings)
        checked = documents.section(document, "store", StoreConfig)
        auth = documents.cluster_auth(document)
    except ConfigError as error:
        fail_config(error)
    if not checked.zone:
        checked = checked.model_copy(update={"zone": str(document.value.get("zone") or "")})
    if options.data is not None:
        checked = checked.model_copy(update={"data": options.data})

    def build() -> Store:
        use_large_pages(2 * checked.limits.cache_bytes_max)  # as much again for all else
        return Store(checked, auth=auth, is_alone=True)

    options.run(build)


command.add_command(inspect)
command.add_command(move_directory)
command.add_command(verify)
