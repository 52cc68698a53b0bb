"""``tidegate store inspect`` and ``verify``: look at a folder, running or not; change nothing."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from store.inspection.facts import Damage, QueueNames, Survey, block_facts
from store.inspection.folder import Folder
from store.inspection.survey import NoStore, Surveyor
from store.inspection.text import block_lines, damage_line, survey_lines, verdict
from store.log.recovery import ScannedBlock

DAMAGED: Final = 1
UNREADABLE: Final = 3
"""Not 2, which is a wrong command line."""

FOLDER: Final = click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@click.command()
@FOLDER
@AS_JSON
def verify(folder: Path, as_json: bool) -> None:
    """
    Read everything in a store's FOLDER and check every CRC; the store may be running.

    Names the file, byte, log position and block of each damage. Nothing is changed. Exit code: 0
    whole, 1 damaged, 3 there is no log or it cannot be read.
    """
    found = _survey(Surveyor(Folder(folder)))
    if as_json:
        click.echo(json.dumps(_as_json(found)))
    else:
        for line in [*map(damage_line, found.damage), verdict(found)]:
            click.echo(line)
    sys.exit(DAMAGED if found.damage else 0)


@click.command()
@FOLDER
@AS_JSON
@click.option("--blocks", "with_blocks", is_flag=True, help="List the blocks.")
@click.option("--records", "with_records", is_flag=True, help="List blocks and their records.")
@click.option("--segment", "segment", type=int, default=0, help="Only blocks of this segment.")
@click.option("--position", type=int, default=-1, help="Only the block at this log position.")
@click.option(
    "--count", type=click.IntRange(1), default=1000, show_default=True, help="Blocks at most."
)
def inspect(
    folder: Path,
    as_json: bool,
    with_blocks: bool,
    with_records: bool,
    segment: int,
    position: int,
    count: int,
) -> None:
    """
    Show what is in a store's FOLDER: segments, snapshots, blocks, records; never a body.

    The store may be running. Nothing is changed. Exit code as ``verify``'s.
    """
    is_listing = with_blocks or with_records or position >= 0
    blocks: list[dict[str, Any]] = []

    def listed(block: ScannedBlock) -> None:
        is_wanted = segment in (0, block.segment.number)
        if position >= 0:
            is_wanted = is_wanted and block.position <= position < block.end
        if is_wanted and len(blocks) < count:
            is_full = with_records or position >= 0
            blocks.append(block_facts(block, names, with_records=is_full))

    surveyor = Surveyor(Folder(folder), listed) if is_listing else Surveyor(Folder(folder))
    names: QueueNames = surveyor.names
    found = _survey(surveyor)
    if as_json:
        click.echo(json.dumps({**_as_json(found), **({"blocks": blocks} if is_listing else {})}))
    else:
        for line in [] if is_listing else survey_lines(found):
            click.echo(line)
        for line in [line for facts in blocks for line in block_lines(facts)]:
            click.echo(line)
        for line in [*map(damage_line, found.damage), verdict(found)]:
            click.echo(line)
    sys.exit(DAMAGED if found.damage else 0)


def _survey(surveyor: Surveyor) -> Survey:
    try:
        return surveyor.run()
    except (NoStore, OSError) as error:
        click.echo(str(error), err=True)
        sys.exit(UNREADABLE)


def _as_json(found: Survey) -> dict[str, Any]:
    facts = asdict(found)
    facts["damage"] = [_damage_row(one) for one in found.damage]
    facts["snapshots"] = [one._asdict() for one in found.snapshots]
    return {"is_whole": not found.damage, **facts}


def _damage_row(one: Damage) -> dict[str, Any]:
    return one._asdict()
