"""
What holds for all tests: which form of the compiled modules, how long, and how often.

The compiled modules are fresh ones, or with ``PURE=1`` their sources.
"""

import gc
import os
import subprocess
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

import hypothesis
import pytest

from tests.support import paho_sockets

SLOW = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large)
hypothesis.settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=SLOW
)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=10_000)
hypothesis.settings.load_profile("same")  # a loaded machine is slow, not wrong
"""The same examples in every run; others: ``--hypothesis-profile=soak``, by hand."""

ROOT = Path(__file__).parent.parent
OURS = ("gateway", "namesrv", "protocols", "store")
ORDER = 20
"""Tests are shuffled, the same way in every run; another way: ``--randomly-seed=7``."""

TIMEOUT_S_MIN = 900
"""Of tests with real clients."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("randomly_seed", None) == "default":
        config.option.randomly_seed = ORDER
    paho_sockets.use()
    if os.environ.get("PURE"):
        use_sources()
    elif subprocess.run([sys.executable, ROOT / ".ci/compile", "--check"], check=False).returncode:
        pytest.exit("a compiled module is older than its source", returncode=3)


REAL = ("client", "java", "spark")
"""Marks of tests with programs that nobody here wrote, over processes and sockets."""


def is_real(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in REAL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    A hang ends, and a JVM that a slow machine takes minutes to start is none.

    In continuous integration a test with real programs has a second chance; the report names it.
    Files with such tests come first: short ones are left for the end of a run in two processes.
    """
    long_files = {item.path for item in items if is_real(item)}
    items.sort(key=lambda item: item.path not in long_files)
    for item in items:
        if is_real(item):
            marker = item.get_closest_marker("timeout")
            if marker is None or marker.args[0] < TIMEOUT_S_MIN:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S_MIN), append=False)
            if os.environ.get("CI"):
                item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage need look at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a real client leaves to the collector is told of its own test, not of a later one."""
    if is_real(item):
        gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A second chance is one with new daemons: the first may have killed some, or left messages."""
    if getattr(item, "execution_count", 1) > 1 and isinstance(item, pytest.Function):
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                if definition.scope == "module":
                    definition.finish(item._request)


def use_sources() -> None:
    """Import our packages from their sources, whatever lies beside those."""
    finder = FileFinder.path_hook((SourceFileLoader, SOURCE_SUFFIXES))

    def ours_only(path: str) -> object:
        if not any(Path(path).is_relative_to(ROOT / name) for name in OURS):
            raise ImportError(path)
        return finder(path)

    sys.path_hooks.insert(0, ours_only)
    sys.path_importer_cache.clear()
