"""The HTTP listener on real sockets: events in, pull, subscriptions, webhooks."""

import asyncio
import contextlib
import json
import logging
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from protocols.cloudevents.adapter import CloudEventsAdapter
from protocols.errors import ConfigError
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.patience import PATIENCE_S

EVENT = {
    "ce-specversion": "1.0",
    "ce-id": "1",
    "ce-source": "/plant",
    "ce-type": "station.up",
    "ce-subject": "s/7",
}


class Listener:
    """One adapter on one gateway of a fake cluster."""

    def __init__(self, services: FakeServices, **section: Any) -> None:
        self.services = services
        bind = {"protocol": "cloudevents", "bind": "127.0.0.1:0"}
        self.adapter = CloudEventsAdapter.from_config("events", bind | section)
        self.url = ""
        self.address = ("", 0)

    async def __aenter__(self) -> "Listener":
        self.serving = asyncio.ensure_future(self.adapter.serve(self.services))
        self.address = await self.services.address("events")
        self.url = f"http://{self.address[0]}:{self.address[1]}"
        return self

    async def __aexit__(self, *args: object) -> None:
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)


@pytest.fixture
def services() -> FakeServices:
    return FakeServices()


@pytest.fixture
async def listener(services: FakeServices) -> AsyncIterator[Listener]:
    async with Listener(services, handshake_s_max=0.5, webhook_handshake="off") as listener:
        yield listener


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(
    client: aiohttp.ClientSession, url: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    """POST a JSON document; (status, JSON answer)."""
    async with client.post(url, json=body or {}, headers=headers) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text else None


# ── in ──────────────────────────────────────────────────────────────────────────────────


async def test_binary_event_is_stored(listener: Listener, client: aiohttp.ClientSession) -> None:
    """202 after the store has it; attributes are CE_ properties, the body is exact."""
    headers = EVENT | {"Content-Type": "application/json", "ce-partitionkey": "k"}
    body = b'{"a": 1.10,"a":2}'
    async with client.post(f"{listener.url}/topics/up", data=body, headers=headers) as answer:
        assert (answer.status, await answer.read()) == (202, b"")
    stored = listener.services.broker.log[-1].message
    assert (stored.topic, stored.body, stored.subject) == ("up", body, "up/s/7")
    assert stored.properties["CE_id"] == "1"
    assert stored.properties["CE_contenttype"] == "application/json"
    assert stored.properties["__SHARDINGKEY"] == "k"


async def test_structured_and_batch(listener: Listener, client: aiohttp.ClientSession) -> None:
    """The Content-Type decides; a batch is stored in order."""
    event = {"specversion": "1.0", "id": "2", "source": "/p", "type": "t", "data": {"x": 1}}
    for kind, document in (("cloudevents", event), ("cloudevents-batch", [event, event])):
        headers = {"Content-Type": f"application/{kind}+json"}
        data = json.dumps(document)
        async with client.post(f"{listener.url}/topics/up", data=data, headers=headers) as answer:
            assert answer.status == 202
    assert [entry.message.body for entry in listener.services.broker.log] == [b'{"x": 1}'] * 3


@pytest.mark.parametrize(
    ("headers", "status", "attribute"),
    [
        ({"ce-id": ""}, 400, "id"),
        ({"ce-time": "yesterday"}, 400, "time"),
        ({"ce-Bad_Name": "x"}, 400, "bad_name"),
        ({"ce-subject": "%C0%A0"}, 400, "ce-subject"),
        ({"Content-Type": "application/cloudevents+avro"}, 415, "Content-Type"),
    ],
)
async def test_bad_events_name_the_attribute(
    listener: Listener,
    client: aiohttp.ClientSession,
    headers: dict[str, str],
    status: int,
    attribute: str,
) -> None:
    """problem+json tells which attribute is wrong."""
    async with client.post(
        f"{listener.url}/topics/up", data=b"x", headers=EVENT | headers
    ) as answer:
        assert answer.status == status
        assert answer.content_type == "application/problem+json"
        assert json.loads(await answer.read())["attribute"] == attribute


async def test_paths_and_methods(listener: Listener, client: aiohttp.ClientSession) -> None:
    """404 for an unknown path, 405 with Allow for another method, 415 for no event."""
    async with client.get(f"{listener.url}/nowhere") as answer:
        assert answer.status == 404
    async with client.get(f"{listener.url}/topics/up") as answer:
        assert answer.status == 405
        assert "POST" in answer.headers["Allow"]
    async with client.post(f"{listener.url}/topics/up", data=b"plain") as answer:
        assert answer.status == 415
    async with client.post(f"{listener.url}/topics/a.b", headers=EVENT) as answer:
        assert answer.status == 404


async def test_refusals_of_the_pipeline(
    services: FakeServices, client: aiohttp.ClientSession
) -> None:
    """403 by the ACL, 503 with Retry-After when no store is up, 413, 401, 404."""
    async with Listener(
        services, body_bytes_max=1024, request_bytes_max=4096, auto_create_topics=False
    ) as listener:
        url = f"{listener.url}/topics/up"

        async def status(body: bytes = b"x", **headers: str) -> tuple[int, str]:
            async with client.post(url, data=body, headers=EVENT | headers) as answer:
                return answer.status, answer.headers.get("Retry-After", "")

        assert (await status())[0] == 404
        services.broker.topics.add("up")
        assert (await status(bytes(1025)))[0] == 413
        assert (await status(bytes(5000)))[0] == 413
        services.denied.add(("publish", "up/#"))
        assert (await status())[0] == 403
        services.denied.clear()
        services.broker.is_down = True
        assert await status() == (503, "1")
        services.broker.is_down = False
        services.users["u"] = b"p"
        basic = "Basic dTpw"  # u:p
        assert (await status(Authorization="Basic x"))[0] == 401
        assert (await status(Authorization=basic))[0] == 202


async def test_a_new_topic_counts_once(services: FakeServices) -> None:
    """However many ask for it before it is there."""
    async with Listener(services, auto_topics_max=1) as listener, aiohttp.ClientSession() as client:

        async def send(topic: str) -> int:
            url = f"{listener.url}/topics/{topic}"
            async with client.post(url, data=b"x", headers=EVENT) as answer:
                return answer.status

        assert set(await asyncio.gather(*(send("fresh") for _ in range(20)))) == {202}
        assert await send("further") == 404


async def test_ingest_consents_to_webhooks(
    listener: Listener, client: aiohttp.ClientSession
) -> None:
    """OPTIONS answers the abuse-protection handshake."""
    headers = {"WebHook-Request-Origin": "eventemitter.example.com", "WebHook-Request-Rate": "120"}
    async with client.options(f"{listener.url}/topics/up", headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["WebHook-Allowed-Origin"] == "eventemitter.example.com"
        assert answer.headers["WebHook-Allowed-Rate"] == "120"


# ── sockets ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("opening", [b"", b"POST /topics/up HTTP/1.1\r\nHost: x\r\n"])
async def test_silent_handshake_is_closed(listener: Listener, opening: bytes) -> None:
    """No whole request head in time: closed."""
    reader, writer = await asyncio.open_connection(*listener.address)
    writer.write(opening)
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_malformed_request_has_no_traceback(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that are no HTTP get a 400 and end that connection; nothing is logged as ours."""
    with caplog.at_level(logging.DEBUG):
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"\x16\x03\x01 rubbish\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert b" 400 " in await reader.read()
        writer.close()
    assert not [record for record in caplog.records if record.exc_info]
    assert listener.services.metrics.value("http_malformed") == 1


# ── pull ────────────────────────────────────────────────────────────────────────────────


async def test_pull(listener: Listener, client: aiohttp.ClientSession) -> None:
    """receive, renewLock, release, reject, acknowledge with lock tokens."""
    for number in ("1", "2"):
        headers = EVENT | {"ce-id": number, "Content-Type": "text/plain"}
        async with client.post(f"{listener.url}/topics/up", data=b"up", headers=headers) as answer:
            assert answer.status == 202
    base = f"{listener.url}/topics/up/subscriptions/readers"
    status, got = await post(client, f"{base}:receive", {"maxEvents": 10, "maxWaitTime": 5})
    assert status == 200
    events = {one["event"]["id"]: one for one in got["value"]}
    assert events["1"]["event"] == {
        "specversion": "1.0",
        "id": "1",
        "source": "/plant",
        "type": "station.up",
        "subject": "s/7",
        "datacontenttype": "text/plain",
        "data": "up",
    }
    tokens = [events[number]["brokerProperties"]["lockToken"] for number in ("1", "2")]
    _, renewed = await post(client, f"{base}:renewLock", {"lockTokens": tokens[:1]})
    fresh = renewed["renewedLockTokens"][tokens[0]]
    _, released = await post(client, f"{base}:release", {"lockTokens": [fresh]})
    assert released["succeededLockTokens"] == [fresh]
    _, again = await post(client, f"{base}:receive", {"maxWaitTime": 5})
    (one,) = again["value"]
    assert (one["event"]["id"], one["brokerProperties"]["deliveryCount"] >= 2) == ("1", True)
    token = one["brokerProperties"]["lockToken"]
    _, acked = await post(client, f"{base}:acknowledge", {"lockTokens": [token, "rubbish"]})
    assert acked["succeededLockTokens"] == [token]
    assert acked["failedLockTokens"][0]["error"]["code"] == "INVALID_RECEIPT_HANDLE"
    _, rejected = await post(client, f"{base}:reject", {"lockTokens": tokens[1:]})
    assert rejected["succeededLockTokens"] == tokens[1:]
    assert listener.services.broker.log[-1].message.topic == "%DLQ%readers"
    _, empty = await post(client, f"{base}:receive", {"maxWaitTime": 0})
    assert empty == {"value": []}


async def test_pull_mistakes(listener: Listener, client: aiohttp.ClientSession) -> None:
    """Numbers out of bounds and missing tokens are 400, unknown topics 404."""
    base = f"{listener.url}/topics/mqtt/subscriptions/g"
    for verb, body in (("receive", {"maxEvents": 0}), ("acknowledge", {"lockTokens": "x"})):
        status, problem = await post(client, f"{base}:{verb}", body)
        assert (status, problem["attribute"]) == (400, next(iter(body)))
    status, _ = await post(client, f"{listener.url}/topics/none/subscriptions/g:receive")
    assert status == 404


# ── subscriptions and webhooks ──────────────────────────────────────────────────────────


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


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110  the fake has no event for it
            await asyncio.sleep(0.01)


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


def test_config_mistakes_are_named() -> None:
    """ConfigError names the listener and the key."""
    with pytest.raises(ConfigError) as error:
        CloudEventsAdapter.from_config("events", {"bind": "127.0.0.1:0", "batch_maxx": 1})
    assert "listeners.events.batch_maxx" in error.value.problems[0]


async def test_tls_listener(
    services: FakeServices, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """With ``tls:`` the port speaks HTTPS, and closes a peer that does not."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    await asyncio.to_thread(
        subprocess.run,
        [*command, *names, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    tls = {"cert": str(cert), "key": str(key)}
    async with Listener(services, tls=tls, handshake_s_max=0.5) as listener:
        trusted = ssl.create_default_context(cafile=str(cert))
        url = f"{listener.url.replace('http:', 'https:')}/topics/up"
        async with client.post(url, data=b"x", headers=EVENT, ssl=trusted) as answer:
            assert answer.status == 202
        reader, writer = await asyncio.open_connection(*listener.address)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_closing_answers_long_polls(
    services: FakeServices, client: aiohttp.ClientSession
) -> None:
    """A parked receive ends with an empty list, not with a broken connection."""
    services.broker.topics.add("up")
    async with Listener(services) as listener:
        url = f"{listener.url}/topics/up/subscriptions/g:receive"
        answer = asyncio.ensure_future(post(client, url, {"maxWaitTime": 60}))
        await until(lambda: "rmq/g/up" in services.broker.groups)
    async with asyncio.timeout(PATIENCE_S):
        assert await answer == (200, {"value": []})
