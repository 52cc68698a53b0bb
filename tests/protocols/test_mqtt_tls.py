"""TLS listeners: encryption, ALPN, identity and tenant from the client's certificate."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from protocols.errors import ConfigError
from protocols.mqtt.adapter import MqttAdapter
from protocols.mqtt.packets import V5, Connect, SubscribeItem
from protocols.pipeline import Credentials
from tests.support.fake_services import FakeServices
from tests.support.mqtt_client import MqttClient
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def make_certificate(folder: Path, name: str, subject: str) -> tuple[str, str]:
    """A self-signed certificate and its key."""
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", subject, "-addext", "subjectAltName=DNS:localhost",
         "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return cert, key


def wait_for_a_word(address: tuple[str, int], context: ssl.SSLContext) -> None:
    with (
        socket.create_connection(address, PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.recv(1)


async def test_identity_and_tenant_come_from_the_certificate(tmp_path: Path) -> None:
    """Common name to the authenticator, organisation as tenant; without one: no handshake."""
    cert, key = make_certificate(tmp_path, "server", "/CN=localhost")
    device, device_key = make_certificate(tmp_path, "device", "/O=acme/CN=dev-7")
    services, seen = FakeServices(), list[Credentials]()
    authenticate = services.authenticate

    async def look(credentials: Credentials) -> object:
        seen.append(credentials)
        return await authenticate(credentials)

    services.authenticate = look  # type: ignore[method-assign, assignment] # to see what it gets
    tls = {"cert": cert, "key": key, "client_ca": device}
    adapter = MqttAdapter.from_config(
        "mqtts", {"bind": "127.0.0.1:0", "tls": tls, "tenant": "from_cert_o"}
    )
    context = ssl.create_default_context(cafile=cert)
    context.set_alpn_protocols(["mqtt"])
    context.load_cert_chain(device, device_key)
    anonymous = ssl.create_default_context(cafile=cert)
    async with services.serving(adapter, "mqtts") as address:
        async with MqttClient(address, Connect(V5, "c"), tls=context) as client:
            await client.subscribe(SubscribeItem("t", 1))
            await client.publish("t", b"secret", 0)
            assert (await client.publishes(1))[0].payload == b"secret"
        assert seen[0].certificate_name == "dev-7"
        assert {tenant for tenant, _ in services.broker.rows.values()} <= {"acme"}
        with pytest.raises(ssl.SSLError, match=r"(?i)alert"):  # it is told why
            await asyncio.to_thread(wait_for_a_word, address, anonymous)


def test_mistakes_are_named_together() -> None:
    """Each with the key it stands under."""
    with pytest.raises(ConfigError) as caught:
        MqttAdapter.from_config("mqtts", {"bind": "127.0.0.1:0", "receive_max": 0, "tsl": {}})
    assert {problem.split(":")[0] for problem in caught.value.problems} == {
        "listeners.mqtts.receive_max",
        "listeners.mqtts.tsl",
    }
