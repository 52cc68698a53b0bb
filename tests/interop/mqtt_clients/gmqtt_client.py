"""
gmqtt: python gmqtt_client.py URL VERSION TOPIC. Subscribes, publishes QoS 0, 1, 2, prints.

MQTT_CA: file of the authority for tls://.
"""

import asyncio
import os
import ssl
import sys
from urllib.parse import urlsplit

from gmqtt import Client


async def main(url: str, version: int, topic: str) -> None:
    client = Client(f"gmqtt-{version}")
    received: asyncio.Queue[str] = asyncio.Queue()
    subscribed = asyncio.Event()

    async def on_message(client, name, payload, qos, properties):  # type: ignore[no-untyped-def]
        user = properties.get("user_property", [])
        values = " ".join([value for _, value in user])
        await received.put(f"{name} {payload.decode()} {qos} {values}".strip())
        return 0

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    at = urlsplit(url)
    authority = os.environ.get("MQTT_CA")
    context = ssl.create_default_context(cafile=authority) if authority else False
    await client.connect(at.hostname, at.port, ssl=context, version=version)
    client.subscribe(f"{topic}/#", qos=2)
    await subscribed.wait()
    for qos in range(3):
        more = {"user_property": ("k", "v")} if version == 5 else {}
        client.publish(f"{topic}/{qos}", b"hello", qos=qos, **more)
    for _ in range(3):
        print(await received.get())
    if authority:  # its disconnect fails when something of ours is on its way
        sys.stdout.flush()
        os._exit(0)
    await client.disconnect()


asyncio.run(asyncio.wait_for(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]), 150))
