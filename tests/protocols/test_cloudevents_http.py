"""The HTTP listener on real sockets: events in, pull, TLS."""

import asyncio
import contextlib
import json
import logging
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from protocols.canonical import Call, Delivery
from protocols.cloudevents.access import Access
from protocols.cloudevents.adapter import CloudEventsAdapter
from protocols.cloudevents.guard import NoTracebacks
from protocols.errors import ConfigError
from protocols.groups import PopRequest
from tests.support.cloudevents_front import EVENT, Listener, post, until
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S


@pytest.fixture
async def listener(services: FakeServices) -> AsyncIterator[Listener]:
    async with Listener(services, handshake_s_max=0.5, webhook_handshake="off") as listener:
        yield listener


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


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


async def test_an_answer_as_late_as_the_listeners_end_has_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """aiohttp tells a future of its own that its closing has cancelled; other faults are told."""
    logger = logging.getLogger("tidegate.http.late")
    logger.addFilter(NoTracebacks(lambda: None))
    asked, may_answer = asyncio.Event(), asyncio.Event()
    protocols: list[web.RequestHandler[web.BaseRequest]] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        protocols.append(request.protocol)
        asked.set()
        await may_answer.wait()
        return web.Response(text="late")

    server = web.Server(answer, access_log=None, logger=logger)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
        given_up = asyncio.get_running_loop().create_future()
        given_up.cancel()
        protocols[0]._handler_waiter = given_up
        may_answer.set()
        assert (await reader.read()).endswith(b"late")
    writer.close()
    listening.close()
    assert not caplog.records
    try:
        given_up.set_result(None)
    except asyncio.InvalidStateError:
        logger.exception("ours")
    assert [record.getMessage() for record in caplog.records] == ["ours"]


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


async def test_a_receive_whose_client_has_gone_takes_nothing(
    services: FakeServices,
    listener: Listener,
    client: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What came then was hidden for nobody, and its first delivery said that it was the second."""
    services.broker.topics.add("up")
    url = f"{listener.url}/topics/up/subscriptions/g:receive"
    pop = services.pipeline.pop
    asked: list[int] = []
    called_off: list[int] = []

    async def noted(call: Call, request: PopRequest) -> list[Delivery]:
        asked.append(request.wait_ms)
        try:
            return await pop(call, request)
        except asyncio.CancelledError:
            called_off.append(request.wait_ms)
            raise

    monkeypatch.setattr(services.pipeline, "pop", noted)
    async with aiohttp.ClientSession() as other:
        await post(other, url, {"maxWaitTime": 0})
        waiting = asyncio.ensure_future(post(other, url, {"maxWaitTime": 60}))
        await until(lambda: asked == [0, 60_000])
        waiting.cancel()
    await until(lambda: called_off == [60_000])
    async with client.post(f"{listener.url}/topics/up", data=b"x", headers=EVENT) as answer:
        assert answer.status == 202
    _, found = await post(client, url, {"maxWaitTime": 5})
    assert [one["brokerProperties"]["deliveryCount"] for one in found["value"]] == [1]


async def test_a_request_whose_client_has_gone_leaves_no_traceback(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may close before its request is looked at; what a handler raises, aiohttp logs."""

    async def gone(access: Access, request: object) -> Call:
        raise ConnectionResetError("the client has gone")

    monkeypatch.setattr(Access, "call_of", gone)
    reader, writer = await asyncio.open_connection(*listener.address)
    writer.write(b"GET /subscriptions HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 499")
    writer.close()
    assert not caplog.records
