"""What one listener does unlike the others: the nameless, versions, socket files, old rights."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.identity import hash_password
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import V5, V31, V311, Connack, Connect, SubscribeItem
from protocols.mqtt.properties import Property
from tests.conformance.peer import Peer, reason_of, refusal
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons, wait_until

CONFIG = """
version: 1
users: [{{name: u, password_hash: "{hash}"}}]
acl_file: {folder}/acl
listeners:
  open: {{protocol: mqtt, bind: "127.0.0.1:0", anonymous: true, checks_retained_source: true}}
  own: {{protocol: mqtt, bind: "127.0.0.1:0", anonymous: true, guards_sessions: true}}
  new: {{protocol: mqtt, bind: "127.0.0.1:0", anonymous: true, versions: [5.0]}}
  old: {{protocol: mqtt, bind: "127.0.0.1:0", anonymous: true, versions: ["3.1", "3.1.1"]}}
  brief: {{protocol: mqtt, bind: "127.0.0.1:0", anonymous: true, backlog_max: 3}}
  briefer: {{protocol: mqtt, bind: "127.0.0.1:0", anonymous: true, backlog_max: 3,
    backlog_overflow: drop-new}}
  file: {{protocol: mqtt, bind: "unix:{folder}/mqtt.sock", anonymous: true}}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("listeners")
    (folder / "acl").write_text("topic readwrite t/#\n")
    path = folder / "gw.yaml"
    path.write_text(CONFIG.format(hash=hash_password("p"), folder=folder))
    with Daemons() as daemons:
        yield daemons.up(arguments=("-c", str(path)))


def acl_of(up: Daemon) -> Path:
    return Path(up.addresses["file"].removeprefix("unix:")).with_name("acl")


@pytest.mark.parametrize("version", [V311, V5])
def test_the_nameless_come_in_by_one_listener(up: Daemon, version: int) -> None:
    """Elsewhere they are refused, and a wrong password is refused everywhere."""
    nameless = Connect(version, "n")
    assert reason_of(refusal(up.address("mqtt"), version, nameless)) in (5, 0x87)
    with Peer(up.address("open"), version, nameless) as peer:
        assert peer.connack.reason == 0
    for user, password in (("u", b"wrong"), ("nobody", b"p"), ("u", None)):
        named = Connect(version, "n", user=user, password=password)
        assert reason_of(refusal(up.address("open"), version, named)) in (4, 5, 0x86, 0x87)
    with Peer(up.address("open"), version, Connect(version, "n", user="u", password=b"p")) as peer:
        assert peer.connack.reason == 0


@pytest.mark.parametrize("version", [V311, V5])
def test_a_session_is_of_who_made_it(up: Daemon, version: int) -> None:
    """Another user takes over neither the connection nor what is kept; the owner does."""
    address = up.address("own")
    kept = ((0x11, 100),) if version == V5 else ()
    mine = Connect(version, f"g{version}", False, user="u", password=b"p", properties=kept)
    others = mine._replace(user=None, password=None)
    with Peer(address, version, mine) as peer:
        assert reason_of(refusal(address, version, others)) == (0x87 if version == V5 else 5)
        assert peer.is_silent()
        with Peer(address, version, mine) as again:
            assert again.connack.session_present
            assert peer.is_ended(0x8E)
            again.leave()
    assert reason_of(refusal(address, version, others)) == (0x87 if version == V5 else 5)


def test_versions_that_a_listener_speaks(up: Daemon) -> None:
    """The others are told that they are not spoken, each in its own words."""
    for version in (V31, V311):
        assert refusal(up.address("new"), version, Connect(version, "v")) == b"\x20\x02\x00\x01"
        with Peer(up.address("old"), version, Connect(version, "v")) as peer:
            assert peer.connack.reason == 0
    assert refusal(up.address("old"), V5, Connect(V5, "v")) == b"\x20\x03\x00\x84\x00"
    with Peer(up.address("new"), V5, Connect(V5, "v")) as peer:
        assert peer.connack.reason == 0


@pytest.mark.parametrize("version", [V311, V5])
def test_what_waits_for_an_absent_client_is_bounded(up: Daemon, version: int) -> None:
    """The newest stay, or the oldest; without the limit, which may be taken away, all."""
    expected = {"brief": b"345", "briefer": b"123", "open": b"12345"}
    for listener, wanted in {**expected, "brief again": b"345", "open again": b"12345"}.items():
        address, topic = up.address(listener.split()[0]), f"t/{version}/{listener[:5]}"
        expiry = ((int(Property.SESSION_EXPIRY), 99),) if version == V5 else ()
        kept = Connect(version, "absent", clean_start=False, properties=expiry)
        with Peer(address, version, kept) as peer:
            assert peer.subscribe(SubscribeItem(topic, 1)) == (1,)
        with Peer(up.address("open"), V5, Connect(V5, "p")) as other:
            for body in b"12345":
                other.publish(topic, bytes((body,)), 1)
        with Peer(address, version, kept) as peer:
            assert b"".join(peer.payloads(len(wanted))) == wanted
            assert peer.is_silent()


def test_a_socket_file(up: Daemon) -> None:
    """Two clients at once; the ready line names the file."""
    path = up.addresses["file"].removeprefix("unix:")
    answers = []
    for name in ("one", "two"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(PATIENCE_S)
            client.connect(path)
            client.sendall(encode_packet(Connect(V311, name), V311))
            answers.append(client.recv(100))
    assert answers == [encode_packet(Connack(0, False), V311)] * 2


def test_a_retained_value_whose_publisher_may_no_more(up: Daemon) -> None:
    """It goes to no new subscriber, comes back with the right, and elsewhere nothing changes."""
    acl, item = acl_of(up), SubscribeItem("t/1")
    with (
        Peer(up.address("open"), V5, Connect(V5, "s")) as subscriber,
        Peer(up.address("old"), V311, Connect(V311, "o")) as other,
    ):
        with Peer(up.address("open"), V311, Connect(V311, "p")) as publisher:
            publisher.publish("t/1", b"kept", retain=True)

        def is_told() -> bool:
            assert subscriber.subscribe(item) == (0,)
            if subscriber.is_silent():
                return False
            subscriber.receive()  # the answer to that question
            return True

        assert is_told()
        acl.write_text("topic read t/#\n")
        up.signal(1)
        wait_until(lambda: not is_told(), "the rules that were reloaded")
        other.subscribe(item)
        assert other.payloads(1) == [b"kept"]
        acl.write_text("topic readwrite t/#\n")
        up.signal(1)
        wait_until(is_told, "the right that is back")
