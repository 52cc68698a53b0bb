"""
Takes what stores hand over for one virtual host and routes it by today's topology: dead letters,
messages of delayed exchanges whose time has come, and what passes from ``amq.topic`` to exchanges.

Every gateway has a stream; they share the work. A letter is published as a new message under a
once-key made of its place, and acknowledged when that is stored: a crash in between repeats the
publish, which is then harmless. Without a dead-letter exchange, or a queue that wants it, it ends.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from protocols import clock
from protocols.amqp.deaths import Death, Letter, is_cycle, make_letter
from protocols.amqp.delaying import make_due
from protocols.amqp.mapping import (
    Content,
    address_head,
    content_of,
    message_of,
    queue_head,
    stored_block,
)
from protocols.amqp.passing import make_passed, passing_group, passing_place
from protocols.amqp.replies import AmqpFault
from protocols.amqp.targets import Targets, find_targets
from protocols.amqp.topology import hand_over_name
from protocols.canonical import (
    INTERNAL,
    Call,
    Delivery,
    Head,
    Identity,
    Message,
    QueueKind,
    QueueRef,
    SendResults,
)
from protocols.errors import Code, GatewayError
from protocols.groups import GroupSpec, Read, Start
from protocols.pipeline import DeliveryStream

if TYPE_CHECKING:
    from protocols.amqp.server import AmqpServer

logger = logging.getLogger("tidegate.amqp")

CREDIT: Final = 256
"""Letters that may be on their way at a time."""

PASSING: Final = 1
"""Tag of what exchanges behind ``amq.topic`` get."""

OPEN_RETRY_S: Final = 1.0
AGAIN_S: Final = 1.0
"""When a letter comes again that a store did not take."""

TRY_AGAIN: Final = frozenset(
    (
        Code.HA_NOT_AVAILABLE,
        Code.PROXY_TIMEOUT,
        Code.MASTER_PERSISTENCE_TIMEOUT,
        Code.TOO_MANY_REQUESTS,
        Code.INTERNAL_SERVER_ERROR,
    )
)
"""Refusals that pass; any other one means that nobody wants the letter."""


class Handed(NamedTuple):
    """One letter on its way."""

    delivery: Delivery
    message_count: int


class DeadLetters:
    """See ``protocols.pipeline.DeliverySink``."""

    def __init__(self, server: "AmqpServer", vhost: str) -> None:
        self._server = server
        self._vhost = vhost
        self._tenant = server.settings.tenant_of(vhost)
        self._call = Call(
            protocol=INTERNAL,
            listener=server.name,
            identity=Identity(name="dead-letters"),
            tenant=self._tenant,
        )
        queue = QueueRef(QueueKind.DEAD_LETTER, hand_over_name(vhost))
        self._spec = GroupSpec(
            name=passing_group(vhost),
            reads=(Read(queue), Read(passing_place(vhost), tag=PASSING)),
            start=Start.EARLIEST,
        )
        self._stream: DeliveryStream | None = None
        self._early: list[Delivery] = []
        self._allowed = CREDIT
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        streams = self._server.services.streams
        while True:
            self._ended.clear()
            self._allowed = CREDIT
            try:
                self._stream = await streams.open(self._call, self._spec, self, credit=CREDIT)
            except GatewayError as error:
                logger.debug("dead letters of %s: %s", self._vhost, error)
                await asyncio.sleep(OPEN_RETRY_S)
                continue
            early, self._early = self._early, []
            self.deliver(early)
            await self._ended.wait()

    # ── sink ────────────────────────────────────────────────────────────────────────────

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        if self._stream is None:
            self._early += deliveries
            return
        handed: list[Handed] = []
        messages: list[Message] = []
        for delivery in deliveries:
            properties = delivery.message.properties
            if properties.get("TG_DEAD_REASON") == "queue-ended":
                self._server.tasks.start(self._forget_queue(delivery), name="end queue")
                continue
            made = self._messages(delivery)
            handed.append(Handed(delivery, len(made)))
            messages += made
        if messages:
            self._server.services.pipeline.post(
                self._call, messages, lambda results: self._sent(handed, results)
            )
        elif handed:
            self._done([item.delivery for item in handed])

    def ended(self, code: Code, hint: str) -> None:
        self._stream = None
        self._ended.set()

    # ── letters ─────────────────────────────────────────────────────────────────────────

    def _messages(self, delivery: Delivery) -> list[Message]:
        """What a letter is published as; empty: nobody wants it."""
        stored = delivery.message
        try:
            content = content_of(stored)
            exchange, letter = self._letter(delivery, content)
            targets = self._targets(delivery, exchange, letter)
            block = stored_block(letter.properties, is_addressed=bool(targets.addresses))
        except (AmqpFault, GatewayError, ValueError, KeyError) as error:
            logger.warning("a dead letter of %s cannot be read: %s", self._vhost, error)
            return []
        queues = [item for item in targets.queues if not is_cycle(item.record.name, letter.deaths)]
        heads: list[Head] = []
        refs = (*[queue.ref for queue in queues], *targets.replies)
        if refs:
            priority = block.priority if any(queue.max_priority for queue in queues) else -1
            heads.append(queue_head(exchange, letter.keys[0], refs, priority=priority))
        heads += [address_head(item, block.priority, exchange, refs) for item in targets.addresses]
        wall_ms = clock.wall_ms()
        place = f"dead/{delivery.handle.broker}/{delivery.handle.position}"
        return [
            message_of(head, block, content.body, wall_ms=wall_ms)._replace(
                once_key=f"{place}/{number}".encode()
            )
            for number, head in enumerate(heads)
        ]

    def _targets(self, delivery: Delivery, exchange: str, letter: Letter) -> Targets:
        topology = self._server.topology
        if PASSING in delivery.reads:
            queues = topology.route_onward(self._vhost, letter.keys[0], letter.headers)
            return Targets(queues, (), ())
        return find_targets(
            topology, self._vhost, self._tenant, exchange, letter.keys, letter.headers
        )

    def _letter(self, delivery: Delivery, content: Content) -> tuple[str, Letter]:
        """Where it goes and as what; who names no reason has not died but was delayed."""
        if PASSING in delivery.reads:
            return content.exchange, make_passed(content)
        found = delivery.message.properties
        if "TG_DEAD_REASON" not in found:
            return content.exchange, make_due(content)
        exchange, key = json.loads(unquote(found.get("TG_DEAD_NOTE", "")))
        death = Death(
            unquote(found["TG_DEAD_QUEUE"]).removeprefix(f"{self._vhost}/"),
            found["TG_DEAD_REASON"],
            int(found["TG_DEAD_AT"]) // 1000,
        )
        return exchange, make_letter(content, death, key)

    def _sent(self, handed: Sequence[Handed], results: SendResults) -> None:
        done: list[Delivery] = []
        again: list[Delivery] = []
        at = 0
        for delivery, count in handed:
            codes = {results[index].code for index in range(at, at + count)}
            at += count
            (again if codes & TRY_AGAIN else done).append(delivery)
        self._done(done)
        if again:
            loop = asyncio.get_running_loop()
            loop.call_later(AGAIN_S, self._give_back, self._stream, again)

    def _done(self, deliveries: Sequence[Delivery]) -> None:
        stream = self._stream
        if stream is not None and deliveries:
            self._server.meters.dead_letters.inc(len(deliveries))
            stream.ack([delivery.handle for delivery in deliveries])
            self._more(stream, len(deliveries))

    def _give_back(self, stream: DeliveryStream | None, deliveries: Sequence[Delivery]) -> None:
        if stream is not None and stream is self._stream:
            stream.release([delivery.handle for delivery in deliveries], is_sent=False)
            self._more(stream, len(deliveries))

    def _more(self, stream: DeliveryStream, count: int) -> None:
        self._allowed += count
        stream.allow(self._allowed)

    # ── queues that ended ───────────────────────────────────────────────────────────────

    async def _forget_queue(self, delivery: Delivery) -> None:
        """The store ended an unused queue: its record and bindings go too."""
        properties = delivery.message.properties
        name = unquote(properties.get("TG_DEAD_QUEUE", "")).removeprefix(f"{self._vhost}/")
        try:
            await self._server.services.directory.catch_up()
            queue = self._server.topology.queues.get((self._vhost, name))
            wanted = properties.get("TG_DEAD_INCARNATION", "")
            if queue is not None and str(queue.record.incarnation) == wanted:
                await self._server.operations.delete_queue(queue)
        except GatewayError as error:
            logger.warning("queue %s has ended: %s", name, error)
            await asyncio.sleep(AGAIN_S)
            self._give_back(self._stream, [delivery])
            return
        self._done([delivery])
