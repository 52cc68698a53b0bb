"""
What operators do to running gateways: drain, weights, top, bench; and the edge as configured.

One name server, two stores and two gateways in two zones, as processes.
"""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from gateway.identity import hash_password
from protocols import clock
from tests.support.commands import answer_to, output_of, tidegate
from tests.support.paho_publish import published
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons, wait_until

pytestmark = pytest.mark.client

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CONFIG = """\
clusters: {{ default: {{ namesrv: "{namesrv}", zones: {{ broker-b: z-b }} }} }}
users: [ {{ name: root, password_hash: "{password}", roles: [admin] }} ]
mqtt: {{ auto_topics: 1 }}
routes:
  - name: weighted
    when: {{ topic: "weighted/#" }}
    to:
      - {{ cluster: default, topic: LIGHT, weight: 0 }}
      - {{ cluster: default, topic: HEAVY }}
  - name: hot
    when: {{ topic: "temp/#", expression: "degrees > 30" }}
    to: [ {{ cluster: default, topic: HOT }} ]
  - name: cold
    when: {{ topic: "temp/#" }}
    to: [ {{ cluster: default, topic: COLD }} ]
  - name: closed
    when: {{ topic: "hours/#", time: "{closed}" }}
    to: [ {{ cluster: default, topic: CLOSED }} ]
  - name: open
    when: {{ topic: "hours/#", time: [ "{closed}", "mon-sun 00:00-24:00 Europe/Berlin" ] }}
    to: [ {{ cluster: default, topic: OPEN }} ]
  - name: zoned
    when: {{ topic: "zoned/#" }}
    to: [ {{ cluster: default, topic: ZONED }} ]
    prefer: same_zone
  - name: default
    to: [ {{ cluster: default }} ]
"""


class System(NamedTuple):
    namesrv: Daemon
    store: Daemon
    here: Daemon
    there: Daemon

    @property
    def names(self) -> str:
        return self.namesrv.addresses["namesrv"]

    def stored(self, topic: str) -> dict[str, int]:
        """Messages of a topic by store; empty: there is no such topic."""
        done = answer_to("topic", "describe", topic, "--json", "-n", self.names)
        rows: dict[str, int] = {}
        for row in json.loads(done or "[]"):
            if row["messages"]:
                rows[row["broker"]] = rows.get(row["broker"], 0) + row["messages"]
        return rows


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with Daemons() as daemons:
        namesrv = daemons.namesrv("namesrv.metrics_bind=127.0.0.1:0")
        store = daemons.store(namesrv, "store.zone=z-a", "store.metrics_bind=127.0.0.1:0")
        daemons.store(namesrv, "store.directory=false", name="broker-b")
        path = daemons.folder / "gateway.yaml"
        today = clock.wall_ms() // 86_400_000 + 3  # 1 January 1970 was a Thursday
        path.write_text(
            CONFIG.format(
                namesrv=namesrv.addresses["namesrv"],
                password=hash_password("right"),
                closed=DAYS[(today + 3) % 7],  # in no time zone today
            )
        )
        arguments = ("-c", str(path))
        here = daemons.gateway("", "zone=z-a", name="gw-1", arguments=arguments)
        there = daemons.gateway(
            "", "zone=z-b", "mqtt.mapping=flat", name="gw-2", arguments=arguments
        )
        yield System(namesrv, store, here, there)


def operate(gateway: Daemon, *words: str, code: int = 0) -> Any:
    """An operator's command at a gateway; its JSON."""
    url = f"http://{gateway.addresses['admin']}"
    return json.loads(output_of(*words, "--url", url, "--user", "root:right", "--json", code=code))


def connect(gateway: Daemon, client_id: str) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    client.username_pw_set("root", "right")
    client.connect(*gateway.address("mqtt"))
    client.loop_start()
    wait_until(client.is_connected, "CONNACK")
    return client


def publish(gateway: Daemon, *topics: str, **properties: str) -> None:
    client = connect(gateway, f"publisher-{gateway.name}")
    told = Properties(PacketTypes.PUBLISH)
    told.UserProperty = [*properties.items()]
    for topic in topics:
        published(client, topic, b"x", properties=told)
    client.disconnect()
    client.loop_stop()


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


# ── the edge ────────────────────────────────────────────────────────────────────────────


def test_messages_stay_in_their_zone(system: System) -> None:
    """Each gateway takes the store of its zone: one told by its store, one by the file."""
    publish(system.here, *["zoned/1"] * 4)
    assert system.stored("ZONED") == {"broker-a": 4}
    publish(system.there, *["zoned/1"] * 3)
    assert system.stored("ZONED") == {"broker-a": 4, "broker-b": 3}


def test_expressions_and_hours(system: System) -> None:
    """A route by what a message's properties say, message by message; and by the time of day."""
    publish(system.here, "temp/1", "temp/2", degrees="31")
    publish(system.here, "temp/1", degrees="30")
    publish(system.here, "temp/1")
    assert [sum(system.stored(topic).values()) for topic in ("HOT", "COLD")] == [2, 2]
    publish(system.here, "hours/1")
    assert sum(system.stored("OPEN").values()) == 1
    assert system.stored("CLOSED") == {}


