"""Routes over two broker clusters, ACL and throttles, from YAML to what clients see."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.commands import answer_to
from tests.support.paho_publish import published
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons, wait_until

pytestmark = pytest.mark.client

CONFIG = """\
clusters:
  eu: {{ namesrv: ["{eu}"] }}
  us: {{ namesrv: ["{us}"] }}
directory: {{ cluster: eu }}
routes:
  - name: alarms
    when: {{ protocol: mqtt, topic: "plants/+/alarm/#" }}
    to: [ {{cluster: us, topic: ALARM, key: "{{2}}", tag: alarm}} ]
    mirror: [ {{cluster: eu, percent: 100}} ]
  - name: canary
    when: {{ topic: "canary/#" }}
    to: [ {{cluster: eu, weight: 50}}, {{cluster: us, weight: 50}} ]
  - name: safe
    when: {{ topic: "safe/#" }}
    to: [ {{cluster: us}} ]
    failover: [eu]
    fail_back: 1s
    order: best_effort
  - name: default
    to: [ {{cluster: eu}} ]
acl:
  - {{ deny: [all], topic: "secret/#" }}
  - {{ allow: [all], topic: "#" }}
throttle:
  - {{ name: slow, per: identity, when: {{topic: "slow/#"}}, publish: 1/s, burst: 5s }}
