"""Who may use the admin API, and what it counts."""

import base64

import pytest

from gateway.admin.access import COOKIE, Access, is_loopback_name
from gateway.clients import ClientTable
from gateway.metrics import CHILDREN_MAX, Registry
from protocols.canonical import Call, Identity
from protocols.observing import ClientInfo
from protocols.pipeline import Credentials


class Door:
    """An authenticator and permission of one admin and one reader."""

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        known = credentials.password == b"right"
        return Identity(name=credentials.user) if known else None

    def is_allowed(self, call: Call, operation: str, **_: str) -> bool:
        return operation == "admin" and call.identity.name == "root"


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8089", True),
        ("localhost:8089", True),
        ("localhost", True),
        ("[::1]:8089", True),
        ("evil.example:8089", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_only_loopback_names_may_read_without_credentials(host: str, expected: bool) -> None:
    """A page on another name cannot be made to read by DNS rebinding."""
    assert is_loopback_name(host) is expected


async def test_a_token_is_good_once_and_becomes_a_session() -> None:
    """The cookie lasts; the token does not."""
    access = Access("admin", Door(), Door(), is_open=lambda: True)
    token = access.token
    assert await access.may_change({"Authorization": f"Bearer {token}"}, {}, "p")
    session = access.open_session(token)
    assert session
    assert access.open_session(token) == ""
    assert not await access.may_change({"Authorization": f"Bearer {token}"}, {}, "p")
    assert await access.may_change({}, {COOKIE: session}, "p")
    assert not await access.may_change({}, {COOKIE: session + "x"}, "p")


async def test_with_users_everything_takes_an_admin() -> None:
    """No token, no open reading; a user who is no admin is not enough."""
    access = Access("admin", Door(), Door(), is_open=lambda: False)
    assert access.token == ""
    assert not access.may_read("localhost:1")
    assert await access.may_change(basic("root", "right"), {}, "p")
    assert not await access.may_change(basic("root", "wrong"), {}, "p")
    assert not await access.may_change(basic("bob", "right"), {}, "p")
    assert not await access.may_change({"Authorization": "Basic ???"}, {}, "p")
    assert not await access.may_change({"Authorization": "Bearer "}, {}, "p")


async def test_the_first_user_of_a_reload_closes_what_was_open() -> None:
    """Nobody reads without credentials any more, nor by the token; an admin comes in."""
    users: list[str] = []
    access = Access("admin", Door(), Door(), is_open=lambda: not users)
    token = access.token
    assert access.may_read("localhost:1")
    users.append("root")
    assert not access.may_read("localhost:1")
    assert access.open_session(token) == ""
    assert not await access.may_change({"Authorization": f"Bearer {token}"}, {}, "p")
    assert await access.may_change(basic("root", "right"), {}, "p")


def test_the_table_of_clients() -> None:
    """Joined, kicked, left; leaving twice is leaving once."""
    table = ClientTable()
    left: list[str] = []
    kicked: list[str] = []
    table.on_left(lambda info: left.append(info.client_id))
    info = ClientInfo("mqtt", "mqtt", "c1", "anonymous", "127.0.0.1:5", 1)
    leave = table.joined(info, lambda: kicked.append("c1"))
    table.joined(info._replace(protocol="amqp"), lambda: kicked.append("other"))
    assert table.kick("c1", protocol="mqtt") == 1
    assert kicked == ["c1"]
    leave()
    leave()
    assert left == ["c1"]
    assert len(table) == 1


def test_counters_and_gauges_are_exposed() -> None:
    """Prometheus text; label values without bound share one child."""
    registry = Registry()
    registry.counter("sent", "Sent.", listener="a").inc(2)
    registry.gauge("open", "Open.", lambda: 7, listener="a")
    registry.count_from("in", "In.", lambda: 3)
    registry.collect_from(lambda: [("store_end", "End.", 9.0), ("store_end_total", "All.", 9.0)])
    page = registry.expose()[0].decode()
    for line in (
        'tidegate_sent_total{listener="a"} 2.0',
        'tidegate_open{listener="a"} 7.0',
        "tidegate_in_total 3.0",
        "# TYPE tidegate_store_end gauge",
        "tidegate_store_end 9.0",
        "# TYPE tidegate_store_end_total counter",
        "tidegate_store_end_total 9.0",
    ):
        assert line in page.splitlines()
    for number in range(CHILDREN_MAX + 10):
        registry.counter("many", "Many.", topic=str(number)).inc()
    assert registry.value("many", topic="…") == 10
