"""The compiled modules, where there are any, are those that the project lists."""

import importlib
import os
import sysconfig
import tomllib
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LISTED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tidegate"]["compiled"]


@pytest.mark.parametrize("path", LISTED)
def test_what_is_imported_is_what_was_asked_for(path: str) -> None:
    """``PURE=1`` runs the sources; otherwise a compiled module hides its source."""
    source = ROOT / path
    compiled = source.with_name(source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
    name = path.removesuffix(".py").replace("/", ".")
    spec = PathFinder.find_spec(name, [str(source.parent)])
    is_plain = bool(os.environ.get("PURE")) or not compiled.exists()
    assert spec is not None
    assert spec.origin == str(source if is_plain else compiled)
    assert importlib.import_module(name)
