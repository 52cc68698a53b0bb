"""
The barrier with whole processes and real clients: gateway B is stopped past its lease while a
durable subscriber subscribes at A and a publisher keeps sending to B. What B acknowledges after
it wakes reaches the subscriber; so does everything once the publisher has reconnected.
"""

import signal
import threading
import time
from collections.abc import Iterator

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.patience import PATIENCE_S
from tests.support.processes import HURRIED, Daemon, Daemons, wait_until

pytestmark = pytest.mark.client


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    with Daemons() as daemons:
        yield daemons


def connect(gateway: Daemon, client_id: str) -> mqtt.Client:
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id, clean_session=False, reconnect_on_failure=True
    )
    client.reconnect_delay_set(min_delay=1, max_delay=1)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect(*gateway.address("mqtt"))
    client.loop_start()
    assert connected.wait(PATIENCE_S)
    return client


def test_a_stopped_gateway_wakes_up_fenced(daemons: Daemons) -> None:
    name_server = daemons.namesrv()
    daemons.store(name_server, *HURRIED)
    daemons.store(name_server, *HURRIED, "store.directory=false", name="broker-b")
    one = daemons.gateway(name_server, name="gw-1")
    two = daemons.gateway(name_server, name="gw-2")
    subscriber, publisher = connect(one, "subscriber"), connect(two, "publisher")
    got: list[str] = []
    subscribed = threading.Event()
    subscriber.on_message = lambda client, data, message: got.append(message.payload.decode())
    subscriber.on_subscribe = lambda *_: subscribed.set()
    warm = publisher.publish("t/0", b"warm", qos=1)
    warm.wait_for_publish(PATIENCE_S)
    started = time.monotonic()
    two.signal(signal.SIGSTOP)
    subscriber.subscribe("t/+", qos=1)
    sent = [publisher.publish("t/1", b"%d" % index, qos=1) for index in range(20)]
    assert subscribed.wait(PATIENCE_S), "the SUBACK does not wait for ever"
    assert time.monotonic() - started > 1, "it waits for the lease of the stopped gateway"
    assert not any(message.is_published() for message in sent)
    late = [publisher.publish("t/1", b"%d" % index, qos=1) for index in range(20, 40)]
    two.signal(signal.SIGCONT)
    wait_until(
        lambda: all(message.is_published() for message in sent + late),
        "everything is acknowledged in the end",
    )
    wait_until(
        lambda: {str(index) for index in range(40)} <= set(got),
        f"what was acknowledged arrives: {len(set(got))} of 40",
    )
    for client in (publisher, subscriber):
        client.disconnect()
        client.loop_stop()
