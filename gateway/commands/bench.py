"""``tidegate bench``: how much a running gateway or store takes, and how soon it acknowledges."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click

from gateway.commands.bench_senders import EventSender, MqttSender, RemotingSender, Sender
from protocols import clock
from protocols.errors import GatewayError
from protocols.tasks import Tasks

SAMPLES_MAX: Final = 1_000_000
"""Times kept; of more messages the first ones count."""

SETTLE_S: Final = 30.0
"""After the last acknowledgement: for subscribers to get the rest."""

STAMP_BYTES: Final = 8
ADDRESSES: Final = {
    "mqtt": "127.0.0.1:1883",
    "events": "127.0.0.1:8088",
    "remoting": "127.0.0.1:9876",
}


@dataclass(slots=True)
class Tally:
    """What came of it."""

    sent: int = 0
    failed: int = 0
    received: int = 0
    error: str = ""
    times_ms: list[float] = field(default_factory=list)
    delivery_ms: list[float] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def acknowledged(self, ms: float) -> None:
        self.sent += 1
        if len(self.times_ms) < SAMPLES_MAX:
            self.times_ms.append(ms)

    def delivered(self, body: bytes) -> None:
        self.received += 1
        self.arrived.set()
        if len(self.delivery_ms) < SAMPLES_MAX:
            ago_ns = _now_ns() - int.from_bytes(body[:STAMP_BYTES], "big")
            self.delivery_ms.append(ago_ns / 1e6)


@click.command()
@click.option("--protocol", type=click.Choice([*ADDRESSES]), default="mqtt", show_default=True)
@click.option("--address", default="", help="host:port; remoting: name servers. Default: ours.")
@click.option("--topic", default="bench/1", show_default=True, help="Created nowhere.")
@click.option("--connections", default=4, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--inflight", default=32, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--size", default=256, show_default=True, type=click.IntRange(8, 4 << 20))
@click.option("--qos", default=1, show_default=True, type=click.IntRange(0, 2), help="MQTT.")
@click.option("--rate", default=0.0, help="Messages a second in all; 0: as many as go.")
@click.option("--subscribers", default=0, type=click.IntRange(0, 10_000), help="MQTT.")
@click.option("--seconds", default=5.0, show_default=True)
@click.option("--user", "credentials", default="", metavar="NAME:PASSWORD")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def bench(
    protocol: str,
    address: str,
    topic: str,
    connections: int,
    inflight: int,
    size: int,
    qos: int,
    rate: float,
    subscribers: int,
    seconds: float,
    credentials: str,
    as_json: bool,
) -> None:
    """
    Send messages for a while; rate and times to acknowledgement. Exit 1: some were refused.

    The generator is one Python process: a server that is faster than it is not measured.
    """
    if subscribers and protocol != "mqtt":
        raise click.UsageError("--subscribers speak MQTT")
    user, _, password = credentials.partition(":")
    address = address or ADDRESSES[protocol]

    def make(number: int, kind: str = "pub") -> Sender:
        if protocol == "remoting":
            return RemotingSender(address, topic=topic)
        if protocol == "events":
            return EventSender(address, topic=topic, user=user, password=password)
        name = f"bench-{os.getpid()}-{kind}-{number}"
        return MqttSender(
            address, client_id=name, topic=topic, qos=qos, user=user, password=password
        )

    senders = [make(number) for number in range(connections)]
    readers = [make(number, "sub") for number in range(subscribers)]
    tally = Tally()
    elapsed_s = asyncio.run(_run(senders, readers, tally, inflight, size, rate, seconds))
    result = _result(tally, elapsed_s)
    click.echo(json.dumps(result) if as_json else _text(result))
    sys.exit(1 if tally.failed or not tally.sent else 0)


async def _run(
    senders: Sequence[Sender],
    readers: Sequence[Sender],
    tally: Tally,
    inflight: int,
    size: int,
    rate: float,
    seconds: float,
) -> float:
    """Seconds it took."""
    opened: list[Sender] = []
    tasks = Tasks("bench")
    try:
        for sender in (*senders, *readers):
            await sender.open()
            opened.append(sender)
        for reader in readers:
            assert isinstance(reader, MqttSender)
            await reader.subscribe(tally.delivered)
        lanes = len(senders) * inflight
        begun = clock.monotonic()
        interval_s = lanes / rate if rate else 0.0
        running = [
            tasks.start(
                _lane(
                    sender,
                    tally,
                    size,
                    begun + seconds,
                    begun + lane * interval_s / lanes,
                    interval_s,
                ),
                name=f"lane {lane}",
            )
            for lane, sender in enumerate([sender for sender in senders for _ in range(inflight)])
        ]
        await asyncio.wait(running)
        elapsed_s = clock.monotonic() - begun
        await _settle(tally, tally.sent * len(readers))
        return elapsed_s
    finally:
        for sender in opened:
            await sender.close()
        await tasks.close()


async def _lane(
    sender: Sender, tally: Tally, size: int, ends: float, due: float, interval_s: float
) -> None:
    """One message after the other, each when the last is acknowledged; at *due*, then paced."""
    filler = bytes(size - STAMP_BYTES)
    while (now := clock.monotonic()) < ends:
        if interval_s:
            if due > now:
                await asyncio.sleep(min(due, ends) - now)
            if due >= ends:
                return
            due += interval_s
        begun = _now_ns()
        try:
            await sender.send(begun.to_bytes(STAMP_BYTES, "big") + filler)
        except (GatewayError, OSError, TimeoutError) as error:
            tally.failed += 1
            tally.error = tally.error or str(error)
            return
        tally.acknowledged((_now_ns() - begun) / 1e6)


async def _settle(tally: Tally, wanted: int) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            while tally.received < wanted:
                tally.arrived.clear()
                await tally.arrived.wait()


def _now_ns() -> int:
    return int(clock.monotonic() * 1e9)


def _result(tally: Tally, elapsed_s: float) -> dict[str, Any]:
    result: dict[str, Any] = {
        "sent": tally.sent,
        "failed": tally.failed,
        "seconds": round(elapsed_s, 3),
        "per_s": round(tally.sent / max(elapsed_s, 1e-3), 1),
        "ack_ms": _percentiles(tally.times_ms),
        "received": tally.received,
        "delivery_ms": _percentiles(tally.delivery_ms),
    }
    if tally.error:
        result["error"] = tally.error
    return result


def _percentiles(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    if not ordered:
        return {}
    return {
        name: round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 3)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
    }


def _text(result: dict[str, Any]) -> str:
    def times(name: str) -> str:
        return " ".join(f"{key} {value} ms" for key, value in result[name].items())

    lines = [f"{result['per_s']:.0f} msg/s: {result['sent']} in {result['seconds']} s"]
    if result["ack_ms"]:
        lines.append(f"acknowledged after {times('ack_ms')}")
    if result["received"]:
        lines.append(f"delivered {result['received']} after {times('delivery_ms')}")
    if result["failed"]:
        lines.append(f"{result['failed']} failed: {result.get('error', '')}")
    return "\n".join(lines)
