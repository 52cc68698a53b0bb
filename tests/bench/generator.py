"""Builds and runs the load generator; counters are read exactly around its measurement."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "loadgen"
BINARY = Path(__file__).parents[2] / "build" / "bench" / "loadgen"


class LoadFailed(Exception):
    """The server refused or ended a connection."""


class NoGenerator(Exception):
    """There is no Go compiler to build it with."""


def build() -> Path:
    """The generator, built if it is missing or older than its source."""
    newest = max(file.stat().st_mtime for file in SOURCE.iterdir())
    if BINARY.exists() and BINARY.stat().st_mtime >= newest:
        return BINARY
    if shutil.which("go") is None:
        raise NoGenerator("the load generator needs Go (apt-get install golang-go)")
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-trimpath", "-o", str(BINARY), "."],
        cwd=SOURCE,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    return BINARY


def run(
    arguments: list[str], *, before: Callable[[], None], after: Callable[[], None]
) -> dict[str, Any]:
    """One run; *before* and *after* are called when measuring begins and ends."""
    process = subprocess.Popen([str(build()), *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    result: dict[str, Any] = {}
    for line in process.stdout:
        if line.startswith("measuring"):
            before()
        elif line.startswith("measured"):
            after()
        else:
            result = json.loads(line)
    if process.wait() or not result:
        raise LoadFailed(f"loadgen {' '.join(arguments)} failed with {process.returncode}")
    return result
