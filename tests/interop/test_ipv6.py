"""A cluster and its clients without any IPv4 address."""

import http.client
import socket
from queue import SimpleQueue

import paho.mqtt.client as mqtt
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from tests.support.patience import PATIENCE_S
from tests.support.processes import LISTENERS, Daemons


def has_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(not has_loopback(), reason="this machine has no ::1"),
]

ANY = "[::1]:0"


async def test_every_protocol_is_served_on_ipv6() -> None:
    with Daemons() as daemons:
        namesrv = daemons.namesrv(f"namesrv.bind={ANY}", "namesrv.metrics_bind=[::1]:0")
        store = daemons.store(namesrv, f"store.bind={ANY}", "store.metrics_bind=[::1]:0")
        gateway = daemons.gateway(namesrv, *[f"listeners.{name}.bind={ANY}" for name in LISTENERS])
        for daemon in (namesrv, store, gateway):
            assert all(address.startswith("[::1]:") for address in daemon.addresses.values())

        mqtt_round_trip(gateway.port("mqtt"))
        parameters = pika.ConnectionParameters("::1", gateway.port("amqp"))
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("six")
            channel.basic_publish("", "six", b"hello")
            _, _, body = channel.basic_get("six", auto_ack=True)
            assert body == b"hello"
        for address, path in (
            (gateway.addresses["admin"], "/metrics"),
            (store.addresses["metrics"], "/metrics"),
            (namesrv.addresses["metrics"], "/metrics"),
        ):
            page = http.client.HTTPConnection(address, timeout=PATIENCE_S)
            page.request("GET", path)
            assert page.getresponse().status == 200
            page.close()

        client = await RemotingClient.connect(gateway.addresses["remoting"])
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "mqtt"})
        answer = await client.request(request, PATIENCE_S)
        assert answer.code == ResponseCode.SUCCESS
        assert gateway.addresses["remoting"].encode() in answer.body
        await client.close()


def mqtt_round_trip(port: int) -> None:
    came: SimpleQueue[bytes] = SimpleQueue()
    subscribed: SimpleQueue[int] = SimpleQueue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="six")
    client.on_message = lambda _client, _data, message: came.put(message.payload)
    client.on_subscribe = lambda _client, _data, mid, *_: subscribed.put(mid)
    client.connect("::1", port)
    client.loop_start()
    client.subscribe("six/#", 1)
    subscribed.get(timeout=PATIENCE_S)
    client.publish("six/1", b"hello", 1)
    assert came.get(timeout=PATIENCE_S) == b"hello"
    client.disconnect()
    client.loop_stop()
