"""Options that all daemons share, and the way from a command to a running daemon."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from protocols.errors import ConfigError

if TYPE_CHECKING:
    from protocols.daemon.lifecycle import Daemon

_OPTIONS: Final = (
    click.option(
        "-c",
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Configuration file (YAML).",
    ),
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help="Data folder.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override one setting: dotted.key=YAML value. May be repeated.",
    ),
    click.option(
        "--pid-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the process id here; removed at exit.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="Least severe lines written to stderr.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """What ``daemon_options`` collects."""

    config: Path | None
    data: Path | None
    settings: tuple[str, ...]
    pid_file: Path | None
    log_level: str

    def run(self, build: "Callable[[], Daemon]") -> NoReturn:
        """Run what *build* makes until a signal ends it, and exit."""
        from protocols.daemon import lifecycle

        sys.exit(lifecycle.run(build, pid_file=self.pid_file, log_level=self.log_level))


def daemon_options(function: Callable[..., None]) -> Callable[..., None]:
    """
    ``-c/--config``, ``--data``, ``--set``, ``--pid-file``, ``--log-level`` for a command.

    The command gets them as ``options``, a ``DaemonOptions``.
    """

    @wraps(function)
    def command(
        *args: Any,
        config: Path | None,
        data: Path | None,
        settings: tuple[str, ...],
        pid_file: Path | None,
        log_level: str,
        **others: Any,
    ) -> None:
        options = DaemonOptions(
            config=config, data=data, settings=settings, pid_file=pid_file, log_level=log_level
        )
        function(*args, options=options, **others)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def fail_config(error: ConfigError) -> NoReturn:
    """Print every problem on a line of its own and exit 78 (EX_CONFIG)."""
    for problem in error.problems:
        click.echo(problem, err=True)
    sys.exit(78)


def parse_addresses(text: str) -> list[str]:
    """``a:p;b:p`` as a list; empty parts are left out."""
    return [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
