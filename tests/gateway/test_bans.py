"""Bans and flapping: who is kept out, at every gateway, and until when."""

import asyncio

import msgspec
import pytest

from gateway.bans import KICK_MS, PREFIX, Ban, Bans
from gateway.clients import ClientTable
from gateway.config import FlappingConfig, LimitsConfig
from gateway.flapping import CLIENTS_MAX, Flapping
from protocols import clock
from protocols.errors import Code, Refused
from protocols.observing import ClientInfo
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.patience import PATIENCE_S


class Site:
    """One gateway's clients and bans over a shared directory."""

    def __init__(self, broker: FakeBroker, name: str) -> None:
        self.clients = ClientTable()
        self.kicked: list[str] = []
        self.bans = Bans(FakeServices(broker, name).directory, self.clients)

    def connect(self, client_id: str, user: str = "u", peer: str = "192.0.2.1:1") -> None:
        info = ClientInfo("mqtt", "mqtt", client_id, user, peer, clock.wall_ms())
        left = self.clients.joined(info, lambda: (self.kicked.append(client_id), left()))


@pytest.fixture
def sites() -> tuple[Site, Site]:
    broker = FakeBroker()
    return Site(broker, "gw-1"), Site(broker, "gw-2")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("client", "c1"), ("user", "ann"), ("ip", "192.0.2.1"), ("ip", "192.0.2.0/24")],
)
async def test_a_ban_closes_connections_and_holds_everywhere(
    sites: tuple[Site, Site], kind: str, value: str
) -> None:
    """Who it holds for goes and is refused, at both gateways; others stay."""
    for site in sites:
        site.connect("c1", "ann")
        site.connect("c2", "bob", "198.51.100.1:1")
    await sites[0].bans.add(Ban(kind=kind, value=value, reason="why"))  # type: ignore[arg-type]
    for site in sites:
        assert site.kicked == ["c1"]
        found = site.bans.find(peer="192.0.2.1:7", client_id="c1", user="ann")
        assert found is not None
        assert found.reason == "why"
        assert site.bans.find(peer="198.51.100.1:1", client_id="c2", user="bob") is None
    assert await sites[1].bans.remove(kind, value)
    assert not await sites[1].bans.remove(kind, value)
    assert sites[0].bans.find(peer="192.0.2.1:7", client_id="c1", user="ann") is None


async def test_a_kick_lifts_no_ban(sites: tuple[Site, Site]) -> None:
    """It closes once, keeps nobody out by whatever clock, and leaves a ban as it is."""
    here, there = sites
    there.connect("c1")
    await here.bans.add(Ban(kind="client", value="c1", until_ms=KICK_MS))
    assert there.kicked == ["c1"]
    assert there.bans.find(peer="192.0.2.1:7", client_id="c1") is None
    await here.bans.add(Ban(kind="client", value="c1"))
    await here.bans.add(Ban(kind="client", value="c1", until_ms=KICK_MS))
    assert there.bans.find(peer="192.0.2.1:7", client_id="c1") is not None


async def test_an_address_by_another_kind_of_socket(sites: tuple[Site, Site]) -> None:
    """An IPv4 address is the same one through an IPv6 socket; zones say nothing."""
    here = sites[0]
    await here.bans.add(Ban(kind="ip", value="192.0.2.0/24"))
    await here.bans.add(Ban(kind="ip", value="fe80::1", tenant="acme"))
    assert here.bans.find(peer="[::ffff:192.0.2.9]:5") is not None
    assert here.bans.find(peer="fe80::1%eth0:5") is not None
    assert here.bans.find(peer="/run/mqtt.sock#1") is None
    assert await here.bans.remove("ip", "fe80::1", "acme")


async def test_a_ban_ends_by_itself(sites: tuple[Site, Site]) -> None:
    """It is not looked at any more; a kick is a ban that is over at once."""
    site = sites[0]
    site.connect("c1")
    now_ms = clock.wall_ms()
    await site.bans.add(Ban(kind="client", value="c1", at_ms=now_ms, until_ms=now_ms))
    assert site.kicked == ["c1"]
    assert site.bans.find(peer="", client_id="c1") is None
    assert list(site.bans) == []


