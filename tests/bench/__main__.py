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

from tests.bench import mqtt
from tests.bench.generator import NoGenerator, build
from tests.bench.servers import Cluster, Local, Mosquitto, Server, sync_ms

HEAD = (
    *("case", "server", "durable by", "msg/s", "x peer"),
    *("p50 ms", "p99 ms", "CPU us", "msg/sync", "gen CPU"),
)


def main() -> int:
    options = read_options()
    try:
        build()
    except NoGenerator as error:
        print(error, file=sys.stderr)
        return 1
    machine = {
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
    return judge(rows) if options.check else 0


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
    kinds: list[type[Server]] = [Cluster, Local]
    if shutil.which("mosquitto") is not None:
        kinds.insert(0, Mosquitto)
    else:
        print("no Mosquitto here (apt-get install mosquitto): no ratios\n", file=sys.stderr)
    rows: list[mqtt.Row] = []
    cases = [case for case in mqtt.CASES if options.case in case.name]
    for kind in kinds:
        if options.server not in kind.name:
            continue
        with kind() as server:
            for number, case in enumerate(cases):
                rows.append(mqtt.run_case(case, server, seconds=options.seconds, number=number))
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
        ))  # fmt: skip
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line in lines:
        cells = [
            text.ljust(width) if column < 3 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def judge(rows: list[mqtt.Row]) -> int:
    """1 if a row misses its target."""
    targets = {case.name: case.target for case in mqtt.CASES}
    missed = [row for row in rows if row.ratio and row.ratio < targets[row.case]]
    for row in missed:
        print(f"below target {targets[row.case]}: {row.case} on {row.server}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
