"""
How long a client is without its session when its gateway dies: ``python -m tests.bench.takeover``.

Two stores and two gateways. One gateway is killed (SIGKILL) while it has a publish in flight to a
durable session; the client connects to the other at once. Printed, in seconds from the kill:
CONNACK, the publish again (same packet id, DUP), a new message; and what has to wait for the end of
the dead gateway's lease (3 s, the default): a SUBACK and the will.
"""

import argparse
import asyncio
import statistics
import time

from protocols.mqtt.packets import NEVER_EXPIRES_S, V5, Connect, SubscribeItem, Will
from protocols.mqtt.properties import Property
from tests.support.mqtt_client import MqttClient
from tests.support.processes import HURRIED, Daemon, Daemons

KEPT = ((int(Property.SESSION_EXPIRY), NEVER_EXPIRES_S),)
WAIT_S = 30.0


async def round_of(daemons: Daemons, namesrv: Daemon, number: int) -> dict[str, float]:
    """One gateway less."""
    victim = daemons.gateway(namesrv, name=f"gw-victim-{number}")
    stays = daemons.gateway(namesrv, name=f"gw-stays-{number}")
    kept = Connect(V5, f"moves-{number}", clean_start=False, properties=KEPT)
    dying = Connect(V5, f"dies-{number}", will=Will(f"will/{number}", b"gone", 1))
    times: dict[str, float] = {}

    async with (
        MqttClient(victim.address("mqtt"), kept, wait_s=WAIT_S) as sub,
        MqttClient(victim.address("mqtt"), dying, wait_s=WAIT_S),
        MqttClient(stays.address("mqtt"), Connect(V5, f"heir-{number}"), wait_s=WAIT_S) as heir,
        MqttClient(stays.address("mqtt"), Connect(V5, f"pub-{number}"), wait_s=WAIT_S) as pub,
    ):
        await sub.subscribe(SubscribeItem(f"moves/{number}", 1))
        await heir.subscribe(SubscribeItem(f"will/{number}", 1))
        await pub.publish(f"moves/{number}", b"first")
        await sub.publishes(1, acks=False)
        killed = time.monotonic()
        victim.kill()

        async def will() -> None:
            await heir.publishes(1)
            times["will"] = time.monotonic() - killed

        waiting = asyncio.get_running_loop().create_task(will())
        async with MqttClient(stays.address("mqtt"), kept, wait_s=WAIT_S) as again:
            times["CONNACK"] = time.monotonic() - killed
            (first,) = await again.publishes(1)
            assert first.dup
            assert again.connack.session_present
            times["again"] = time.monotonic() - killed
            await pub.publish(f"moves/{number}", b"second")
            await again.publishes(1)
            times["new message"] = time.monotonic() - killed
            await again.subscribe(SubscribeItem(f"more/{number}", 1))
            times["SUBACK"] = time.monotonic() - killed
        await waiting
    stays.kill()
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv, *HURRIED)
        daemons.store(namesrv, *HURRIED, "store.directory=false", name="broker-b")
        found = [asyncio.run(round_of(daemons, namesrv, number)) for number in range(rounds)]
    for name in ("CONNACK", "again", "new message", "SUBACK", "will"):
        values = [times[name] for times in found]
        print(f"{name:12} median {statistics.median(values):6.3f} s  worst {max(values):6.3f} s")


if __name__ == "__main__":
    main()
