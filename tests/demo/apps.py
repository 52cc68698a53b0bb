"""The other people at the gateway: an AMQP alarm desk and a CloudEvents producer."""

import asyncio
import json
import threading
import urllib.request

import aio_pika
from cloudevents.core.bindings.http import to_binary_event
from cloudevents.core.v1.event import CloudEvent

from tests.support.patience import PATIENCE_S

ALARM_QUEUE = "alarm-desk"


class AlarmDesk:
    """Consumes alarms from a durable queue bound to ``amq.topic``, acknowledging each."""

    def __init__(self, ports: list[int]) -> None:
        self.received: list[str] = []
        self.redelivered_count = 0
        self._ports = ports
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="alarms", daemon=True
        )

    def start(self) -> None:
        """Returns when the binding stands. Raises RuntimeError."""
        self._thread.start()
        if not self._ready.wait(PATIENCE_S) or self._error is not None:
            raise RuntimeError("the alarm desk could not bind its queue") from self._error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    async def _run(self) -> None:
        """Serve at the first gateway that answers; when it dies, at the next."""
        index = 0
        while not self._stop.is_set():
            port = self._ports[index % len(self._ports)]
            index += 1
            try:
                await self._serve(port)
            except (aio_pika.exceptions.AMQPError, OSError) as error:
                self._error = error if not self._ready.is_set() else None
                await asyncio.sleep(0.2)

    async def _serve(self, port: int) -> None:
        connection = await aio_pika.connect(
            f"amqp://guest:guest@127.0.0.1:{port}/", timeout=PATIENCE_S
        )
        async with connection:
            closed = asyncio.Event()
            connection.close_callbacks.add(lambda *_: closed.set())
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=50)
            queue = await channel.declare_queue(ALARM_QUEUE, durable=True)
            await queue.bind("amq.topic", "alarms.#")
            await queue.consume(self._take)
            self._error = None
            self._ready.set()
            stopped = asyncio.to_thread(self._stop.wait)
            done = [asyncio.ensure_future(stopped), asyncio.ensure_future(closed.wait())]
            await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)

    async def _take(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        self.received.append(json.loads(message.body)["id"])
        self.redelivered_count += bool(message.redelivered)
        await message.ack()


def post_station_event(port: int, topic: str, event_id: str, kind: str, station: str) -> int:
    """POST one CloudEvent in binary mode; the HTTP status."""
    event = CloudEvent(
        {
            "id": event_id,
            "source": f"/stations/{station}",
            "type": f"example.station.{kind}",
            "specversion": "1.0",
            "subject": station,
            "datacontenttype": "application/json",
        },
        {"station": station, "state": kind},
    )
    message = to_binary_event(event)
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/topics/{topic}",
        data=bytes(message.body),
        headers=dict(message.headers),
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return int(answer.status)
