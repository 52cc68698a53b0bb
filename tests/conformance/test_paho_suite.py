"""
eclipse/paho.mqtt.testing, every case of both versions, against ``tidegate up``.

Wants a checkout: ``PAHO_MQTT_TESTING=/path/to/paho.mqtt.testing``. See README.md here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Daemon, Daemons

HERE = Path(__file__).parent
CHECKOUT = os.environ.get("PAHO_MQTT_TESTING", "")

pytestmark = [
    pytest.mark.client,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not (Path(CHECKOUT) / "interoperability" / "client_test5.py").is_file(),
        reason="PAHO_MQTT_TESTING names no checkout of eclipse/paho.mqtt.testing",
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with Daemons() as daemons:
        yield daemons.up(arguments=("-c", str(HERE / "profile.yaml")))


@pytest.mark.parametrize(("suite", "count"), [("client_test", 10), ("client_test5", 27)])
def test_every_case_passes(server: Daemon, suite: str, count: int) -> None:
    """No case fails and none is missing."""
    host, port = server.address("mqtt")
    command = [sys.executable, str(HERE / "paho_suite.py"), CHECKOUT, suite, host, str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    cases = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [case for case in cases if not case["is_passed"]] == [], done.stderr[-4000:]
    assert len(cases) == count, done.stderr[-4000:]
