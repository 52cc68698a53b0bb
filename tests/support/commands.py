"""The command ``tidegate``, run as scripts run it: each time a process of its own."""

import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until

UNHEARD = ("HA_NOT_AVAILABLE", "PROXY_TIMEOUT")
"""Exit code 1 for want of an answer in time, which says nothing of what was asked."""


def tidegate(
    *words: str, text: str | None = None, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """How it ended and what it wrote; *text* is its stdin."""
    command = [sys.executable, "-m", "gateway.cli", *words]
    return subprocess.run(
        command, capture_output=True, text=True, input=text, timeout=PATIENCE_S, cwd=cwd
    )


def output_of(*words: str, code: int = 0, text: str | None = None) -> str:
    """Its stdout; it must end with *code*."""
    done = tidegate(*words, text=text)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def answer_to(*words: str) -> str:
    """The stdout of a question, which is asked again while nobody answers; "": there is none."""

    def ask() -> "subprocess.CompletedProcess[str] | None":
        done = tidegate(*words)
        is_unheard = done.returncode == 1 and any(word in done.stderr for word in UNHEARD)
        return None if is_unheard else done

    done = wait_until(ask, f"an answer to {' '.join(words)}")
    assert done.returncode in (0, 1), done.stderr
    return str(done.stdout)
