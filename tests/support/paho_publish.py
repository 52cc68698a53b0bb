"""A publish of paho's that is waited for, whatever becomes of its connection meanwhile."""

import paho.mqtt.client as paho
from paho.mqtt.properties import Properties

from tests.support.patience import PATIENCE_S


def published(
    client: paho.Client,
    topic: str,
    body: str | bytes,
    qos: int = 1,
    properties: Properties | None = None,
) -> None:
    """
    Returns when it is acknowledged.

    A connection that a loaded machine lost is made again by paho, which then sends what it kept;
    but it tells so by a code for which its own wait gives up.
    """
    sent = client.publish(topic, body, qos, properties=properties)
    if sent.rc == paho.MQTT_ERR_NO_CONN:
        sent.rc = paho.MQTT_ERR_SUCCESS
    sent.wait_for_publish(PATIENCE_S)
    assert sent.is_published(), f"{topic} was not acknowledged"
