"""
``make bench``: peers started here, one table on stdout, the same as JSON in ``bench.json``.

Options go through ``make bench BENCH="--seconds 5 --case 'QoS 1'"``.
"""

import argparse
import dataclasses
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.bench import mqtt
from tests.bench.generator import LoadFailed, NoGenerator, build
from tests.bench.servers import Cluster, Local, Mosquitto, Pair, Server, sync_ms

HEAD = (
    *("case", "server", "durable by", "msg/s", "x peer"),
    *("p50 ms", "p99 ms", "CPU us", "msg/sync", "gen CPU", ""),
)


def main() -> int:
    options = read_options()
    try:
        build()
    except NoGenerator as error:
        print(error, file=sys.stderr)
        return 1
    machine: dict[str, Any] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "fdatasync_ms": round(sync_ms(), 3),
    }
    print(
        f"{machine['cores']} cores shared with the generator, Python {machine['python']}, "
        f"fdatasync {machine['fdatasync_ms']} ms\n"
    )
    rows = run(options)
    print_table(rows)
    report = {"machine": machine, "rows": [row.as_json() for row in rows]}
    Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    missed = judge(rows, machine["fdatasync_ms"])
    return 1 if missed and options.check else 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, per row")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--server", default="", help="only servers whose name contains this")
    parser.add_argument("--json", default="bench.json", help="where the report goes")
    parser.add_argument("--check", action="store_true", help="fail below a target")
    return parser.parse_args()


def run(options: argparse.Namespace) -> list[mqtt.Row]:
    """Each server by itself, so that none takes the other's processor."""
    kinds: list[type[Server]] = [Cluster, Pair, Local]
    if shutil.which("mosquitto") is not None:
        kinds.insert(0, Mosquitto)
    else:
        print("no Mosquitto here (apt-get install mosquitto): no ratios\n", file=sys.stderr)
    rows: list[mqtt.Row] = []
    cases = [case for case in mqtt.CASES if options.case in case.name]
    for kind in kinds:
        its = [case for case in cases if kind.name in case.servers]
        if options.server not in kind.name or not its:
            continue
        with kind() as server:
            for number, case in enumerate(its):
                try:
                    rows.append(mqtt.run_case(case, server, seconds=options.seconds, number=number))
                except LoadFailed as error:
                    print(f"{case.name} on {kind.name}: {error}", file=sys.stderr)
    return with_ratios(rows)


def with_ratios(rows: list[mqtt.Row]) -> list[mqtt.Row]:
    """Sorted by case, each with its rate over the peer's."""
    peers = {row.case: row.rate for row in rows if row.server == Mosquitto.name}
    names = [case.name for case in mqtt.CASES]
    rated = [
        dataclasses.replace(row, ratio=row.rate / peers[row.case])
        if row.case in peers and row.server != Mosquitto.name
        else row
        for row in rows
    ]
    return sorted(rated, key=lambda row: names.index(row.case))


def print_table(rows: list[mqtt.Row]) -> None:
    lines = [HEAD]
    for row in rows:
        lines.append((
            row.case,
            row.server,
            row.durability,
            f"{row.rate:,.0f}",
            f"{row.ratio:.2f}" if row.ratio else "",
            f"{row.p50_ms:.3f}",
            f"{row.p99_ms:.3f}",
            f"{row.cpu_us:.2f}",
            f"{row.per_sync:.0f}" if row.per_sync else "",
            f"{row.gen_cpu_pct:.0f} %",
            row.remark,
        ))  # fmt: skip
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line in lines:
        cells = [
            text.ljust(width) if column < 3 or column == len(HEAD) - 1 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def judge(rows: list[mqtt.Row], fdatasync_ms: float) -> bool:
    """Say what misses a target; whether anything does."""
    missed = [(row, text) for row in rows for text in mqtt.misses(row, rows, fdatasync_ms)]
    if missed:
        print("\nnot reached:")
    for row, text in missed:
        print(f"  {row.case} on {row.server}: {text}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
