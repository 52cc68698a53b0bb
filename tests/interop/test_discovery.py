"""Name servers, stores and a gateway as processes: who is lost, who disagrees, who is found."""

import asyncio
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from protocols.errors import Refused
from protocols.remoting.bodies import ClusterInfo, decode_body
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from tests.support import commands
from tests.support.commands import output_of
from tests.support.paho_publish import published
from tests.support.patience import PATIENCE_S
from tests.support.processes import HURRIED, Daemon, Daemons, wait_until

pytestmark = pytest.mark.client


def brokers_at(name_server: Daemon) -> set[str]:
    """Who is registered there."""

    async def ask() -> set[str]:
        client = await RemotingClient.connect(name_server.addresses["namesrv"])
        try:
            answer = await client.request(
                RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), PATIENCE_S
            )
        finally:
            await client.close()
        return set(decode_body(ClusterInfo, answer.body).broker_addr_table)

    return asyncio.run(ask())


def tidegate(*words: str) -> Any:
    """A command's JSON."""
    return json.loads(output_of(*words, "--json") or "[]")


def post(gateway: Daemon, topic: str) -> int:
    """Status of a CloudEvent to *topic*."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": str(time.monotonic_ns()),
        "ce-source": "/t",
        "ce-type": "t",
        "content-type": "text/plain",
    }
    url = f"http://{gateway.addresses['events']}/topics/{topic}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, b"x", headers), timeout=PATIENCE_S
        ) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    with Daemons() as daemons:
        yield daemons


def three_name_servers(daemons: Daemons) -> tuple[list[Daemon], str]:
    names = [daemons.namesrv(name=f"ns-{number}") for number in range(3)]
    return names, ";".join(name.addresses["namesrv"] for name in names)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_store_leaves_the_routes(daemons: Daemons, how: signal.Signals) -> None:
    """
    Killed: its connection has gone. Stopped: the connection is there, the heartbeats are not.

    How soon is judged on a clock of their own by the tests of the registry.
    """
    names, addresses = three_name_servers(daemons)
    store = daemons.store(addresses, name="broker-a")
    for name in names:
        wait_until(lambda name=name: brokers_at(name) == {"broker-a"}, "registered")
    store.signal(how)
    for name in names:
        wait_until(lambda name=name: brokers_at(name) == set(), "gone")
    if how is signal.SIGSTOP:
        store.signal(signal.SIGCONT)
        for name in names:
            wait_until(lambda name=name: brokers_at(name) == {"broker-a"}, "back")


def test_name_servers_that_disagree(daemons: Daemons) -> None:
    """
    One hangs, one was restarted and knows nothing yet, one goes on: the newest word counts.
    """
    names, addresses = three_name_servers(daemons)
    stores = [
        daemons.store(
            addresses, f"store.directory={str(letter == 'a').lower()}", name=f"b-{letter}"
        )
        for letter in "ab"
    ]
    gateway = daemons.gateway(addresses, "cloudevents.auto_create_topics=false")
    tidegate("topic", "create", "before", "-n", addresses)
    assert post(gateway, "before") == 202
    names[0].signal(signal.SIGSTOP)
    stores[1].kill()  # names[0] does not hear of it
    live = names[1].addresses["namesrv"]
    wait_until(lambda: brokers_at(names[1]) == {"b-a"}, "b-b is gone")
    tidegate("topic", "create", "between", "-n", live)
    assert post(gateway, "between") == 202
    names[2].restart()
    wait_until(lambda: "b-a" in brokers_at(names[2]), "registered again")
    assert post(gateway, "before") == 202
    names[1].kill()
    heard = f"{names[2].addresses['namesrv']} answers again"
    wait_until(lambda: heard in gateway.log(), "the restarted one is heard")
    tidegate("topic", "delete", "between", "-n", names[2].addresses["namesrv"])
    # No publish before the deletion is known: the store would make the topic again.
    listed = ("topic", "list", "-n", names[2].addresses["namesrv"])
    wait_until(lambda: "between" not in tidegate(*listed), "the deletion is known")
    assert post(gateway, "between") == 404
    stores[1].restart()
    names[0].signal(signal.SIGCONT)  # its word on "between" is older than that of names[2]
    wait_until(lambda: brokers_at(names[0]) == {"b-a", "b-b"}, "all are heard again")
    assert post(gateway, "between") == 404
    assert post(gateway, "before") == 202


def test_without_name_servers_traffic_goes_on(daemons: Daemons) -> None:
    """
    Publish, subscribe and consume by what is known; a gateway that starts then says what it
    lacks, and serves as soon as a name server is back.
    """
    names, addresses = three_name_servers(daemons)
    daemons.store(addresses, *HURRIED)
    gateway = daemons.gateway(addresses)
    assert post(gateway, "t") in (202, 404)
    client = connect(gateway, "c1")
    published(client, "t/1", b"warm")
    for name in names:
        name.kill()
    got: list[bytes] = []
    client.on_message = lambda _c, _d, message: got.append(message.payload)
    granted: list[int] = []
    client.on_subscribe = lambda _c, _d, _m, codes, _p: granted.extend(c.value for c in codes)
    client.subscribe("t/#", 1)
    wait_until(lambda: granted == [1], "SUBACK")
    published(client, "t/2", b"without names")
    wait_until(lambda: got == [b"without names"], "the delivery")
    client.disconnect()
    client.loop_stop()

    gateway.kill()
    again = daemons.start(*gateway.command[3:], name="again", wait=False)
    wait_until(lambda: "nothing is known yet" in again.log(), "it says what it lacks")
    names[1].restart()
    again.wait_ready()
    wait_until(lambda: post(again, "mqtt") == 202, "it serves")


def test_clients_ask_for_gateways(daemons: Daemons) -> None:
    """By protocol, topic and zone; over HTTP and by the command; one that drains is left out."""
    name = daemons.namesrv("namesrv.metrics_bind=127.0.0.1:0")
    daemons.store(name, "store.zone=z1")
    for number in (1, 2):
        daemons.gateway(
            name,
            f"zone=z{number}",
            f"listeners.mqtt.advertise=gw{number}.example:1883",
            name=f"gw-{number}",
        )
    address = name.addresses["namesrv"]
    tidegate("topic", "create", "plants", "-n", address)

    def asked(query: str) -> dict[str, Any]:
        url = f"http://{name.addresses['metrics']}/gateways?{query}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return dict(json.load(answer))

    wait_until(lambda: len(asked("")["gateways"]) == 2, "both are registered")
    found = asked("protocol=mqtt&topic=plants&zone=z2")
    assert [item["gateway"] for item in found["gateways"]] == ["gw-2", "gw-1"]
    mqtt = next(x for x in found["gateways"][0]["listeners"] if x["name"] == "mqtt")
    assert mqtt == {
        "name": "mqtt",
        "protocol": "mqtt",
        "address": "gw2.example:1883",
        "is_tls": False,
    }
    assert found["partitions"] == [{"cluster": "DefaultCluster", "broker": "broker-a", "queues": 4}]
    assert asked("topic=nowhere")["gateways"] == []
    none = commands.tidegate("namesrv", "gateways", "-n", address, "--protocol", "soap")
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr == "no gateway speaks soap\n"
    rows = tidegate("namesrv", "gateways", "-n", address, "--protocol", "amqp", "--zone", "z1")
    assert [row["gateway"] for row in rows] == ["gw-1", "gw-2"]
    with urllib.request.urlopen(f"http://{name.addresses['metrics']}/metrics") as answer:
        assert b"tidegate_namesrv_gateways 2.0" in answer.read()


def test_a_fresh_gateway_waits_for_stores_that_are_expected(daemons: Daemons) -> None:
    """
    Name server and gateway come back before the store of ``plants``: the first publish to it
    must not end in the catch-all topic.
    """
    name = daemons.namesrv()
    daemons.store(name, name="b-a")
    second = daemons.store(name, "store.directory=false", name="b-b")
    address = name.addresses["namesrv"]
    wait_until(lambda: brokers_at(name) == {"b-a", "b-b"}, "registered")
    create_at(second, "plants")
    second.signal(signal.SIGSTOP)
    name.restart()
    gateway = daemons.start(
        "gateway",
        "--namesrvAddr",
        address,
        *[f"--set=listeners.{n}.bind=127.0.0.1:0" for n in ("mqtt", "mqtt-ws", "amqp", "grpc")],
        *[f"--set=listeners.{n}.bind=127.0.0.1:0" for n in ("events", "remoting", "admin")],
        name="fresh",
        wait=False,
    )
    wait_until(lambda: brokers_at(name) == {"b-a"}, "one is back")
    second.signal(signal.SIGCONT)
    gateway.wait_ready()
    client = connect(gateway, "c1")
    published(client, "plants/1", b"x")
    client.disconnect()
    client.loop_stop()
    (count,) = [sum(r["messages"] for r in tidegate("topic", "describe", "plants", "-n", address))]
    assert count == 1


def create_at(store: Daemon, topic: str) -> None:
    """On this store only."""

    async def ask() -> None:
        client = await RemotingClient.connect(store.addresses["store"])
        fields = {"topic": topic, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
        fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        answer = await client.request(
            RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields), PATIENCE_S
        )
        await client.close()
        if answer.code:
            raise Refused(answer.code, topic, answer.remark)  # type: ignore[arg-type]

    asyncio.run(ask())


def connect(gateway: Daemon, client_id: str) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    client.connect(*gateway.address("mqtt"))
    client.loop_start()
    wait_until(client.is_connected, "CONNACK")
    return client
