"""
Exchanges, queues and bindings of every virtual host: this gateway's view of the directory.

Keys are ``amqp/<vhost>/<kind>/<hash>``, values msgpack. ``Topology`` applies records as they
come and answers routing questions; it writes nothing (``operations`` does).
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from protocols.amqp.addresses import AMQ_TOPIC
from protocols.amqp.fields import Table, decode_table, text_of
from protocols.amqp.matching import DELAYED, DELAYED_TYPE, TopicIndex, matches_headers
from protocols.canonical import QueueKind, QueueRef
from protocols.directory import Record
from protocols.groups import GroupSpec, Read, Start

PREFIX: Final = "amqp/"

PREDECLARED: Final = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.rabbitmq.trace": "topic",
}
"""Exchanges that each virtual host has without being told (RabbitMQ)."""

ROUTES_MAX: Final = 20_000
"""Routing results kept, over all exchanges and keys; dropped whole when full."""


class ExchangeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = b"\0\0\0\0"
    """Field table as declared, with its length."""


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    vhost: str
    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: bytes = b"\0\0\0\0"
    tenant: str = ""
    incarnation: int = 0
    store: str = ""
    cluster: str = ""
    owner: str = ""
    """Of an exclusive queue: the connection it belongs to."""


class BindingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    vhost: str
    source: str
    destination: str
    is_exchange: bool = False
    """The destination is an exchange."""

    key: str = ""
    arguments: bytes = b"\0\0\0\0"


class ReaderRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gateway that has consumers of an auto-delete queue (bound to its lease)."""

    vhost: str
    queue: str
    gateway: str


KINDS: Final[dict[str, type[msgspec.Struct]]] = {
    "exchange": ExchangeRecord,
    "queue": QueueRecord,
    "binding": BindingRecord,
    "reader": ReaderRecord,
}


def record_key(vhost: str, kind: str, *names: str) -> str:
    """Names may hold any character, so the key has their hash."""
    digest = blake2b("\0".join((vhost, *names)).encode(), digest_size=16).hexdigest()
    return f"{PREFIX}{quote(vhost, safe='')}/{kind}/{digest}"


def binding_key(binding: BindingRecord) -> str:
    """Source, destination, key and arguments are the identity of a binding."""
    kind = "exchange" if binding.is_exchange else "queue"
    names = (binding.source, kind, binding.destination, binding.key, binding.arguments.hex())
    return record_key(binding.vhost, "binding", *names)


def hand_over_name(vhost: str) -> str:
    """The queue at every store in which its dead letters wait for a gateway."""
    return f"amqp/{vhost}"


class Queue:
    """A queue as consumers and publishers need it."""

    __slots__ = ("arguments", "is_quorum", "max_priority", "record", "ref", "spec")

    def __init__(self, record: QueueRecord) -> None:
        name = f"{record.vhost}/{record.name}"
        self.record = record
        self.arguments: Table = decode_table(record.arguments)[0]
        self.is_quorum = text_of(self.arguments, "x-queue-type") == "quorum"
        highest = self.arguments.get("x-max-priority")
        self.max_priority = (
            highest.value if highest is not None and isinstance(highest.value, int) else 0
        )
        """0: it does not sort by priority."""

        self.ref = QueueRef(
            QueueKind.AMQP, name, record.tenant, record.incarnation, record.store, record.cluster
        )
        self.spec = GroupSpec(
            name=f"amqp/{name}",
            reads=(Read(self.ref),),
            incarnation=record.incarnation,
            start=Start.EARLIEST,
            cluster=record.cluster,
        )


