"""What all connections of one listener share: topology, consumers by queue, background work."""

import asyncio
import itertools
import logging
from typing import Final

from protocols.amqp.consumer import Consumer
from protocols.amqp.deadletters import DeadLetters
from protocols.amqp.operations import Operations
from protocols.amqp.session import Session
from protocols.amqp.settings import AmqpSettings
from protocols.amqp.topology import PREFIX, Name, Queue, ReaderRecord, Topology
from protocols.directory import Record
from protocols.errors import GatewayError
from protocols.observing import Meter
from protocols.pipeline import Services
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.amqp")

RENEW_S: Final = 20.0
"""A third of the time that a message from basic.get stays hidden."""


class Registry:
    """This gateway's consumers by queue."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._consumers: dict[Name, list[Consumer]] = {}

    def add(self, consumer: Consumer) -> None:
        self._consumers.setdefault(_name(consumer.queue), []).append(consumer)

    def discard(self, consumer: Consumer) -> bool:
        """Forget it; True if it was here."""
        name = _name(consumer.queue)
        found = self._consumers.get(name, [])
        if consumer not in found:
            return False
        found.remove(consumer)
        if not found:
            del self._consumers[name]
        return True

    def consumers_of(self, queue: Queue) -> list[Consumer]:
        return self._consumers.get(_name(queue), [])

    def count(self) -> int:
        return sum(map(len, self._consumers.values()))

    async def leave(self, consumer: Consumer) -> None:
        """A consumer is gone; after the last one an auto-delete queue goes too."""
        queue = consumer.queue
        if not self.discard(consumer) or self.consumers_of(queue):
            return
        if queue.record.auto_delete:
            await self._operations.remove_reader(queue)

    def queue_gone(self, queue: Queue) -> None:
        """Somebody deleted it."""
        for consumer in list(self.consumers_of(queue)):
            if consumer.queue.record.incarnation == queue.record.incarnation:
                consumer.work.consumer_ended(consumer)


def _name(queue: Queue) -> Name:
    return queue.record.vhost, queue.record.name


class Meters:
    """Counters of one listener."""

    def __init__(self, services: Services, listener: str) -> None:
        def counter(name: str, text: str) -> Meter:
            return services.metrics.counter(name, text, listener=listener)

        self.published = counter("amqp_published", "Messages published by AMQP clients.")
        self.dead_letters = counter("amqp_dead_letters", "Dead letters and notices dealt with.")
        self.refused = counter("amqp_refused", "Batches of publishes that were not all taken.")


class AmqpServer:
    """Made when a listener starts to serve."""

    def __init__(self, name: str, settings: AmqpSettings, services: Services) -> None:
        self.name = name
        self.settings = settings
        self.services = services
        self.topology = Topology(settings.vhosts)
        self.operations = Operations(services, self.topology)
        self.registry = Registry(self.operations)
        self.meters = Meters(services, name)
        self.sessions: set[Session] = set()
        self.tasks = Tasks(f"amqp {name}")
        self.numbers = itertools.count(1)
        self.topology.on_queue_gone = self._queue_gone
        self.topology.on_reader_gone = self._reader_gone
        self._unwatch = services.directory.watch(PREFIX, self.topology.apply)
        self.topology.apply(list(services.directory.items(PREFIX)))
        services.metrics.gauge(
            "amqp_consumers", "Consumers.", lambda: self.registry.count(), listener=name
        )
        services.metrics.gauge(
            "amqp_queues",
            "Queues that are declared.",
            lambda: len(self.topology.queues),
            listener=name,
        )
        self.tasks.start(self._renew(), name="renew")
        for vhost in settings.vhosts:
            self.tasks.start(DeadLetters(self, vhost).run(), name=f"dead letters {vhost}")

    async def close(self) -> None:
        self._unwatch()
        await self.tasks.close()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            for session in list(self.sessions):
                try:
                    await session.renew()
                except GatewayError as error:
                    logger.warning("connection %s: %s", session.name, error)

    def _queue_gone(self, queue: Queue, record: Record) -> None:
        """Its consumers are told; an exclusive queue of a dead gateway is dropped by the others."""
        self.registry.queue_gone(queue)
        owner = queue.record.owner
        if not owner:
            return
        directory = self.services.directory
        gateway, epoch, _ = owner.rsplit("/", 2)
        is_lost = not directory.is_live(gateway, int(epoch))
        for session in list(self.sessions):
            if session.name == owner:
                session.exclusive_gone(queue.record.name, is_lost=is_lost)
        if gateway != directory.gateway:
            self.tasks.start(self._drop(queue), name=f"drop {queue.record.name}")

    async def _drop(self, queue: Queue) -> None:
        try:
            await self.services.streams.delete_queue(queue.ref)
        except GatewayError as error:
            logger.warning("queue %s: %s", queue.record.name, error)

    def _reader_gone(self, reader: ReaderRecord) -> None:
        """The gateway that read it is gone: was it the last one of an auto-delete queue?"""
        if reader.gateway != self.services.directory.gateway:
            self.tasks.start(
                self.operations.drop_unused_queue(reader.vhost, reader.queue),
                name=f"drop {reader.queue}",
            )