async def test_a_tenants_client_is_not_anothers(sites: tuple[Site, Site]) -> None:
    bans = sites[0].bans
    await bans.add(Ban(kind="client", value="c1", tenant="acme"))
    assert bans.find(peer="", client_id="c1", tenant="acme") is not None
    assert bans.find(peer="", client_id="c1", tenant="globex") is None


async def test_a_gateway_that_starts_later_knows_them() -> None:
    broker = FakeBroker()
    await Site(broker, "gw-1").bans.add(Ban(kind="ip", value="2001:db8::/32"))
    late = Site(broker, "gw-2")
    late.bans.start()
    assert late.bans.find(peer="[2001:db8::9]:5000") is not None
    await late.bans.close()


async def test_nonsense_is_refused(sites: tuple[Site, Site]) -> None:
    for ban in (Ban(kind="ip", value="10.0.0.0/99"), Ban(kind="client", value="")):
        with pytest.raises(Refused):
            await sites[0].bans.add(ban)


async def test_what_is_over_is_deleted(
    sites: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whichever gateway sees it first."""
    monkeypatch.setattr("gateway.bans.SWEEP_S", 0.01)
    directory = FakeServices(FakeBroker(), "gw-1").directory
    bans = Bans(directory, ClientTable())
    bans.start()
    await bans.add(Ban(kind="client", value="c1", until_ms=1))
    async with asyncio.timeout(PATIENCE_S):
        while list(directory.items(PREFIX)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await bans.close()
    assert len(bans) == 0


async def test_a_ban_holds_while_it_is_written(sites: tuple[Site, Site]) -> None:
    """Of a client, a user and an address; one that could not be written holds no longer."""
    bans = sites[0].bans
    held = asyncio.Event()

    async def put(puts: object) -> None:
        await held.wait()
        raise Refused(Code.PROXY_TIMEOUT, "directory", "no answer")

    bans._directory.put = put  # type: ignore[assignment,method-assign]
    kinds = {"client": "c1", "user": "ann", "ip": "192.0.2.1"}
    tasks = [
        asyncio.ensure_future(
            bans.add(Ban(kind=kind, value=value, until_ms=clock.wall_ms() + 60_000))
        )
        for kind, value in kinds.items()
    ]
    await asyncio.sleep(0)
    asked = ({"client_id": "c1"}, {"user": "ann"}, {"peer": "192.0.2.1:7"})
    assert all(bans.find(**{"peer": "", **who}) is not None for who in asked)
    held.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not any(bans.find(**{"peer": "", **who}) for who in asked)


def test_flapping_is_noticed_once_per_window() -> None:
    """The connection after the last normal one; a new window counts from nothing."""
    flapping = Flapping(FlappingConfig(connects=3, window="10s"))
    seen = [flapping.connects("", "c", now) for now in (0, 1, 2, 3, 4, 20, 21, 22, 23)]
    assert seen == [False, False, False, True, False, False, False, False, True]
    assert not flapping.connects("other tenant", "c", 24)


def test_flapping_forgets_the_oldest() -> None:
    flapping = Flapping(FlappingConfig())
    for number in range(CLIENTS_MAX + 10):
        flapping.connects("", str(number), 0.0)
    assert len(flapping._counts) == CLIENTS_MAX


def test_records_are_readable_by_others() -> None:
    """The stored form, which gateways of other versions read."""
    ban = Ban(kind="ip", value="10.0.0.0/8", until_ms=7)
    data = msgspec.msgpack.encode(ban)
    assert msgspec.msgpack.decode(data) == {"kind": "ip", "value": "10.0.0.0/8", "until_ms": 7}
    assert ban.key == "ban/ip//10.0.0.0/8"
    assert LimitsConfig().flapping is None
