"""Options that all daemons share, and the way from a command to a running daemon."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from protocols.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """What ``daemon_options`` collects."""

    config: Path | None
    data: Path | None
    settings: tuple[str, ...]
    pid_file: Path | None
    log_level: str


def daemon_options(function: F) -> F:
    """
    ``-c/--config``, ``--data``, ``--set``, ``--pid-file``, ``--log-level`` for a command.

    The command gets them as keyword arguments of these names; ``DaemonOptions(**kwargs)`` of
    ``config, data, settings, pid_file, log_level`` holds them together.
    """
    options = (
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
    for option in reversed(options):
        function = option(function)
    return function


def fail_config(error: ConfigError) -> NoReturn:
    """Print every problem on a line of its own and exit 78 (EX_CONFIG)."""
    for problem in error.problems:
        click.echo(problem, err=True)
    sys.exit(78)


def parse_addresses(text: str) -> list[str]:
    """``a:p;b:p`` as a list; empty parts are left out."""
    return [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
