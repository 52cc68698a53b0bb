"""``tidegate config``: validate, schema, show, diff."""

import difflib
import json
import sys
from pathlib import Path
from typing import Any

import click

from protocols.daemon.cli import fail_config
from protocols.errors import ConfigError

FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def config() -> None:
    """Check, show and compare configurations."""


@config.command()
@click.argument("file", type=FILE, required=False)
@click.option("-c", "--config", "config_file", type=FILE, help="The file, as for the daemons.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As for the daemons.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def validate(
    file: Path | None, config_file: Path | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Report every mistake of FILE, run its tests; exit 78 if it is wrong."""
    from gateway import checks
    from gateway import config as configuration
    from gateway.plugins import build_adapters

    path = file or config_file
    if path is None:
        raise click.UsageError("which file?")
    try:
        loaded = configuration.read(path, settings)
        build_adapters(loaded, skips_missing=True)
        other_blocks(loaded)
    except ConfigError as error:
        if as_json:
            click.echo(json.dumps({"valid": False, "problems": error.problems}))
            sys.exit(78)
        fail_config(error)
    warnings = checks.warnings(loaded.config, loaded.document)
    count = len(loaded.config.tests)
    if as_json:
        click.echo(json.dumps({"valid": True, "warnings": warnings, "tests": count}))
        return
    for line in warnings:
        click.echo(line, err=True)
    tests = f", {count} routing test{'s' * (count != 1)} passed" if count else ""
    click.echo(f"{path}: valid{tests}")


def other_blocks(loaded: Any) -> None:
    """Let the other daemons check their blocks. Raises ConfigError."""
    from gateway.local import local_parts

    local_parts(loaded, namesrv=(), data=Path("data"))


@config.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    from gateway.local import full_schema

    click.echo(json.dumps(full_schema(), indent=2))


@config.command()
@click.argument("file", type=FILE, required=False)
@click.option("-c", "--config", "config_file", type=FILE, help="The file, as for the daemons.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As for the daemons.")
@click.option("--effective", is_flag=True, help="With defaults, includes and settings applied.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of YAML.")
def show(
    file: Path | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    effective: bool,
    as_json: bool,
) -> None:
    """Print the configuration as it is understood; secrets are left out."""
    tree = _tree(file or config_file, settings, is_effective=effective)
    click.echo(json.dumps(tree, indent=2) if as_json else _yaml(tree), nl=as_json)


@config.command()
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="One JSON list of changed lines.")
def diff(old: Path, new: Path, as_json: bool) -> None:
    """Compare two configurations as they are understood; exit 1 if they differ."""
    before, after = (_yaml(_tree(path, (), is_effective=True)).splitlines() for path in (old, new))
    lines = [*difflib.unified_diff(before, after, str(old), str(new), lineterm="")]
    click.echo(json.dumps(lines) if as_json else "\n".join(lines), nl=bool(lines) or as_json)
    sys.exit(1 if lines else 0)


def _tree(path: Path | None, settings: tuple[str, ...], *, is_effective: bool) -> dict[str, Any]:
    from gateway import config as configuration

    loaded = configuration.read(path, settings)
    if not is_effective:
        tree = {key: value for key, value in loaded.document.value.items() if key != "include"}
        hidden: dict[str, Any] = _hide(tree)
        return hidden
    tree = loaded.config.model_dump(mode="json", exclude_none=True, exclude={"include"})
    for block in configuration.OTHER_DAEMONS:
        if block in loaded.document.value:
            tree[block] = loaded.document.value[block]
    hidden = _hide(tree)
    return hidden


def _hide(node: Any) -> Any:
    """*node* with secrets and hashes replaced."""
    if isinstance(node, dict):
        return {
            key: "(hidden)" if key in ("secret", "password_hash", "url") and value else _hide(value)
            for key, value in node.items()
        }
    return [_hide(item) for item in node] if isinstance(node, list) else node


def _yaml(tree: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    return text