class Exchange:
    """An exchange and the bindings that begin at it, indexed by its type."""

    def __init__(self, record: ExchangeRecord) -> None:
        self.record = record
        self.arguments: Table = decode_table(record.arguments)[0]
        self.alternate = text_of(self.arguments, "alternate-exchange")
        self.is_delaying = record.type == DELAYED
        self.kind = text_of(self.arguments, DELAYED_TYPE) if self.is_delaying else record.type
        """How it routes."""

        self.bindings: dict[str, BindingRecord] = {}
        self._direct: dict[str, set[tuple[str, str]]] = {}
        self._topic = TopicIndex()
        self._headers: dict[str, tuple[Table, tuple[str, str]]] = {}

    def add(self, key: str, binding: BindingRecord) -> None:
        self.remove(key)
        self.bindings[key] = binding
        destination = _destination(binding)
        if self.kind == "topic":
            self._topic.add(binding.key, destination)
        elif self.kind == "headers":
            self._headers[key] = (decode_table(binding.arguments)[0], destination)
        else:
            name = binding.key if self.kind == "direct" else ""
            self._direct.setdefault(name, set()).add(destination)

    def remove(self, key: str) -> None:
        """Forget a binding; another one with the same key and destination stays in force."""
        binding = self.bindings.pop(key, None)
        if binding is None:
            return
        destination = _destination(binding)
        is_fanout = self.kind == "fanout"
        self._headers.pop(key, None)
        if any(
            _destination(other) == destination and (is_fanout or other.key == binding.key)
            for other in self.bindings.values()
        ):
            return
        if self.kind == "topic":
            self._topic.remove(binding.key, destination)
        elif self.kind != "headers":
            self._direct.get("" if is_fanout else binding.key, set()).discard(destination)

    def match(self, key: str, headers: Table) -> Iterable[tuple[str, str]]:
        """Destinations as (kind, name)."""
        if self.kind == "topic":
            return self._topic.match(key)
        if self.kind == "headers":
            return {to for wanted, to in self._headers.values() if matches_headers(wanted, headers)}
        return self._direct.get(key if self.kind == "direct" else "", ())


def _destination(binding: BindingRecord) -> tuple[str, str]:
    return ("exchange" if binding.is_exchange else "queue", binding.destination)


class Routed(NamedTuple):
    """Where a message goes."""

    queues: tuple[Queue, ...]
    """Each once."""

    is_shared: bool = False
    """Also to ``amq.topic``, by way of another exchange: its key is an address there."""


Name = tuple[str, str]
"""Virtual host and name."""


