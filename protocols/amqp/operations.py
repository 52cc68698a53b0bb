"""
Declaring, binding, deleting: what changes the topology, written to the directory.

A declare is answered when the own table has it, a bind after the barrier: from then on every
gateway routes by it. A name that is not found is looked up once more at the directory's head.
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final

from protocols import clock
from protocols.amqp import replies
from protocols.amqp.addresses import AMQ_TOPIC, filters_of
from protocols.amqp.arguments import (
    QUEUE_ARGUMENTS,
    check_exchange_arguments,
    check_exchange_type,
    check_headers_binding,
    check_queue_arguments,
    check_queue_type,
    policy_of,
    require_same_arguments,
    require_same_flag,
    require_same_text,
)
from protocols.amqp.changes import TopologyChanges, fault_of
from protocols.amqp.fields import encode_table
from protocols.amqp.matching import DELAYED_TYPE
from protocols.amqp.methods import ExchangeDeclare, QueueDeclare
from protocols.amqp.passing import own_rows, passing_rows
from protocols.amqp.replies import AmqpFault
from protocols.amqp.topology import (
    BindingRecord,
    Exchange,
    ExchangeRecord,
    Queue,
    QueueRecord,
    ReaderRecord,
    Topology,
    binding_key,
    hand_over_name,
    record_key,
)
from protocols.canonical import QueueKind, QueueRef
from protocols.directory import Put, Subscription
from protocols.errors import Code, Refused
from protocols.groups import QueueStat
from protocols.pipeline import Services

DECLARE_S_MAX: Final = 10.0
"""How long a declare waits for a store to be there (as directory writes do)."""

DECLARE_RETRY_S: Final = 0.2

NAME_BYTES: Final = 16
"""Randomness of a server-named queue: 22 characters of base64."""


class Operations:
    """On behalf of all connections of one adapter."""

    def __init__(self, services: Services, topology: Topology) -> None:
        self.services = services
        self.topology = topology
        self._changes = TopologyChanges(services.directory, topology)
        self._creating: dict[tuple[str, str], asyncio.Event] = {}
        """Queues under way; whoever declares one of them meanwhile waits. As many as channels."""

    # ── lookups ─────────────────────────────────────────────────────────────────────────

    async def queue(self, vhost: str, name: str, connection: str) -> Queue:
        """A queue that this connection may use. Raises AmqpFault 404 or 405."""
        found = self.topology.queues.get((vhost, name))
        if found is None:
            await self._changes.catch_up()
            found = self.topology.queues.get((vhost, name))
        if found is None:
            raise AmqpFault(replies.NOT_FOUND, f"no queue '{name}' in vhost '{vhost}'")
        if found.record.exclusive and found.record.owner != connection:
            raise _locked(vhost, name)
        return found

    async def exchange(self, vhost: str, name: str) -> Exchange:
        """Raises AmqpFault 404."""
        found = self.topology.exchanges.get((vhost, name))
        if found is None:
            await self._changes.catch_up()
            found = self.topology.exchanges.get((vhost, name))
        if found is None:
            raise AmqpFault(replies.NOT_FOUND, f"no exchange '{name}' in vhost '{vhost}'")
        return found

    async def stat(self, queue: Queue) -> QueueStat:
        """Counts of the queue at its store. Raises AmqpFault 404 in RabbitMQ's words if away."""
        try:
            return await self.services.streams.stat_queue(queue.ref, queue.spec)
        except Refused as refused:
            record = queue.record
            raise AmqpFault(
                replies.NOT_FOUND,
                f"home node '{record.store}' of durable queue '{record.name}' in vhost "
                f"'{record.vhost}' is down or inaccessible",
            ) from refused

    # ── exchanges ───────────────────────────────────────────────────────────────────────

    async def declare_exchange(self, vhost: str, method: ExchangeDeclare) -> None:
        name = method.exchange
        require_no_default(name)
        if method.passive:
            await self.exchange(vhost, name)
            return
        check_exchange_type(method.type, method.arguments)
        check_exchange_arguments(name, vhost, method.arguments)
        known = self.topology.exchanges.get((vhost, name))
        if known is None:
            _require_own_name("exchange", name)
            record = ExchangeRecord(
                vhost=vhost,
                name=name,
                type=method.type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=encode_table(method.arguments),
            )
            await self._changes.put(record_key(vhost, "exchange", name), record, if_version=0)
            known = await self.exchange(vhost, name)
        what = f"exchange '{name}' in vhost '{vhost}'"
        now = known.record
        require_same_text(what, "type", method.type, now.type)
        require_same_flag(what, "durable", method.durable, now.durable)
        require_same_flag(what, "auto_delete", method.auto_delete, now.auto_delete)
        require_same_flag(what, "internal", method.internal, now.internal)
        names = ("alternate-exchange", *((DELAYED_TYPE,) if known.is_delaying else ()))
        require_same_arguments(what, method.arguments, known.arguments, names)

    async def delete_exchange(self, vhost: str, name: str, *, tenant: str, if_unused: bool) -> None:
        """Also its bindings, both ways; an unknown name is fine."""
        require_no_default(name)
        if name.startswith("amq."):
            text = f"deletion of system exchange '{name}' in vhost '{vhost}' not allowed"
            raise AmqpFault(replies.ACCESS_REFUSED, text)
        try:
            exchange = await self.exchange(vhost, name)
        except AmqpFault:
            return
        if if_unused and exchange.bindings:
            raise AmqpFault(
                replies.PRECONDITION_FAILED, f"exchange '{name}' in vhost '{vhost}' in use"
            )
        await self._end_exchange(exchange, tenant)

    # ── queues ──────────────────────────────────────────────────────────────────────────

    async def declare_queue(
        self, vhost: str, method: QueueDeclare, *, connection: str, tenant: str
    ) -> Queue:
        """The queue, created if need be; raises AmqpFault 404, 405, 406."""
        name = method.queue
        if method.passive:
            return await self.queue(vhost, name, connection)
        check_queue_arguments(name, vhost, method.arguments)
        known = self.topology.queues.get((vhost, name)) if name else None
        if known is None:
            if name:
                _require_own_name("queue", name)
            else:
                name = "amq.gen-" + secrets.token_urlsafe(NAME_BYTES)
            check_queue_type(
                name,
                vhost,
                method.arguments,
                durable=method.durable,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
            )
            known = await self._create_alone(vhost, name, method, connection, tenant)
        _require_equal(known, method, connection)
        return known

    async def _create_alone(
        self, vhost: str, name: str, method: QueueDeclare, connection: str, tenant: str
    ) -> Queue:
        """One at a time under a name: workers that start together all declare their queue."""
        key = vhost, name
        while (other := self._creating.get(key)) is not None:
            await other.wait()
            if (known := self.topology.queues.get(key)) is not None:
                return known
        ended = self._creating[key] = asyncio.Event()
        try:
            return await self._create_queue(vhost, name, method, connection, tenant)
        finally:
            del self._creating[key]
            ended.set()

    async def _create_queue(
        self, vhost: str, name: str, method: QueueDeclare, connection: str, tenant: str
    ) -> Queue:
        """
        Create it at a store, then write the record; who loses a race (to another gateway) takes
        the winner's queue, and makes it whole again: its own may have ended the group of that.

        The incarnation is drawn before the record has a version: wall time and chance.
        """
        incarnation = clock.wall_ms() << 12 | secrets.randbits(12)
        ref = QueueRef(QueueKind.AMQP, f"{vhost}/{name}", tenant, incarnation)
        streams = self.services.streams
        ref = await self.place(ref, policy_of(method.arguments, hand_over_name(vhost)))
        record = QueueRecord(
            vhost=vhost,
            name=name,
            durable=method.durable and not method.exclusive,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=encode_table(method.arguments),
            tenant=tenant,
            incarnation=incarnation,
            store=ref.store,
            cluster=ref.cluster,
            owner=connection if method.exclusive else "",
        )
        key = record_key(vhost, "queue", name)
        if not await self._changes.put(key, record, if_version=0, is_bound=method.exclusive):
            await streams.delete_queue(ref)
        known = self.topology.queues.get((vhost, name))
        if known is None:
            raise AmqpFault(replies.NOT_FOUND, f"no queue '{name}' in vhost '{vhost}'")
        if known.record.incarnation != incarnation:
            await self.place(known.ref, policy_of(known.arguments, hand_over_name(vhost)))
        return known

    async def place(self, ref: QueueRef, policy: Mapping[str, int | str]) -> QueueRef:
        """Create it at a store; while none is there, a declare waits as long as other changes."""
        until = clock.monotonic() + DECLARE_S_MAX
        while True:
            try:
                return await self.services.streams.create_queue(ref, policy)
            except Refused as refused:
                is_late = clock.monotonic() >= until
                if refused.code != Code.HA_NOT_AVAILABLE or is_late:
                    raise fault_of(refused) from refused
            await asyncio.sleep(DECLARE_RETRY_S)

    async def delete_queue(self, queue: Queue) -> int:
        """
        Record, bindings and matching rows first, then the queue at its store; ready messages.

        Its consumers learn of it by the record's end, at every gateway.
        """
        record = queue.record
        bindings = self.topology.bindings_to(record.vhost, record.name, is_exchange=False)
        rows = {
            row
            for binding in bindings
            if binding.source == AMQ_TOPIC
            for row in _rows(queue, binding)
        }
        key = record_key(record.vhost, "queue", record.name)
        await self._changes.write(
            [Put(key, None), *(Put(binding_key(item), None) for item in bindings)]
        )
        try:
            if rows:
                await self.services.directory.subscribe((), tuple(rows), tenant=record.tenant)
            stat = await self.services.streams.delete_queue(queue.ref)
        except Refused:
            return 0  # its store is away; a queue without a record is dropped when it is found
        for source in {item.source for item in bindings}:
            await self._drop_unused_exchange(record.vhost, source, record.tenant)
        return stat.ready_count

    # ── bindings ────────────────────────────────────────────────────────────────────────

    async def bind_queue(self, queue: Queue, binding: BindingRecord) -> None:
        """Returns when every gateway routes by it."""
        require_no_default(binding.source)
        exchange = await self.exchange(binding.vhost, binding.source)
        if exchange.kind == "headers":
            check_headers_binding(binding.arguments)
        is_bound = queue.record.exclusive
        version = await self._put_binding(exchange, binding, is_bound=is_bound)
        if binding.source == AMQ_TOPIC:
            rows = _rows(queue, binding)
            if binding.key and not rows:
                raise _too_wide(binding)
            known = {row for other in self._others(queue, binding) for row in _rows(queue, other)}
            if add := [row for row in rows if row not in known]:
                version = await self._changes.subscribe(
                    add, (), queue.record.tenant, is_bound=queue.record.exclusive
                )
        await self._changes.barrier(version)

    async def unbind_queue(
        self, queue: Queue | None, binding: BindingRecord, *, tenant: str
    ) -> None:
        """What does not exist is not bound, which is fine."""
        await self._changes.write([Put(binding_key(binding), None)])
        if queue is not None and binding.source == AMQ_TOPIC:
            kept = {row for other in self._others(queue, binding) for row in _rows(queue, other)}
            gone = [row for row in _rows(queue, binding) if row not in kept]
            await self._changes.subscribe((), gone, tenant)
        await self._drop_unused_exchange(binding.vhost, binding.source, tenant)

    async def bind_exchange(self, binding: BindingRecord, *, tenant: str) -> None:
        for name in (binding.source, binding.destination):
            require_no_default(name)
        exchange = await self.exchange(binding.vhost, binding.source)
        await self.exchange(binding.vhost, binding.destination)
        if exchange.kind == "headers":
            check_headers_binding(binding.arguments)
        is_shared = binding.source == AMQ_TOPIC
        if is_shared and binding.key and not passing_rows(binding):
            raise _too_wide(binding)
        version = await self._put_binding(exchange, binding, is_bound=False)
        if is_shared and (rows := own_rows(self.topology, binding)):
            version = await self._changes.subscribe(rows, (), tenant)
        await self._changes.barrier(version)

    async def unbind_exchange(self, binding: BindingRecord, *, tenant: str) -> None:
        for name in (binding.source, binding.destination):
            require_no_default(name)
        await self._changes.write([Put(binding_key(binding), None)])
        if binding.source == AMQ_TOPIC:
            await self._changes.subscribe((), own_rows(self.topology, binding), tenant)
        await self._drop_unused_exchange(binding.vhost, binding.source, tenant)

    # ── readers ─────────────────────────────────────────────────────────────────────────

    async def add_reader(self, queue: Queue) -> None:
        """Tell the other gateways that this one reads a queue that goes after its last consumer."""
        vhost, name = queue.record.vhost, queue.record.name
        gateway = self.services.directory.gateway
        record = ReaderRecord(vhost=vhost, queue=name, gateway=gateway)
        await self._changes.put(record_key(vhost, "reader", name, gateway), record, is_bound=True)

    async def remove_reader(self, queue: Queue) -> None:
        """This gateway's last consumer of it is gone; an auto-delete queue may go with it."""
        vhost, name = queue.record.vhost, queue.record.name
        key = record_key(vhost, "reader", name, self.services.directory.gateway)
        if self.topology.version_of(key):
            await self._changes.write([Put(key, None)])
        await self.drop_unused_queue(vhost, name)

    async def drop_unused_queue(self, vhost: str, name: str) -> None:
        queue = self.topology.queues.get((vhost, name))
        has_readers = bool(self.topology.readers_of(vhost, name))
        if queue is not None and queue.record.auto_delete and not has_readers:
            await self.delete_queue(queue)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _others(self, queue: Queue, binding: BindingRecord) -> list[BindingRecord]:
        """The queue's further bindings to amq.topic."""
        record = queue.record
        all_of_it = self.topology.bindings_to(record.vhost, record.name, is_exchange=False)
        return [item for item in all_of_it if item.source == AMQ_TOPIC and item != binding]

    async def _drop_unused_exchange(self, vhost: str, name: str, tenant: str) -> None:
        exchange = self.topology.exchanges.get((vhost, name))
        if exchange is not None and _is_unused(exchange):
            await self._end_exchange(exchange, tenant)

    async def _end_exchange(self, exchange: Exchange, tenant: str) -> None:
        """With its bindings, and those that go unused by that: no recursion, chains are long."""
        due = [exchange]
        while due:
            vhost, name = due[0].record.vhost, due.pop(0).record.name
            ending = self.topology.exchanges.get((vhost, name))
            if ending is None:
                continue
            inward = self.topology.bindings_to(vhost, name, is_exchange=True)
            keys = [*ending.bindings, *map(binding_key, inward)]
            await self._changes.write(
                [Put(record_key(vhost, "exchange", name), None), *(Put(key, None) for key in keys)]
            )
            shared = [item for item in inward if item.source == AMQ_TOPIC]
            if rows := {row for item in shared for row in own_rows(self.topology, item)}:
                await self._changes.subscribe((), tuple(rows), tenant)
            sources = [self.topology.exchanges.get((vhost, item.source)) for item in inward]
            due += [source for source in sources if source is not None and _is_unused(source)]

    async def _put_binding(
        self, exchange: Exchange, binding: BindingRecord, *, is_bound: bool
    ) -> int:
        key = binding_key(binding)
        if key not in exchange.bindings:
            await self._changes.put(key, binding, is_bound=is_bound)
        return self.topology.version_of(key)


