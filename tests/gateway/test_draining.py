"""Draining: who is asked to leave when, and where to; weights set at run time."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.clients import ClientTable
from gateway.config import GatewayConfig
from gateway.draining import Drain, Stage, due, like
from gateway.weights import Weights
from protocols.errors import Refused
from protocols.observing import ClientInfo
from protocols.remoting.discovery import GatewayListener, GatewayRegister
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.patience import PATIENCE_S

MQTT = GatewayListener(name="mqtt", protocol="mqtt", address="a:1883")


def other(name: str, zone: str, *listeners: GatewayListener) -> GatewayRegister:
    return GatewayRegister(gateway=name, zone=zone, listeners=list(listeners))


def test_clients_leave_evenly() -> None:
    """A first step at once, the last one before the time is over, each as large as the others."""
    asked = [due(100, step * 0.5, 2.0) for step in range(5)]
    assert asked == [25, 50, 75, 100, 100]
    assert due(3, 0.0, 0.0) == 3
    assert due(0, 0.0, 30.0) == 0


def test_where_to() -> None:
    """A like listener of the same name; TLS stays TLS; our zone before others."""
    tls = GatewayListener(name="mqtts", protocol="mqtt", address="b:8883", is_tls=True)
    plain = GatewayListener(name="mqtt", protocol="mqtt", address="b:1883")
    second = GatewayListener(name="mqtt-2", protocol="mqtt", address="c:1884")
    others = [other("b", "z1", tls, plain), other("c", "z2", second)]
    assert like(MQTT, others, "z1") == ["b:1883"]
    assert like(MQTT, others, "z2") == ["c:1884"]
    assert like(MQTT, others, "z3") == ["b:1883", "c:1884"]
    assert like(GatewayListener(name="amqp", protocol="amqp", address="a:5672"), others, "") == []


class Bench:
    """A drain of a table of clients, with one other gateway."""

    def __init__(self) -> None:
        self.clients = ClientTable()
        self.told = 0
        self.is_open = True
        self.drain = Drain(
            self.clients,
            name="a",
            zone=lambda: "",
            find_others=self._others,
            own=lambda: {"mqtt": MQTT},
            changed=self._tell,
            close=self._close,
            reopen=self._reopen,
        )

    def join(self, *, leaves: bool = True) -> None:
        def leave() -> None:
            asyncio.get_running_loop().call_soon(left)

        info = ClientInfo("mqtt", "mqtt", "c", "anonymous", "127.0.0.1:1", 0)
        left = self.clients.joined(info, lambda: None, leave if leaves else None)

    def _tell(self) -> None:
        self.told += 1

    async def _others(self) -> list[GatewayRegister]:
        own, gone = other("a", "", MQTT), GatewayRegister(gateway="d", is_draining=True)
        plain = GatewayListener(name="mqtt", protocol="mqtt", address="b:1883")
        return [own, other("b", "", plain), gone]

    async def _close(self) -> None:
        self.is_open = False

    async def _reopen(self) -> None:
        self.is_open = True


async def test_all_leave_and_the_listeners_close() -> None:
    """Then it can be undone."""
    bench = Bench()
    for _ in range(5):
        bench.join()
    assert not bench.drain.is_on
    with pytest.raises(Refused, match="for amqp: neither a listener nor a protocol here: mqtt"):
        bench.drain.begin(0, {"amqp": "x:5672"})
    assert not bench.drain.is_on
    bench.drain.begin(0, {"mqtt": "b:1883"})
    assert bench.drain.is_on
    async with asyncio.timeout(PATIENCE_S):
        while bench.drain.stage is not Stage.DRAINED:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.001)
    assert (len(bench.clients), bench.is_open, bench.told) == (0, False, 1)
    assert bench.drain.another("mqtt") == "b:1883"
    assert bench.drain.status()["others"] == ["b"]
    await bench.drain.undo()
    assert (bench.drain.is_on, bench.is_open, bench.told) == (False, True, 2)
    await bench.drain.close()


def test_those_without_a_polite_way_stay() -> None:
    """Until their listener closes; nobody is asked twice."""
    clients = ClientTable()
    asked: list[int] = []

    def ask(number: int) -> Callable[[], None]:
        return lambda: asked.append(number)

    info = ClientInfo("mqtt", "mqtt", "c", "anonymous", "127.0.0.1:1", 0)
    for number in range(3):
        clients.joined(info, lambda: None, ask(number) if number != 1 else None)
    assert clients.ask_to_leave(1) == 1
    assert clients.ask_to_leave(9) == 1
    assert clients.ask_to_leave(9) == 0
    assert asked == [0, 2]


# ── weights ─────────────────────────────────────────────────────────────────────────────


def config() -> GatewayConfig:
    return GatewayConfig.model_validate(
        {
            "clusters": {name: {"namesrv": ["127.0.0.1:9876"]} for name in ("eu", "us")},
            "routes": [
                {
                    "name": "canary",
                    "to": [
                        {"cluster": "eu", "weight": 95},
                        {"cluster": "us", "topic": "A", "weight": 3},
                        {"cluster": "us", "topic": "B", "weight": 2},
                    ],
                }
            ],
        }
    )


def in_force(weights: Weights) -> list[int]:
    return [target.weight for target in weights.applied(config()).routes[0].to]


async def test_weights_hold_at_every_gateway() -> None:
    """By cluster, or cluster/topic; over those of the file, until they are taken back."""
    broker = FakeBroker()
    changes: list[int] = []
    here = Weights(FakeServices(broker, "a").directory, lambda: changes.append(1))
    there = Weights(FakeServices(broker, "b").directory, lambda: changes.append(2))
    await here.set(config(), "canary", {"eu": 0, "us/B": 7})
    assert in_force(here) == in_force(there) == [0, 3, 7]
    assert sorted(changes) == [1, 2]
    await there.set(config(), "canary", {"eu": 1})
    assert in_force(here) == [1, 3, 7]
    assert [row["file_weight"] for row in here.table(config())] == [95, 3, 2]
    assert await there.reset("canary")
    assert in_force(here) == [95, 3, 2]
    assert not await there.reset("canary")


@pytest.mark.parametrize(
    ("route", "row", "hint"),
    [
        ("nope", {"eu": 1}, "no route of that name"),
        ("canary", {"asia": 1}, "route canary has eu, us, us/A, us/B"),
        ("canary", {"eu": -1}, "a weight is 0 to"),
        ("canary", {"eu": "1"}, "a weight is 0 to"),
        ("canary", {"eu": 0, "us": 0}, "no target would have a weight"),
    ],
)
async def test_weights_that_are_refused(route: str, row: dict[str, object], hint: str) -> None:
    """What would leave messages nowhere to go, and what is no weight of a target."""
    weights = Weights(FakeServices().directory, lambda: None)
    with pytest.raises(Refused, match=hint):
        await weights.set(config(), route, row)