"""


class System(NamedTuple):
    daemons: Daemons
    names: dict[str, Daemon]
    stores: dict[str, Daemon]
    gateway: Daemon

    def messages(self, cluster: str, topic: str) -> list[dict[str, Any]]:
        """All messages of a topic in one cluster."""
        where = ("-n", self.names[cluster].addresses["namesrv"], "--json")
        rows = json.loads(answer_to("topic", "describe", topic, *where) or "[]")
        count = sum(row["messages"] for row in rows)
        if not count:
            return []
        lines = answer_to("tail", topic, "--from-start", "--count", str(count), *where)
        return [json.loads(line) for line in lines.splitlines()]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with Daemons() as daemons:
        names, stores = {}, {}
        for cluster in ("eu", "us"):
            names[cluster] = daemons.namesrv(name=f"names-{cluster}")
            stores[cluster] = daemons.store(
                names[cluster],
                f"store.cluster={cluster}",
                f"store.directory={str(cluster == 'eu').lower()}",
                name=f"broker-{cluster}",
            )
        file = tmp_path_factory.mktemp("routes") / "gateway.yaml"
        addresses = {name: daemon.addresses["namesrv"] for name, daemon in names.items()}
        Path(file).write_text(CONFIG.format(**addresses))
        sets = [f"--set=listeners.{n}.bind=127.0.0.1:0" for n in ("mqtt-ws", "amqp", "remoting")]
        sets += [
            f"--set=listeners.{n}.bind=127.0.0.1:0" for n in ("mqtt", "events", "grpc", "admin")
        ]
        gateway = daemons.start("gateway", "-c", str(file), *sets, name="gateway")
        yield System(daemons, names, stores, gateway)


@pytest.fixture
def client(system: System) -> Iterator[paho.Client]:
    made = paho.Client(CallbackAPIVersion.VERSION2, "d1", protocol=paho.MQTTv5)
    made.connect("127.0.0.1", system.gateway.port("mqtt"))
    made.loop_start()
    wait_until(made.is_connected, "CONNACK")
    yield made
    made.disconnect()
    made.loop_stop()


def test_a_route_rewrites_topic_key_and_tag(system: System, client: paho.Client) -> None:
    """``plants/9/alarm/fire`` is stored in cluster us as ALARM, key 9, tag alarm; eu has a copy."""
    published(client, "plants/9/alarm/fire", "hot")
    published(client, "plants/9/temp", "20")
    stored = system.messages("us", "ALARM")
    (message,) = (item for item in stored if item["subject"] == "plants/9/alarm/fire")
    assert message["body"] == "hot"
    assert (message["properties"]["KEYS"], message["properties"]["TAGS"]) == ("9", "alarm")
    stored = system.messages("eu", "mqtt")
    assert [item["body"] for item in stored if item["subject"] == "plants/9/temp"] == ["20"]


def test_a_mirror_gets_copies_and_never_delays(system: System, client: paho.Client) -> None:
    """Best effort: what meets a mirror without the topic is dropped, and the topic made."""

    def is_mirrored() -> bool:
        published(client, "plants/9/alarm/again", "hot")
        return any(item["body"] == "hot" for item in system.messages("eu", "ALARM"))

    wait_until(is_mirrored, "a mirrored copy")


def test_weights_share_by_key_and_a_subscriber_sees_all(
    system: System, client: paho.Client
) -> None:
    """Half of the devices go to each cluster, each device always to the same; none is hidden."""
    got: list[str] = []
    client.on_message = lambda _client, _data, message: got.append(message.payload.decode())
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.subscribe("canary/#", 1)
    assert subscribed.wait(PATIENCE_S)
    others = []
    for number in range(12):
        device = paho.Client(CallbackAPIVersion.VERSION2, f"dev-{number}", protocol=paho.MQTTv5)
        device.username_pw_set(f"dev-{number}")
        device.connect("127.0.0.1", system.gateway.port("mqtt"))
        device.loop_start()
        others.append(device)
        for turn in range(3):
            published(device, f"canary/{number}", f"{number}/{turn}")
    wait_until(lambda: len(got) >= 36, "all deliveries")
    for device in others:
        device.disconnect()
        device.loop_stop()
    assert len(set(got)) == 36
    stored = {
        cluster: Counter(
            item["body"].partition("/")[0]
            for item in system.messages(cluster, "mqtt")
            if item["subject"].startswith("canary/")
        )
        for cluster in ("eu", "us")
    }
    assert all(stored.values())
    assert not set(stored["eu"]) & set(stored["us"])
    assert sum((stored["eu"] + stored["us"]).values()) == 36


def test_what_the_acl_denies_is_refused_in_the_protocols_words(
    system: System, client: paho.Client
) -> None:
    """MQTT 5: reason 0x87 on PUBACK and SUBACK; HTTP: 403."""
    reasons: list[int] = []
    client.on_publish = lambda _c, _d, _mid, reason, _p: reasons.append(reason.value)
    client.on_subscribe = lambda _c, _d, _mid, codes, _p: reasons.extend(c.value for c in codes)
    client.publish("secret/x", "s", qos=1)
    wait_until(lambda: len(reasons) == 1, "PUBACK")
    client.subscribe("secret/#", 1)
    wait_until(lambda: len(reasons) == 2, "SUBACK")
    assert reasons == [0x87, 0x87]
    assert post(system, "secret", "ce-subject", "x")[0] == 403


def test_what_is_throttled_is_told_so(system: System) -> None:
    """HTTP: 429 with Retry-After, once the burst is spent."""
    answers = [post(system, "slow", "ce-subject", "x") for _ in range(9)]
    assert [status for status, _ in answers[:5]] == [202] * 5
    refused = [retry for status, retry in answers if status == 429]
    assert refused
    assert all(int(retry) >= 1 for retry in refused)


def test_failover_goes_to_the_other_cluster(system: System, client: paho.Client) -> None:
    """With the only store of ``us`` gone its route goes on in ``eu``."""
    published(client, "safe/1", "before")
    assert [m["body"] for m in system.messages("us", "mqtt") if m["subject"] == "safe/1"] == [
        "before"
    ]
    system.stores["us"].kill()

    def is_moved() -> bool:
        published(client, "safe/1", "after")
        return any(m["subject"] == "safe/1" for m in system.messages("eu", "mqtt"))

    wait_until(is_moved, "the circuit opens, three seconds after the store was lost")
    system.stores["us"].restart()

    def is_back() -> bool:
        published(client, "safe/2", "back")
        return any(m["subject"] == "safe/2" for m in system.messages("us", "mqtt"))

    wait_until(is_back, "the route goes to its own cluster again")


def post(system: System, topic: str, *header: str) -> tuple[int, str]:
    """(status, Retry-After) of a CloudEvent."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": str(time.monotonic_ns()),
        "ce-source": "/t",
        "ce-type": "t",
        "content-type": "text/plain",
        header[0]: header[1],
    }
    url = f"http://{system.gateway.addresses['events']}/topics/{topic}"
    request = urllib.request.Request(url, b"x", headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.headers.get("Retry-After", "")
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, error.headers.get("Retry-After", "")