def _is_unused(exchange: Exchange) -> bool:
    """Its last binding went, and it goes with that."""
    return exchange.record.auto_delete and not exchange.bindings


def _rows(queue: Queue, binding: BindingRecord) -> list[Subscription]:
    """Rows of the common matching table that a binding to amq.topic is."""
    return [
        Subscription(subject_filter, queue.ref, queue.spec.name)
        for subject_filter in filters_of(binding.key)
    ]


def _too_wide(binding: BindingRecord) -> AmqpFault:
    text = f"binding key '{binding.key}' has too many inner '#' for amq.topic"
    return AmqpFault(replies.NOT_IMPLEMENTED, text, is_hard=False)


def _require_own_name(what: str, name: str) -> None:
    if name.startswith("amq."):
        raise AmqpFault(
            replies.ACCESS_REFUSED, f"{what} name '{name}' contains reserved prefix 'amq.*'"
        )


def require_no_default(exchange: str) -> None:
    if not exchange:
        raise AmqpFault(replies.ACCESS_REFUSED, "operation not permitted on the default exchange")


def _require_equal(queue: Queue, method: QueueDeclare, connection: str) -> None:
    """A redeclaration must mean the same queue (exclusive ones are never durable)."""
    record = queue.record
    what = f"queue '{record.name}' in vhost '{record.vhost}'"
    is_foreign = record.exclusive and record.owner != connection
    if is_foreign or record.exclusive != method.exclusive:
        raise _locked(record.vhost, record.name)
    if not record.exclusive:
        require_same_flag(what, "durable", method.durable, record.durable)
    require_same_flag(what, "auto_delete", method.auto_delete, record.auto_delete)
    require_same_arguments(what, method.arguments, queue.arguments, tuple(QUEUE_ARGUMENTS))


def _locked(vhost: str, name: str) -> AmqpFault:
    return AmqpFault(
        replies.RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be "
        "originally declared on another connection or the exclusive property value does not "
        "match that of the original declaration.",
    )


def in_exclusive_use(vhost: str, name: str) -> AmqpFault:
    return AmqpFault(replies.ACCESS_REFUSED, f"queue '{name}' in vhost '{vhost}' in exclusive use")
