"""What a start imports: a process that joins under load takes its time from the others' cores."""

import subprocess
import sys

import pytest

from gateway.texts import describe
from protocols.mqtt.naming import RewriteRule

WANTED = (
    "gateway.cli",
    "gateway.commands.run",
    "gateway.app",
    "gateway.local",
    "protocols.daemon.lifecycle",
    "protocols.mqtt.adapter",
)
HEAVY = ("aiohttp", "attr", "yarl", "grpc", "google.protobuf", "jwt", "cloudevents", "argon2")


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (WANTED, (*HEAVY, "prometheus_client", "store", "namesrv", "wsgiref")),
        (("store.cli", "store.app"), (*HEAVY, "gateway.app", "namesrv", "wsgiref")),
        (("namesrv.cli", "namesrv.app"), (*HEAVY, "gateway.app", "store")),
    ],
    ids=["MQTT gateway", "store", "name server"],
)
def test_a_start_imports_nothing_heavy(modules: tuple[str, ...], heavy: tuple[str, ...]) -> None:
    """Each of these costs a tenth of a second or so; who needs one imports it when configured."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*heavy}.intersection(run.stdout.split()) == set()


def test_no_source_is_read_for_the_texts_of_settings() -> None:
    """pydantic's way to them parses the source of every class; the manual does that by itself."""
    assert "use_attribute_docstrings" not in RewriteRule.model_config
    describe(RewriteRule)
    texts = [info.description for info in RewriteRule.model_fields.values()]
    assert any(texts)
