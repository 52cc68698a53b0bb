"""The examples under conf/ are valid, and its page says what the classes say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import config as configuration
from gateway.local import full_schema, other_models
from gateway.manual import manual
from tests.support.patience import PATIENCE_S

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("name", ["gateway", "store", "namesrv", "spark"])
def test_examples_are_valid(name: str) -> None:
    """With the tests that stand in them."""
    loaded = configuration.read(CONF / f"{name}.yaml", environ={})
    for block, model in other_models().items():
        if block in loaded.document.value:
            model.model_validate(loaded.document.value[block])


def test_the_manual_is_up_to_date() -> None:
    """Generated from the docstrings: ``python -m gateway.manual > conf/README.md``."""
    assert (CONF / "README.md").read_text() == manual(other_models())


def test_every_setting_is_described() -> None:
    """A key without a text is a key nobody can use."""
    empty = [
        f"{name}.{key}"
        for name, model in json.loads(json.dumps(full_schema()))["$defs"].items()
        for key, item in model.get("properties", {}).items()
        if "description" not in item and name in DESCRIBED
    ]
    assert empty == []


DESCRIBED = {"ClusterConfig", "ListenerConfig", "RouteConfig", "ThrottleConfig", "StoreConfig"}


def test_the_schema_is_printed() -> None:
    """For editors; JSON on stdout."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "config", "schema"],
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert json.loads(done.stdout)["properties"]["listeners"]