def test_topics_by_publishes(system: System) -> None:
    """One topic is the budget of both gateways; flat names are the whole topic name."""
    publish(system.there, "plant/7/door")
    assert sum(system.stored("plant_7_door").values()) == 1
    publish(system.here, "another/1")
    assert system.stored("another") == {}
    output_of("topic", "create", "plant_8_door", "-n", system.names)
    publish(system.there, "plant/8/door")
    assert sum(system.stored("plant_8_door").values()) == 1


def test_weights_are_set_at_every_gateway(system: System) -> None:
    """Told at one, obeyed at the other, until they are taken back."""

    def lands(topic: str) -> bool:
        before = sum(system.stored(topic).values())
        publish(system.there, "weighted/1")
        return sum(system.stored(topic).values()) > before

    assert lands("HEAVY")
    rows = operate(system.here, "weight", "weighted", "default/LIGHT=5", "default/HEAVY=0")
    assert [row["weight"] for row in rows["weights"]] == [5, 0]
    wait_until(lambda: lands("LIGHT"), "the other gateway obeys")
    operate(system.there, "weight", "weighted", "--reset")
    wait_until(lambda: lands("HEAVY"), "the file counts again")


def test_stores_are_listed_and_one_that_is_there_is_not_forgotten(system: System) -> None:
    rows = operate(system.there, "store", "list")["stores"]
    assert [(row["store"], row["state"]) for row in rows] == [
        ("broker-a", "up"),
        ("broker-b", "up"),
    ]
    options = ("--url", f"http://{system.here.addresses['admin']}", "--user", "root:right")
    done = tidegate("store", "forget", "broker-b", *options)
    assert done.returncode == 1
    assert "store broker-b is there: stop it" in done.stderr


# ── looking ─────────────────────────────────────────────────────────────────────────────


def test_metrics_of_store_and_name_server(system: System) -> None:
    """On ports of their own."""
    status, page = get(system.store.addresses["metrics"], "/metrics")
    assert status == 200
    assert "# TYPE tidegate_store_records_total counter" in page
    assert "tidegate_store_is_healthy 1.0" in page
    assert get(system.store.addresses["metrics"], "/healthz")[0] == 200
    address = system.namesrv.addresses["metrics"]
    wait_until(lambda: "tidegate_namesrv_brokers 2.0" in get(address, "/metrics")[1], "two brokers")
    assert get(system.namesrv.addresses["metrics"], "/nothing")[0] == 404


def test_bench_and_top(system: System) -> None:
    """Messages are sent and acknowledged; the stores' counts show them."""
    words = ("--seconds", "1", "--connections", "2", "--inflight", "4", "--json")
    mqtt = json.loads(
        output_of(
            "bench",
            *words,
            "--address",
            system.here.addresses["mqtt"],
            *("--user", "root:right", "--subscribers", "1", "--rate", "100"),
            *("--topic", "weighted/1"),
        )
    )
    assert (mqtt["sent"] > 0, mqtt["failed"]) == (True, 0)
    assert mqtt["received"] == mqtt["sent"]
    output_of("topic", "create", "BENCH", "-n", system.names)
    direct = ("--protocol", "remoting", "--topic", "BENCH", "--address", system.names)
    sent = json.loads(output_of("bench", *words, *direct))["sent"]
    assert sum(system.stored("BENCH").values()) == sent > 0
    picture = json.loads(output_of("top", "--count", "1", "--json", "-n", system.names))
    assert [row["store"] for row in picture["stores"]] == ["broker-a", "broker-b"]
    assert [row["gateway"] for row in picture["gateways"]] == ["gw-1", "gw-2"]


# ── drain, last: it ends this gateway's service ─────────────────────────────────────────


def test_a_drained_gateway_sends_its_clients_elsewhere(system: System) -> None:
    """
    MQTT 5 hears 0x9D and the other gateway's address, AMQP 320; health and discovery say so; it
    can be undone.
    """
    clients = [connect(system.here, f"c{number}") for number in range(4)]
    ends: list[tuple[int, str]] = []

    def ended(client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        ends.append((reason.value, getattr(properties, "ServerReference", "")))
        threading.Thread(target=client.loop_stop).start()

    for client in clients:
        client.on_disconnect = ended
    host, port = system.here.address("amqp")
    login = pika.PlainCredentials("root", "right")
    amqp = pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=login))
    status = operate(system.here, "drain", "--over", "1s")
    assert (status["stage"], status["clients"], status["others"]) == ("drained", 0, ["gw-2"])
    elsewhere = system.there.addresses["mqtt"]
    wait_until(lambda: len(ends) == len(clients), "all have heard")
    assert ends == [(0x9D, elsewhere)] * len(clients)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        amqp.process_data_events(PATIENCE_S)
    assert closed.value.reply_code == 320
    assert get(system.here.addresses["admin"], "/readyz")[0] == 503
    found = json.loads(output_of("namesrv", "gateways", "--json", "-n", system.names))
    assert [row["gateway"] for row in found if row["is_draining"]] == ["gw-1"]
    assert operate(system.here, "drain", "--undo")["stage"] == "serving"
    publish(system.here, "weighted/1")
    assert get(system.here.addresses["admin"], "/readyz")[0] == 200
