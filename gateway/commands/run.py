"""``tidegate up`` and ``tidegate gateway``: run a gateway, alone or with its store."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from protocols.daemon.cli import DaemonOptions, daemon_options, fail_config, parse_addresses
from protocols.errors import ConfigError

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config import Loaded

DEFAULT_DATA: Final = Path("data")


@click.command()
@daemon_options
def up(options: DaemonOptions) -> None:
    """Run name server, store and gateway in one process, on loopback."""
    _run(options, (), is_local=True, shows_guide=True)


@click.command()
@daemon_options
@click.option("-n", "--namesrvAddr", "namesrv", default="", help="Name servers: a:p;b:p.")
@click.option(
    "-pm",
    "--proxyMode",
    "mode",
    type=click.Choice(["CLUSTER", "LOCAL"], case_sensitive=False),
    default="CLUSTER",
    show_default=True,
    help="LOCAL: with a store in this process (and a name server, unless one is named).",
)
def gateway(options: DaemonOptions, namesrv: str, mode: str) -> None:
    """Run a gateway in front of broker clusters."""
    is_local = mode.upper() == "LOCAL"
    _run(options, tuple(parse_addresses(namesrv)), is_local=is_local, shows_guide=False)


def _run(
    options: DaemonOptions, namesrv: tuple[str, ...], *, is_local: bool, shows_guide: bool
) -> None:
    from gateway import config as configuration

    def read() -> "Loaded":
        return configuration.read(options.config, options.settings, namesrv=namesrv)

    try:
        loaded = read()
        build = _builder(loaded, read, options, namesrv, is_local=is_local, shows_guide=shows_guide)
    except ConfigError as error:
        fail_config(error)
    options.run(build)


def _builder(
    loaded: "Loaded",
    read: "Callable[[], Loaded]",
    options: DaemonOptions,
    namesrv: tuple[str, ...],
    *,
    is_local: bool,
    shows_guide: bool,
) -> "Callable[[], Gateway]":
    from gateway.app import Gateway
    from gateway.local import local_parts
    from protocols.daemon.lifecycle import use_large_pages

    local = None
    if is_local:
        local = local_parts(loaded, namesrv=namesrv, data=options.data or DEFAULT_DATA)

    def build() -> Gateway:
        if local is not None:  # a tenth less CPU a message, as in a store by itself
            use_large_pages(2 * local.store_config.limits.cache_bytes_max)
        return Gateway(loaded, read_again=read, local=local, shows_guide=shows_guide)

    return build
