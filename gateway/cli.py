"""
``tidegate``: the one program.

Commands are imported when they are called, so that ``--help`` and ``up`` start fast. The other
daemons bring theirs by entry points (group ``tidegate.commands``): no import arrow points at them.

Exit codes: 0 ok, 1 no, 2 usage, 78 bad configuration.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

import click

from protocols.daemon import garbage
from protocols.daemon.cli import fail_config
from protocols.errors import ConfigError, GatewayError

COMMANDS: Final[dict[str, str]] = {
    "up": "gateway.commands.run:up",
    "gateway": "gateway.commands.run:gateway",
    "init": "gateway.commands.init:init",
    "config": "gateway.commands.config:config",
    "explain": "gateway.commands.explain:explain",
    "user": "gateway.commands.users:user",
    "acl": "gateway.commands.users:acl",
    "drain": "gateway.commands.operations:drain",
    "weight": "gateway.commands.operations:weight",
    "store list": "gateway.commands.operations:store_list",
    "store forget": "gateway.commands.operations:store_forget",
    "top": "gateway.commands.top:top",
    "bench": "gateway.commands.bench:bench",
    "client": "gateway.commands.clients:client",
    "ban": "gateway.commands.clients:ban",
    "send": "gateway.commands.messages:send",
    "pop": "gateway.commands.messages:pop",
    "tail": "gateway.commands.messages:tail",
    "trace": "gateway.commands.messages:trace",
    "dlq": "gateway.commands.messages:dlq",
    "topic": "gateway.commands.topics:topic",
    "group": "gateway.commands.topics:group",
}
"""Our own commands: name → module:object; of two words: what another daemon's command gets."""

ENTRY_POINT_GROUP: Final = "tidegate.commands"


def _ours(name: str) -> click.Command:
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(import_module(module), attribute)
    assert isinstance(found, click.Command)
    return found


class LazyGroup(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        points = entry_points(group=ENTRY_POINT_GROUP)
        names = [name for name in COMMANDS if " " not in name]
        return sorted({*names, *(point.name for point in points)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            found = _ours(cmd_name)
        else:
            points = [*entry_points(group=ENTRY_POINT_GROUP, name=cmd_name)]
            if not points:
                return None
            found = points[0].load()
        assert isinstance(found, click.Command)
        for both in COMMANDS:
            group, _, name = both.partition(" ")
            if group == cmd_name and name and isinstance(found, click.Group):
                found.add_command(_ours(both))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of ``--help``; a command whose extra is not installed says so."""
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
            except ImportError as error:
                rows.append((name, f"(needs {error.name})"))
                continue
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(limit=70)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidegate", prog_name="tidegate")
def program() -> None:
    """A multi-protocol edge gateway over one message store."""


def main() -> None:
    """Run the command; our own errors become a line on stderr and an exit code."""
    garbage.put_off()  # a ninth of a start's time
    # numpy's: we multiply no matrices, and threads that wait for one spin for 30 ms at a start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        program(prog_name="tidegate")
    except ConfigError as error:
        fail_config(error)
    except (GatewayError, OSError) as error:
        click.echo(f"tidegate: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
