"""Listeners with TLS, a load balancer in front, a bounded rate: real sockets, real handshakes."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from protocols import proxying
from protocols.canonical import Identity
from protocols.doors import Door, DoorSettings, open_door
from protocols.driver import BACKLOG
from protocols.mqtt.adapter import MqttAdapter
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import V5, Connect
from protocols.pipeline import Credentials
from protocols.tls import TlsSettings, make_context
from tests.support.certificates import Authority, Pair
from tests.support.fake_services import FakeServices
from tests.support.mqtt_client import MqttClient
from tests.support.patience import PATIENCE_S


class Site:
    """One MQTT listener and what its authenticator saw."""

    def __init__(self, **section: object) -> None:
        self.services = FakeServices()
        self.seen: list[Credentials] = []
        self.services.authenticate = self._look  # type: ignore[method-assign]
        self.adapter = MqttAdapter.from_config("mqtts", {"bind": "127.0.0.1:0", **section})
        self.address = ("", 0)

    async def _look(self, credentials: Credentials) -> Identity:
        self.seen.append(credentials)
        return Identity(name=credentials.certificate_name or "nobody")


@asynccontextmanager
async def site(**section: object) -> AsyncIterator[Site]:
    made = Site(**section)
    async with made.services.serving(made.adapter, "mqtts") as made.address:
        yield made


def client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


async def serial_at(address: tuple[str, int], authority: Authority) -> int:
    """Of the certificate that the server shows."""
    reader, writer = await asyncio.open_connection(
        *address, ssl=client_context(authority), server_hostname="localhost"
    )
    del reader
    shown = writer.get_extra_info("ssl_object").getpeercert()
    writer.transport.abort()
    return int(shown["serialNumber"], 16)


def spoil(path: str) -> None:
    Path(path).write_text("no PEM")


async def is_refused(address: tuple[str, int], context: ssl.SSLContext) -> bool:
    """With TLS 1.3 the client learns of its refusal only when it reads."""
    try:
        async with MqttClient(address, Connect(V5, "c"), tls=context):
            return False
    except (ssl.SSLError, ConnectionError, AssertionError):
        return True


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_a_new_certificate_is_shown_and_connections_stay(
    tmp_path: Path, authority: Authority
) -> None:
    """A reload reads the files again; who is connected stays; bad files change nothing."""
    old = authority.issue("server", ("CN", "localhost"))
    async with (
        site(tls={"cert": old.cert, "key": old.key}) as made,
        MqttClient(made.address, Connect(V5, "stays"), tls=client_context(authority)) as client,
    ):
        assert await serial_at(made.address, authority) == old.serial
        new = authority.issue("server", ("CN", "localhost"))
        made.adapter.refresh()
        assert await serial_at(made.address, authority) == new.serial
        spoil(new.key)
        made.adapter.refresh()
        assert await serial_at(made.address, authority) == new.serial
        await client.publish("t", b"still here")


async def test_a_changed_file_is_noticed_without_a_reload(
    tmp_path: Path, authority: Authority
) -> None:
    """The files are looked at every second."""
    old = authority.issue("server", ("CN", "localhost"))
    async with site(tls={"cert": old.cert, "key": old.key}) as made:
        new = authority.issue("server", ("CN", "localhost"))
        async with asyncio.timeout(PATIENCE_S):
            while await serial_at(made.address, authority) != new.serial:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_revoked_certificates_are_refused(tmp_path: Path, authority: Authority) -> None:
    """From the next handshake after the list changed."""
    server = authority.issue("server", ("CN", "localhost"))
    good, bad = (authority.issue(name, ("CN", name)) for name in ("good", "bad"))
    crl = tmp_path / "crl.pem"
    authority.revoke(crl)
    tls = {"cert": server.cert, "key": server.key, "client_ca": authority.path, "crl": str(crl)}
    async with site(tls=tls) as made:
        assert not await is_refused(made.address, client_context(authority, bad))
        authority.revoke(crl, bad.serial)
        made.adapter.refresh()
        assert await is_refused(made.address, client_context(authority, bad))
        assert not await is_refused(made.address, client_context(authority, good))
        assert await is_refused(made.address, client_context(authority))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("cn", "dev-7"),
        ("san_dns", "dev-7.example"),
        ("san_email", "dev@example"),
        ("san_uri", "urn:dev:7"),
    ],
)
async def test_the_identity_is_the_name_asked_for(
    tmp_path: Path, authority: Authority, source: str, expected: str
) -> None:
    """Common name, or an alternative name of a kind."""
    server = authority.issue("server", ("CN", "localhost"))
    device = authority.issue(
        "device",
        ("O", "acme"),
        ("CN", "dev-7"),
        alternatives=(
            x509.DNSName("dev-7.example"),
            x509.RFC822Name("dev@example"),
            x509.UniformResourceIdentifier("urn:dev:7"),
        ),
    )
    tls = {
        "cert": server.cert,
        "key": server.key,
        "client_ca": authority.path,
        "client_cert": "optional",
        "identity": source,
    }
    async with site(tls=tls) as made:
        assert not await is_refused(made.address, client_context(authority, device))
        assert not await is_refused(made.address, client_context(authority))
        assert [seen.certificate_name for seen in made.seen] == [expected, ""]


async def test_a_failed_handshake_leaves_nothing_behind(authority: Authority) -> None:
    """Who speaks no TLS is closed at once; it is counted, and the listener knows no client."""
    server = authority.issue("server", ("CN", "localhost"))
    async with site(tls={"cert": server.cert, "key": server.key}) as made:
        reader, writer = await asyncio.open_connection(*made.address)
        writer.write(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
        assert await reader.read() == b""
        writer.close()
        assert made.services.metrics.value("connections_failed") == 1
        assert made.services.metrics.gauges["mqtt_connections"]() == 0


CONNECT = encode_packet(Connect(V5, "c"), V5)


async def test_the_address_is_the_one_in_the_proxy_header() -> None:
    """For ACL, throttles and logs; a connection without a header is closed unread."""
    async with site(proxy_protocol=True) as made:
        for header in (
            b"PROXY TCP4 203.0.113.9 10.0.0.1 50000 1883\r\n",
            b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00",
        ):
            reader, writer = await asyncio.open_connection(*made.address)
            writer.write(header + CONNECT)
            assert (await reader.read(1))[:1] == b"\x20"
            writer.close()
        assert made.seen[0].peer == "203.0.113.9:50000"
        assert made.seen[1].peer.startswith("127.0.0.1:")
        reader, writer = await asyncio.open_connection(*made.address)
        writer.write((CONNECT + bytes(15))[:15])
        assert await reader.read() == b""
        writer.close()
        assert made.services.metrics.value("connections_failed") == 1


async def test_only_load_balancers_may_come() -> None:
    """Others are closed before they are read."""
    async with site(proxy_protocol=True, proxy_from="192.0.2.0/24") as made:
        reader, writer = await asyncio.open_connection(*made.address)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("wanted", "client", "verify", "is_let_in"),
    [
        ("tls", 0x01, 0, True),
        ("tls", 0x00, 0, False),
        ("certificate", 0x03, 0, True),
        ("certificate", 0x03, 1, False),
        ("certificate", 0x01, 0, False),
    ],
)
async def test_what_the_load_balancer_must_have_seen(
    wanted: str, client: int, verify: int, is_let_in: bool
) -> None:
    """TLS, or a certificate that it verified, by the SSL field of a header of version 2."""
    field = bytes((0x20, 0, 5, client)) + verify.to_bytes(4, "big")
    rest = bytes((203, 0, 113, 9, 10, 0, 0, 1, 0, 80, 0, 81)) + field
    header = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11" + len(rest).to_bytes(2, "big") + rest
    async with site(proxy_protocol=True, proxy_requires=wanted) as made:
        reader, writer = await asyncio.open_connection(*made.address)
        writer.write(header + (CONNECT if is_let_in else b""))
        assert (await reader.read(1))[:1] == (b"\x20" if is_let_in else b"")
        writer.close()


def test_what_a_balancer_must_have_seen_wants_one() -> None:
    with pytest.raises(ValidationError, match="wants proxy_protocol"):
        DoorSettings(proxy_requires="tls")


async def test_tls_behind_a_proxy_header(authority: Authority) -> None:
    """The header comes first, then the handshake."""
    server = authority.issue("server", ("CN", "localhost"))
    tls = {"cert": server.cert, "key": server.key}
    async with site(proxy_protocol=True, tls=tls) as made:
        reader, writer = await asyncio.open_connection(*made.address)
        writer.write(b"PROXY TCP4 203.0.113.9 10.0.0.1 50000 1883\r\n")
        await writer.start_tls(client_context(authority), server_hostname="localhost")
        writer.write(CONNECT)
        assert (await reader.read(1))[:1] == b"\x20"
        writer.transport.abort()
        assert made.seen[0].peer == "203.0.113.9:50000"


@pytest.mark.parametrize(("sender", "failures"), [("LOCAL", 0), ("TCP4 1.2.3.4 1.2.3.4 5 6", 1)])
async def test_a_health_check_may_leave_without_a_handshake(
    authority: Authority, sender: str, failures: int
) -> None:
    """A client that does is counted."""
    server = authority.issue("server", ("CN", "localhost"))
    header = f"PROXY {sender}\r\n".encode()
    if sender == "LOCAL":
        header = proxying.SIGNATURE + b"\x20\x00\x00\x00"
    async with site(proxy_protocol=True, tls={"cert": server.cert, "key": server.key}) as made:
        reader, writer = await asyncio.open_connection(*made.address)
        writer.write(header)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert made.services.metrics.value("connections_failed") == failures


def test_what_is_wrong_with_a_file_is_said_with_its_name(
    tmp_path: Path, authority: Authority
) -> None:
    """Missing, no PEM, of another pair, behind a password (nobody is asked for one)."""
    good, other = (authority.issue(name, ("CN", name)) for name in ("good", "other"))
    garbage, locked = tmp_path / "garbage.pem", tmp_path / "locked.key"
    garbage.write_text("garbage")
    key = serialization.load_pem_private_key(Path(good.key).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    wrong = [
        ({"cert": "gone.pem", "key": good.key}, "gone.pem"),
        ({"cert": garbage, "key": good.key}, "garbage.pem and .*: no PEM of a certificate"),
        ({"cert": good.cert, "key": locked}, "locked.key: .*without a password"),
        ({"cert": good.cert, "key": other.key}, "other.key: the key is not that of"),
        ({"cert": good.cert, "key": good.key, "client_ca": garbage}, "garbage.pem: no PEM of"),
    ]
    for files, said in wrong:
        with pytest.raises(OSError, match=said):
            make_context(TlsSettings.model_validate(files))


async def test_connections_above_the_rate_wait_in_the_kernel() -> None:
    """Nobody is refused; the last of them is let in when its time has come."""
    services = FakeServices()
    accepted: list[float] = []
    loop = asyncio.get_running_loop()

    class Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(loop.time())

    settings = DoorSettings(accept_rate=20)  # a second's worth may come at once
    door = Door(Noting, settings, "noting", services.metrics, (), 5.0)
    await door.open("127.0.0.1:0")
    address = door.sockets[0].getsockname()
    start = loop.time()
    writers = [(await asyncio.open_connection(*address))[1] for _ in range(24)]
    async with asyncio.timeout(PATIENCE_S):
        while len(accepted) < 24:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert accepted[23] - start >= 0.15
    door.close()
    await door.wait_closed()
    for writer in writers:
        writer.close()


def test_a_revocation_list_wants_its_authority() -> None:
    with pytest.raises(ValidationError, match="wants client_ca"):
        TlsSettings.model_validate({"cert": "a", "key": "b", "crl": "c"})


SOMAXCONN = int(Path("/proc/sys/net/core/somaxconn").read_text())
BACKLOG_AT = 28
"""``tcpi_sacked`` of struct tcp_info: of a listener the most connections that wait."""


@pytest.mark.parametrize("settings", [DoorSettings(), DoorSettings(accept_rate=1000)])
async def test_many_connections_may_wait_to_be_accepted(settings: DoorSettings) -> None:
    """With 1,024 places a client among 1,500 strangers was made to try again for 14 s."""
    door = await open_door(
        asyncio.Protocol, "127.0.0.1:0", settings, name="mqtt", metrics=FakeServices().metrics
    )
    for one in door.sockets:
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        assert struct.unpack_from("=I", info, BACKLOG_AT) == (min(BACKLOG, SOMAXCONN),)
    door.close()
    await door.wait_closed()
