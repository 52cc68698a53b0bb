"""
What hostile packets do to a neighbour on the same port: ``python -m tests.bench.hostile``.

Connections of nonsense (the streams of ``tests/protocols/test_mqtt_fuzz.py``), half handshakes and
packets that never end run without a pause beside one well-behaved publisher and subscriber, QoS 1,
50 messages a second. Printed: the neighbour's time from PUBLISH to the message at the subscriber,
without and with them, and what the gateway's memory did.
"""

import argparse
import asyncio
import contextlib
import time

from protocols.mqtt.packets import V5, Connect, SubscribeItem
from tests.bench.servers import Cluster, rss_bytes
from tests.protocols.test_mqtt_fuzz import Streams, send
from tests.support.mqtt_client import MqttClient

WAIT_S = 30.0
ATTACKERS = 4
HALF = (b"", b"\x10", b"\x10\x20\x00\x04MQ", b"\x10\xff\xff\xff\x7f" + bytes(1000))
"""Handshakes that are begun and not gone on with."""


async def attack(address: tuple[str, int], seed: int) -> int:
    """One after the other, for ever; cancelled from outside."""
    held: list[asyncio.StreamWriter] = []
    count = 0
    while True:
        with contextlib.suppress(OSError):
            await send(address, Streams(seed + count).chunks())
            if count % 10 == 0 and len(held) < 200:
                _, writer = await asyncio.open_connection(*address)
                writer.write(HALF[count // 10 % len(HALF)])
                held.append(writer)
        count += 1


async def neighbour(address: tuple[str, int], name: str, seconds: float) -> list[float]:
    """Milliseconds of each message."""
    found: list[float] = []
    async with (
        MqttClient(address, Connect(V5, f"{name}-sub"), wait_s=WAIT_S) as sub,
        MqttClient(address, Connect(V5, f"{name}-pub"), wait_s=WAIT_S) as pub,
    ):
        await sub.subscribe(SubscribeItem(f"good/{name}", 1))
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            _, (packet,) = await asyncio.gather(
                pub.publish(f"good/{name}", b"%.6f" % began), sub.publishes(1)
            )
            found.append((time.monotonic() - float(packet.payload)) * 1000)
            await asyncio.sleep(0.02)
    return sorted(found)


async def measure(server: Cluster, seconds: float) -> None:
    address = ("127.0.0.1", server.port)
    (gateway,) = server.front_pids()
    tell("alone", await neighbour(address, "alone", seconds))
    before = rss_bytes(gateway)
    tasks = [asyncio.ensure_future(attack(address, 1000 * n)) for n in range(ATTACKERS)]
    tell("beside hostile clients", await neighbour(address, "beside", seconds))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(f"memory of the gateway: {(rss_bytes(gateway) - before) / 1024:+.0f} KiB")


def tell(name: str, times: list[float]) -> None:
    half, most = times[len(times) // 2], times[len(times) * 99 // 100]
    print(f"{name:24} {len(times):5} messages  p50 {half:6.2f} ms  p99 {most:6.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    with Cluster() as server:
        asyncio.run(measure(server, seconds))


if __name__ == "__main__":
    main()