class Topology:
    """All virtual hosts; ``version`` rises with every change, which drops routing caches."""

    def __init__(self, vhosts: Sequence[str]) -> None:
        self.version = 0
        self.exchanges: dict[Name, Exchange] = {}
        self.queues: dict[Name, Queue] = {}
        self.readers: dict[str, ReaderRecord] = {}
        self.on_queue_gone: Callable[[Queue, Record], None] = lambda queue, record: None
        self.on_reader_gone: Callable[[ReaderRecord], None] = lambda reader: None
        self._records: dict[str, tuple[int, msgspec.Struct]] = {}
        self._gone: dict[str, int] = {}
        self._pending: dict[Name, dict[str, BindingRecord]] = {}
        self._routes: dict[tuple[str, str, str], Routed] = {}
        for vhost in vhosts:
            for name, kind in PREDECLARED.items():
                record = ExchangeRecord(
                    vhost=vhost, name=name, type=kind, internal=name == "amq.rabbitmq.trace"
                )
                self.exchanges[vhost, name] = Exchange(record)

    # ── records ─────────────────────────────────────────────────────────────────────────

    def apply(self, records: Sequence[Record]) -> None:
        """Take changes in; a record that is not newer than what is known changes nothing."""
        for record in records:
            known = self._records.get(record.key)
            if record.version <= max(known[0] if known else 0, self._gone.get(record.key, 0)):
                continue
            self.version += 1
            self._routes.clear()
            if known is not None:
                self._forget(record, known[1])
            if record.value is None:
                self._gone[record.key] = record.version
                continue
            kind = KINDS.get(record.key.split("/")[-2])
            if kind is not None:
                value = msgspec.msgpack.decode(record.value, type=kind)
                self._records[record.key] = (record.version, value)
                self._gone.pop(record.key, None)
                self._learn(record.key, value)
        if len(self._gone) > ROUTES_MAX:
            self._gone.clear()  # only guards against records that come twice, out of order

    def version_of(self, key: str) -> int:
        """0: no such record."""
        known = self._records.get(key)
        return known[0] if known else 0

    def _learn(self, key: str, value: msgspec.Struct) -> None:
        if isinstance(value, ExchangeRecord):
            exchange = self.exchanges[value.vhost, value.name] = Exchange(value)
            for waiting, binding in self._pending.pop((value.vhost, value.name), {}).items():
                exchange.add(waiting, binding)
        elif isinstance(value, QueueRecord):
            self.queues[value.vhost, value.name] = Queue(value)
        elif isinstance(value, BindingRecord):
            source = self.exchanges.get((value.vhost, value.source))
            if source is None:  # written by another gateway, its exchange not yet seen
                self._pending.setdefault((value.vhost, value.source), {})[key] = value
            else:
                source.add(key, value)
        elif isinstance(value, ReaderRecord):
            self.readers[key] = value

    def _forget(self, record: Record, value: msgspec.Struct) -> None:
        key = record.key
        del self._records[key]
        if isinstance(value, ExchangeRecord):
            self.exchanges.pop((value.vhost, value.name), None)
        elif isinstance(value, QueueRecord):
            queue = self.queues.pop((value.vhost, value.name), None)
            if queue is not None and record.value is None:
                self.on_queue_gone(queue, record)
        elif isinstance(value, BindingRecord):
            source = self.exchanges.get((value.vhost, value.source))
            if source is not None:
                source.remove(key)
        elif isinstance(value, ReaderRecord):
            self.readers.pop(key, None)
            if record.value is None:
                self.on_reader_gone(value)

    # ── questions ───────────────────────────────────────────────────────────────────────

    def bindings_to(self, vhost: str, name: str, *, is_exchange: bool) -> list[BindingRecord]:
        """Bindings that end at a queue or exchange."""
        wanted = ("exchange" if is_exchange else "queue", name)
        return [
            binding
            for (host, _), exchange in self.exchanges.items()
            if host == vhost
            for binding in exchange.bindings.values()
            if _destination(binding) == wanted
        ]

    def readers_of(self, vhost: str, queue: str) -> list[ReaderRecord]:
        return [
            reader
            for reader in self.readers.values()
            if reader.vhost == vhost and reader.queue == queue
        ]

    def has_headers_exchanges(self, vhost: str) -> bool:
        """Somebody bound something to an exchange that looks into headers."""
        return any(
            host == vhost and exchange.kind == "headers" and exchange.bindings
            for (host, _), exchange in self.exchanges.items()
        )

    def is_cached(self, vhost: str, exchange: str, key: str) -> bool:
        """The last routing of this key holds for any headers."""
        return (vhost, exchange, key) in self._routes

    def route(self, vhost: str, exchange: str, keys: Sequence[str], headers: Table) -> Routed:
        """Where a message to this exchange goes: by any of its keys, at each exchange on the way
        (RabbitMQ's meaning of CC and BCC)."""
        key = keys[0] if len(keys) == 1 else None
        cached = self._routes.get((vhost, exchange, key)) if key is not None else None
        if cached is not None:
            return cached
        visited = {exchange}
        found, is_cacheable = self._walk(vhost, [exchange], visited, keys, headers)
        result = Routed(found, exchange != AMQ_TOPIC and AMQ_TOPIC in visited)
        if is_cacheable and key is not None:
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[vhost, exchange, key] = result
        return result

    def route_onward(self, vhost: str, key: str, headers: Table) -> tuple[Queue, ...]:
        """The queues behind the exchanges that get what ``amq.topic`` gets."""
        shared = self.exchanges[vhost, AMQ_TOPIC]
        due = [to for kind, to in shared.match(key, headers) if kind == "exchange"]
        return self._walk(vhost, due, {AMQ_TOPIC, *due}, (key,), headers)[0]

    def _walk(
        self, vhost: str, due: list[str], visited: set[str], keys: Sequence[str], headers: Table
    ) -> tuple[tuple[Queue, ...], bool]:
        """(queues, each once; whether they are the same for any headers)"""
        found: dict[str, Queue] = {}
        is_cacheable = True
        while due:
            name = due.pop()
            at = self.exchanges.get((vhost, name))
            if at is None:
                continue
            is_cacheable = is_cacheable and at.kind != "headers"
            destinations = (
                [("queue", key) for key in keys]
                if not name
                else [*dict.fromkeys(to for key in keys for to in at.match(key, headers))]
            )
            queues = [to for kind, to in destinations if kind == "queue"]
            found.update(
                (to, self.queues[vhost, to]) for to in queues if (vhost, to) in self.queues
            )
            onward = [to for kind, to in destinations if kind == "exchange"]
            if not destinations and at.alternate:
                onward.append(at.alternate)
            due += [to for to in onward if to not in visited and to != AMQ_TOPIC]
            visited.update(onward)
        return tuple(found.values()), is_cacheable
