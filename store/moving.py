"""
``tidegate store move-directory``: the directory of a store that stops for good, to another one.

Both are stopped, and so are all gateways: what is bound to their leases does not move, and they
join anew. Versions go on where they were, for stores know gateways by epochs that are versions.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

import click

from protocols import clock
from protocols.errors import ConfigError
from store.answers import EngineConfig
from store.disk import Disk, RealDisk
from store.engine import Engine
from store.ownership import FolderLock

FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("move-directory")
@click.argument("source", type=FOLDER)
@click.argument("target", type=FOLDER)
def move_directory(source: Path, target: Path) -> None:
    """
    Copy the directory from the store in folder SOURCE to the one in folder TARGET.

    Stop all gateways and both stores first. Then start the second with store.directory: true, and
    the first without it, or never again. TARGET must not have a directory yet.
    """
    try:
        count = asyncio.run(_move(source, target))
    except ConfigError as error:
        click.echo(f"tidegate: {error}", err=True)
        sys.exit(1)
    click.echo(f"{count} records: start the store in {target} with store.directory: true")


async def _move(source: Path, target: Path) -> int:
    locks = [FolderLock(str(folder)) for folder in (source, target)]
    try:
        for lock in locks:
            await lock.acquire()
        return copy_directory(RealDisk(str(source)), RealDisk(str(target)))
    finally:
        for lock in locks:
            lock.release()


def copy_directory(source: Disk, target: Disk) -> int:
    """How many records went; durable when this returns. Raises ConfigError."""
    now = clock.read()
    first, second = (Engine(disk, EngineConfig()) for disk in (source, target))
    for engine in (first, second):
        engine.recover(now)
    if not first.gateways.directory_head:
        raise ConfigError(["the first store has no directory"])
    if second.gateways.directory_head:
        raise ConfigError(["the second store has a directory already"])
    moved = second.gateways.take_directory(*first.gateways.give_directory(), now)
    second.close(now)
    while (batch := second.take_writes()) is not None:
        batch.execute(target)
        second.confirm(batch)
    return moved.result()
