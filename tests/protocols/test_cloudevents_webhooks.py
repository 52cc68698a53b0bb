"""Subscriptions and webhooks over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.support.cloudevents_front import EVENT, Listener, post, until
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.patience import PATIENCE_S


@pytest.fixture
async def listener(services: FakeServices) -> AsyncIterator[Listener]:
    async with Listener(services, handshake_s_max=0.5, webhook_handshake="off") as listener:
        yield listener


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Sink:
    """A webhook target that answers as told."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.consent = "*"
        self.asked = 0
        self.url = ""
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> "Sink":
        app = web.Application()
        app.router.add_post("/hook", self._post)
        app.router.add_options("/hook", self._options)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/hook"
        return self

    async def __aexit__(self, *args: object) -> None:
        await self._runner.cleanup()

    async def _post(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        self._arrived.set()
        status, headers = self.answers.pop(0) if self.answers else (204, {})
        return web.Response(status=status, headers=headers)

    async def _options(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(headers={"WebHook-Allowed-Origin": self.consent})

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.got) < count:
                self._arrived.clear()
                await self._arrived.wait()


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    async with Sink() as sink:
        yield sink


def subscription(target: Sink, **more: Any) -> dict[str, Any]:
    return {"id": "s1", "sink": target.url, "config": {"topic": "up"}} | more


async def send(client: aiohttp.ClientSession, listener: Listener, **headers: str) -> None:
    async with client.post(
        f"{listener.url}/topics/up", data=b"data", headers=EVENT | headers
    ) as answer:
        assert answer.status == 202


async def settled(services: FakeServices, group: str = "ce/s1") -> None:
    """Until nothing of the group is in flight."""
    await until(lambda: not services.broker.groups[group].in_flight)


async def test_webhook_delivers_what_the_filters_want(
    listener: Listener, client: aiohttp.ClientSession, sink: Sink
) -> None:
    """Binary mode, with our origin and the bearer token; other events are skipped."""
    body = subscription(
        sink,
        types=["station.up"],
        filters=[{"prefix": {"subject": "s/"}}],
        sinkcredential={"credentialtype": "ACCESSTOKEN", "accesstoken": "secret"},
    )
    status, made = await post(client, f"{listener.url}/subscriptions", body)
    assert (status, made["id"], made["status"]) == (201, "s1", "active")
    assert "sinkcredential" not in made
    await send(client, listener, **{"ce-type": "station.down"})
    await send(client, listener)
    await sink.wait(1)
    ((headers, data),) = sink.got
    assert data == b"data"
    assert (headers["ce-type"], headers["ce-subject"]) == ("station.up", "s/7")
    assert headers["Authorization"] == "Bearer secret"
    assert headers["WebHook-Request-Origin"] == "tidegate"
    await settled(listener.services)


async def test_webhook_retries_then_buries(
    listener: Listener, client: aiohttp.ClientSession, sink: Sink
) -> None:
    """503 comes again after Retry-After; 400, or too many tries, goes to the dead-letter topic."""
    body = subscription(sink, config={"topic": "up", "mode": "structured", "attemptsMax": 2})
    assert (await post(client, f"{listener.url}/subscriptions", body))[0] == 201
    again = {"Retry-After": "0"}
    sink.answers = [(503, again), (200, {}), (400, {}), (500, again), (500, again)]
    await send(client, listener)
    await sink.wait(2)
    assert json.loads(sink.got[1][1])["id"] == "1"
    await send(client, listener, **{"ce-id": "2"})
    await sink.wait(3)
    await send(client, listener, **{"ce-id": "3"})
    await sink.wait(5)
    await settled(listener.services)
    dead = [
        entry.message
        for entry in listener.services.broker.log
        if entry.message.topic == "%DLQ%ce-s1"
    ]
    assert [one.properties["CE_id"] for one in dead] == ["2", "3"]
    assert [one.properties["CE_gwerrorcode"] for one in dead] == ["400", "500"]


async def test_gone_retires_the_subscription(
    listener: Listener, client: aiohttp.ClientSession, sink: Sink
) -> None:
    """410 ends it until it is replaced."""
    body = subscription(sink)
    await post(client, f"{listener.url}/subscriptions", body)
    sink.answers = [(410, {})]
    await send(client, listener)
    await sink.wait(1)
    url = f"{listener.url}/subscriptions/s1"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with client.get(url) as answer:
                if (await answer.json())["status"] == "retired":
                    break
    async with client.put(url, json=body) as answer:
        assert (answer.status, (await answer.json())["status"]) == (200, "active")
    await sink.wait(2)


async def test_no_events_without_consent(
    services: FakeServices, client: aiohttp.ClientSession, sink: Sink
) -> None:
    """The handshake is asked first; another origin's consent is none."""
    sink.consent = "someone.else.example"
    async with Listener(services) as listener:
        await post(client, f"{listener.url}/subscriptions", subscription(sink))
        await send(client, listener)
        await until(lambda: sink.asked > 0)
        assert not sink.got
        sink.consent = "TideGate"
        await sink.wait(1)


async def test_another_gateway_takes_over(client: aiohttp.ClientSession, sink: Sink) -> None:
    """One gateway delivers; when its lease ends the other does."""
    broker = FakeBroker()
    first, second = FakeServices(broker, "gw-1"), FakeServices(broker, "gw-2", epoch=2)
    more = {"webhook_handshake": "off"}
    async with Listener(first, **more) as one, Listener(second, **more) as two:
        assert (await post(client, f"{one.url}/subscriptions", subscription(sink)))[0] == 201
        await send(client, two)
        await sink.wait(1)
        record = first.directory.get("ce/owner//s1")
        assert record is not None
        loser, winner = (first, two) if record.gateway == "gw-1" else (second, one)
        broker.end_lease(loser.name, loser.epoch)
        await until(lambda: first.directory.get("ce/owner//s1") not in (None, record))
        await send(client, winner, **{"ce-id": "2"})
        await sink.wait(2)


async def test_subscription_api(
    listener: Listener, client: aiohttp.ClientSession, sink: Sink
) -> None:
    """Make, list, show, replace, delete; conflicts and unknown ids have their codes."""
    url = f"{listener.url}/subscriptions"
    body = subscription(sink)
    assert (await post(client, url, body))[0] == 201
    assert (await post(client, url, body))[0] == 409
    async with client.get(url) as answer:
        assert [one["id"] for one in await answer.json()] == ["s1"]
    changed = subscription(sink, config={"subjects": ["plants/+/alarm/#"]})
    async with client.put(f"{url}/s1", json=changed) as answer:
        assert answer.status == 200
    rows = [row.subject_filter for _, row in listener.services.broker.rows.values()]
    assert rows == ["plants/+/alarm/#"]
    async with client.put(f"{url}/s2", json=subscription(sink, id="s2")) as answer:
        assert answer.status == 404
    async with client.options(url) as answer:
        assert "POST" in answer.headers["Allow"]
        assert "prefix" in (await answer.json())["dialects"]
    async with client.delete(f"{url}/s1") as answer:
        assert answer.status == 204
    async with client.get(f"{url}/s1") as answer:
        assert answer.status == 404
    assert not listener.services.broker.rows


@pytest.mark.parametrize(
    ("change", "attribute"),
    [
        ({"sink": "ftp://x/y"}, "sink"),
        ({"sink": "http://u:p@x/y"}, "sink"),
        ({"config": {}}, "config.subjects"),
        ({"config": {"subjects": ["a/#/b"]}}, "config.subjects"),
        ({"filters": [{"sql": "x"}]}, "filters"),
        ({"surprise": 1}, "surprise"),
        ({"id": "a b"}, "id"),
        ({"protocol": "MQTT5"}, "protocol"),
    ],
)
async def test_subscription_mistakes(
    listener: Listener,
    client: aiohttp.ClientSession,
    sink: Sink,
    change: dict[str, Any],
    attribute: str,
) -> None:
    """400 naming the member."""
    status, problem = await post(
        client, f"{listener.url}/subscriptions", subscription(sink, **change)
    )
    assert (status, problem["attribute"]) == (400, attribute)
