"""CloudEvents over HTTP at real gateways: curl, the CloudEvents SDK, webhooks over a crash."""

import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import argon2
import pytest
from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_http_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.v1.event import CloudEvent

from tests.support.patience import PATIENCE_S
from tests.support.processes import HURRIED, Daemon, Daemons, wait_until

pytestmark = [pytest.mark.client, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    with Daemons(tmp_path_factory.mktemp("events")) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def namesrv(daemons: Daemons) -> Daemon:
    namesrv = daemons.namesrv()
    daemons.store(namesrv)
    return namesrv


@pytest.fixture(scope="module")
def gateway(daemons: Daemons, namesrv: Daemon) -> Daemon:
    return daemons.gateway(namesrv)


def url_of(gateway: Daemon, path: str) -> str:
    return f"http://127.0.0.1:{gateway.port('events')}{path}"


def curl(*arguments: str) -> tuple[int, str]:
    """(status, body)."""
    command = ["curl", "-sS", "-m", "100", "-w", "\n%{http_code}", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    body, _, status = ended.stdout.rpartition("\n")
    return int(status), body


def post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.status, answer.read()


def pull(gateway: Daemon, topic: str, count: int) -> list[dict[str, Any]]:
    """Receive and acknowledge *count* events."""
    base = url_of(gateway, f"/topics/{topic}/subscriptions/readers")
    found: list[dict[str, Any]] = []

    def receive() -> bool:
        asked = json.dumps({"maxEvents": 100, "maxWaitTime": 2}).encode()
        got = json.loads(post(f"{base}:receive", asked, {})[1])["value"]
        found.extend(item["event"] for item in got)
        tokens = [item["brokerProperties"]["lockToken"] for item in got]
        if tokens:
            acked = json.loads(
                post(f"{base}:acknowledge", json.dumps({"lockTokens": tokens}).encode(), {})[1]
            )
            assert acked["succeededLockTokens"] == tokens
        return len(found) >= count

    wait_until(receive, f"{count} events")
    return found


def test_curl_binary_structured_and_batch(gateway: Daemon) -> None:
    """The three content modes by curl; all are there to pull."""
    url = url_of(gateway, "/topics/curl")
    headers = ["-H", "ce-specversion: 1.0", "-H", "ce-source: /s", "-H", "ce-type: t"]
    status, body = curl(
        url, *headers, "-H", "ce-id: b1", "-H", "Content-Type: text/plain", "-d", "hello"
    )
    assert (status, body) == (202, "")
    one = {"specversion": "1.0", "id": "s1", "source": "/s", "type": "t", "data": {"n": 1.10}}
    media = "Content-Type: application/cloudevents+json"
    assert curl(url, "-H", media, "-d", json.dumps(one))[0] == 202
    batch = [one | {"id": "x1"}, one | {"id": "x2"}]
    media = "Content-Type: application/cloudevents-batch+json"
    assert curl(url, "-H", media, "-d", json.dumps(batch))[0] == 202
    events = {event["id"]: event for event in pull(gateway, "curl", 4)}
    assert events["b1"]["data"] == "hello"
    assert events["s1"]["data"] == {"n": 1.1}
    assert set(events) == {"b1", "s1", "x1", "x2"}


def test_curl_is_told_what_is_wrong(gateway: Daemon) -> None:
    """problem+json names the attribute."""
    url = url_of(gateway, "/topics/curl")
    status, body = curl(url, "-H", "ce-specversion: 1.0", "-H", "ce-id: 1", "-d", "x")
    assert (status, json.loads(body)["attribute"]) == (400, "source")
    assert curl(url, "-d", "x")[0] == 415
    assert curl("-X", "PATCH", url)[0] == 405


def test_rejected_events_are_dead_letters(gateway: Daemon) -> None:
    """:reject moves an event to %DLQ%<group>, where it can be pulled."""
    event = ["-H", "ce-specversion: 1.0", "-H", "ce-id: bad", "-H", "ce-source: /s"]
    assert curl(url_of(gateway, "/topics/spoilt"), *event, "-H", "ce-type: t", "-d", "x")[0] == 202
    base = url_of(gateway, "/topics/spoilt/subscriptions/strict")
    got = json.loads(post(f"{base}:receive", b'{"maxWaitTime": 5}', {})[1])["value"]
    tokens = json.dumps({"lockTokens": [got[0]["brokerProperties"]["lockToken"]]}).encode()
    answer = json.loads(post(f"{base}:reject", tokens, {})[1])
    assert not answer["failedLockTokens"], answer
    (dead,) = pull(gateway, "%25DLQ%25strict", 1)
    assert dead["id"] == "bad"
    assert json.loads(post(f"{base}:receive", b'{"maxWaitTime": 0}', {})[1]) == {"value": []}


def sdk_event(identifier: str) -> CloudEvent:
    attributes = {
        "specversion": "1.0",
        "id": identifier,
        "source": "/sdk",
        "type": "station.up",
        "subject": "s/7",
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, {"value": 7})


@pytest.mark.parametrize("encode", [to_binary_event, to_structured_event])
def test_sdk_publishes(gateway: Daemon, encode: Any) -> None:
    """What the SDK writes comes back with every attribute."""
    message: HTTPMessage = encode(sdk_event("sdk-1"))
    status, _ = post(url_of(gateway, "/topics/sdk"), message.body, dict(message.headers))
    assert status == 202
    (event,) = pull(gateway, "sdk", 1)
    assert event.pop("time", "")  # the SDK fills it in
    assert event == {
        "specversion": "1.0",
        "id": "sdk-1",
        "source": "/sdk",
        "type": "station.up",
        "subject": "s/7",
        "datacontenttype": "application/json",
        "data": {"value": 7},
    }


def rules(password_hash: str) -> str:
    return f"""
version: 1
listeners:
  events: {{ protocol: cloudevents, bind: "127.0.0.1:0", tenant: "from_header X-Tenant" }}
users:
  - {{ name: shop, password_hash: "{password_hash}" }}
acl:
  - {{ allow: [publish, consume], identity: shop, topic: ["orders", "orders/#"], tenant: acme }}
throttle:
  - {{ name: slow, per: identity, publish: 1/s, burst: 1s }}
"""


def test_credentials_tenant_acl_and_throttle(
    daemons: Daemons, namesrv: Daemon, tmp_path: Path
) -> None:
    """401 without credentials, 403 by tenant and topic, 429 with Retry-After over the limit."""
    path = tmp_path / "rules.yaml"
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8192)
    path.write_text(rules(hasher.hash("s3cret")))
    gateway = daemons.gateway(namesrv, name="gw-3", arguments=["-c", str(path)])
    event = ["-H", "ce-specversion: 1.0", "-H", "ce-id: 1", "-H", "ce-source: /s"]
    event += ["-H", "ce-type: t", "-d", "x"]

    def status(topic: str, *arguments: str) -> int:
        return curl(url_of(gateway, f"/topics/{topic}"), *event, *arguments)[0]

    shop, acme = ("-u", "shop:s3cret"), ("-H", "X-Tenant: acme")
    assert status("orders", *acme) == 401
    assert status("orders", *acme, "-u", "shop:wrong") == 401
    assert status("orders", *shop) == 403
    assert status("others", *shop, *acme) == 403
    assert status("orders", *shop, *acme) == 202
    statuses = [status("orders", *shop, *acme) for _ in range(5)]
    assert 429 in statuses
    url = url_of(gateway, "/topics/orders")
    answer = subprocess.run(
        ["curl", "-sS", "-i", url, *event, *shop, *acme], capture_output=True, text=True
    ).stdout
    assert "429" in answer
    assert "retry-after" in answer.lower()


class Sink:
    """A webhook target in a thread; consents, and fails the first delivery of each event."""

    def __init__(self) -> None:
        sink = self
        self.events: list[CloudEvent] = []
        self.failed: set[str] = set()
        self.lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_OPTIONS(self) -> None:
                self.send_response(200)
                self.send_header("WebHook-Allowed-Origin", "*")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status = sink.take(dict(self.headers), body)
                self.send_response(status)
                if status == 503:
                    self.send_header("Retry-After", "1")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def take(self, headers: dict[str, str], body: bytes) -> int:
        event = from_http_event(HTTPMessage(headers=headers, body=body))
        with self.lock:
            if event.get_id() not in self.failed:
                self.failed.add(event.get_id())
                return 503
            self.events.append(event)
            return 204

    @property
    def ids(self) -> list[str]:
        with self.lock:
            return sorted({event.get_id() for event in self.events})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.close()


def delivered_count(gateway: Daemon) -> float:
    """How many webhook deliveries this gateway counts."""
    url = f"http://127.0.0.1:{gateway.port('admin')}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    name = "tidegate_webhook_deliveries_total"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture
def two_gateways(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    """A cluster of its own, because one of the two will die."""
    with Daemons(tmp_path) as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv, *HURRIED)
        yield daemons.gateway(namesrv), daemons.gateway(namesrv, name="gw-2")


def test_webhook_retries_and_survives_its_gateway(
    two_gateways: tuple[Daemon, Daemon], sink: Sink
) -> None:
    """Each event fails once and comes again; when the delivering gateway dies, another goes on."""
    gateway, other = two_gateways
    body = {"id": "hook", "sink": sink.url, "config": {"topic": "hooked"}}
    status, _ = post(url_of(other, "/subscriptions"), json.dumps(body).encode(), {})
    assert status == 201

    def send(through: Daemon, identifier: str) -> None:
        message = to_binary_event(sdk_event(identifier))
        url = url_of(through, "/topics/hooked")
        assert post(url, message.body, dict(message.headers))[0] == 202

    for number in range(5):
        send(other, f"a{number}")
    wait_until(lambda: len(sink.ids) == 5, "five events")
    assert sink.events[0].get_data() == {"value": 7}
    owner, survivor = (gateway, other) if delivered_count(gateway) else (other, gateway)
    assert not delivered_count(survivor)
    owner.kill()
    for number in range(5):
        send(survivor, f"b{number}")
    wait_until(lambda: len(sink.ids) == 10, "ten events")
    assert delivered_count(survivor)
