"""Which form of the compiled modules is tested: fresh ones, or with ``PURE=1`` their sources."""

import os
import subprocess
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("gateway", "namesrv", "protocols", "store")
TIMEOUT_S_MIN = 900
"""Of tests with real clients."""


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("PURE"):
        use_sources()
    elif subprocess.run([sys.executable, ROOT / ".ci/compile", "--check"], check=False).returncode:
        pytest.exit("a compiled module is older than its source", returncode=3)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A hang ends, and a JVM that a slow machine takes minutes to start is none."""
    for item in items:
        if any(item.get_closest_marker(name) for name in ("client", "java", "spark")):
            marker = item.get_closest_marker("timeout")
            if marker is None or marker.args[0] < TIMEOUT_S_MIN:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S_MIN), append=False)


def use_sources() -> None:
    """Import our packages from their sources, whatever lies beside those."""
    finder = FileFinder.path_hook((SourceFileLoader, SOURCE_SUFFIXES))

    def ours_only(path: str) -> object:
        if not any(Path(path).is_relative_to(ROOT / name) for name in OURS):
            raise ImportError(path)
        return finder(path)

    sys.path_hooks.insert(0, ours_only)
    sys.path_importer_cache.clear()
