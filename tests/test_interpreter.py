"""``.ci/python`` chooses the interpreter that ``make`` makes the environment of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

GOOD = (
    "sysconfig.get_config_var = lambda name: '--enable-optimizations'; "
    "sysconfig.get_path = lambda name: '{headers}'"
)
SLOW = "sysconfig.get_config_var = lambda name: ''; sys.base_prefix = '/opt'"
OLD = "sys.version_info = (3, 9, 2); sys.version = '3.9.2 (old)'"
BARE = "sys.modules['ensurepip'] = None"
HEADLESS = GOOD + "; sysconfig.get_path = lambda name: '/none'"
ABSENT = "sys.exit(127)"


def interpreter(path: Path, nature: str) -> None:
    """An interpreter of that *nature* at *path*: ours, which is told another tale of itself."""
    path.parent.mkdir(exist_ok=True)
    headers = path.parent / "headers"
    headers.mkdir(exist_ok=True)
    (headers / "Python.h").touch()
    nature = nature.replace("{headers}", str(headers))
    program = f"import sys, sysconfig; {nature}; exec(sys.stdin.read())"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}"\n')
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("here", "system", "is_activated", "chosen", "said"),
    [
        (GOOD, GOOD, False, "python3", ""),
        (SLOW, GOOD, False, "system", "is slow"),
        (SLOW, GOOD, True, "python3", "it is activated"),
        (SLOW, SLOW, False, "python3", ""),
        (SLOW, OLD, False, "python3", ""),
        (SLOW, HEADLESS, False, "python3", ""),
        (HEADLESS, GOOD, False, "python3", ""),
        (OLD, GOOD, False, "system", "it is 3.9.2"),
        (OLD, GOOD, True, "system", "it is 3.9.2"),
        (BARE, SLOW, False, "system", "python3-venv"),
        (ABSENT, GOOD, False, "system", "it does not start"),
        (OLD, BARE, False, "", "Python 3.11 or newer is needed"),
    ],
)
def test_interpreter(
    tmp_path: Path, here: str, system: str, is_activated: bool, chosen: str, said: str
) -> None:
    """The system's where python3 will not do or is slow, but not if it was activated."""
    interpreter(tmp_path / "bin" / "python3", here)
    interpreter(tmp_path / "system", system)
    environment = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "SYSTEM_PYTHON": f"{tmp_path}/system",
    }
    if is_activated:
        environment["VIRTUAL_ENV"] = str(tmp_path)
    run = subprocess.run([ROOT / ".ci/python"], env=environment, capture_output=True, text=True)
    expected = {"system": f"{tmp_path}/system\n", "python3": "python3\n", "": ""}
    assert run.stdout == expected[chosen]
    assert said in run.stderr if said else not run.stderr
    assert (run.returncode == 0) == bool(chosen)
