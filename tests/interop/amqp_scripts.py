"""
What a client sees of a broker: one function per subject, run against RabbitMQ and against ours.

Each gets a fresh ``Client`` and returns what it observed, as plain data. Names of queues and
exchanges are the function's own, so that scripts do not meet.
"""

import time
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

WAIT_S_MAX = 30.0

Seen = Any
Properties = pika.BasicProperties


class Client:
    """A connection or several, and words for what is looked at."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections: list[pika.BlockingConnection] = []
        self.connection = self.connect()

    def connect(self) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))
        self.connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self.connections:
            if connection.is_open:
                connection.close()

    def channel(self, *, confirms: bool = True) -> BlockingChannel:
        channel = self.connection.channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    def declare(self, channel: BlockingChannel, queue: str, **arguments: Any) -> str:
        """A queue that is deleted first; argument names with ``_`` for ``-`` and without x-."""
        channel.queue_delete(queue)
        named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        durable = named.get("x-queue-type") == "quorum"
        channel.queue_declare(queue, durable=durable, arguments=named)
        return queue

    def count(self, queue: str) -> tuple[int, int]:
        """(ready, consumers) by a passive declare."""
        method = self.channel(confirms=False).queue_declare(queue, passive=True).method
        return method.message_count, method.consumer_count

    def wait_count(self, queue: str, count: int) -> int:
        """Until so many are ready."""
        return self.until(lambda: self.count(queue)[0], count)

    def until(self, look: Callable[[], Any], wanted: Any) -> Any:
        """What *look* sees in the end; what time does takes its time."""
        until = time.monotonic() + WAIT_S_MAX
        while (seen := look()) != wanted and time.monotonic() < until:
            self.connection.process_data_events(0.02)
        return seen

    def fault(self, act: Callable[[BlockingChannel], object]) -> tuple[int, str] | str:
        """Code and text that end a channel or its connection."""
        connection = self.connect()
        channel = connection.channel()
        try:
            act(channel)
            channel.queue_declare("amq.rabbitmq.reply-to", passive=True)  # a round trip
        except (
            pika.exceptions.ChannelClosedByBroker,
            pika.exceptions.ConnectionClosedByBroker,
        ) as error:
            return error.reply_code, error.reply_text
        return "fine"


def publish(
    channel: BlockingChannel,
    key: str,
    *bodies: bytes,
    exchange: str = "",
    mandatory: bool = False,
    **properties: Any,
) -> list[str]:
    """Publish with confirms: what became of each."""
    seen: list[str] = []
    for body in bodies:
        try:
            channel.basic_publish(exchange, key, body, Properties(**properties), mandatory)
            seen.append("ack")
        except pika.exceptions.NackError:
            seen.append("nack")
        except pika.exceptions.UnroutableError as error:
            method = error.messages[0].method
            seen.append(f"{method.reply_code} {method.reply_text} {method.routing_key}")
    return seen


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """All that is ready, in order."""
    bodies: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body)


def got(channel: BlockingChannel, queue: str, *, auto_ack: bool = False) -> Seen:
    """(delivery tag, body, redelivered, message count) of a basic.get; None: empty."""
    method, _, body = channel.basic_get(queue, auto_ack=auto_ack)
    if method is None:
        return None
    return method.delivery_tag, body, method.redelivered, method.message_count


def headers_of(channel: BlockingChannel, queue: str) -> Seen:
    """Of the next message: exchange, key, expiration and headers, but for what time writes."""
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    if method is None:
        return None
    headers = dict(properties.headers or {})
    for name in list(headers):
        if name.startswith("x-last-death"):  # RabbitMQ writes them from 3.13 on
            del headers[name]
    for death in headers.get("x-death", []):
        assert abs(death.pop("time").timestamp() - time.time()) < 90_000
    return method.exchange, method.routing_key, properties.expiration, headers, body


# ── expiry ──────────────────────────────────────────────────────────────────────────────


def queue_ttl(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "ttl-queue", message_ttl=300)
    acks = publish(channel, queue, b"1", b"2")
    return acks, client.wait_count(queue, 0), got(channel, queue)


def message_ttl_at_the_head_only(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "ttl-message")
    publish(channel, queue, b"head")
    publish(channel, queue, b"gone", expiration="50")
    publish(channel, queue, b"tail")
    client.connection.process_data_events(0.3)
    return client.count(queue)[0], got(channel, queue), got(channel, queue), client.count(queue)[0]


def the_shorter_ttl_counts(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "ttl-both", message_ttl=60_000)
    publish(channel, queue, b"1", expiration="100")
    first = client.wait_count(queue, 0)
    queue = client.declare(channel, "ttl-both", message_ttl=100)
    publish(channel, queue, b"1", expiration="60000")
    return first, client.wait_count(queue, 0)


def ttl_zero(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "ttl-zero", message_ttl=0)
    publish(channel, queue, b"nobody")
    empty = client.wait_count(queue, 0)
    bodies: list[bytes] = []
    channel.basic_consume(queue, lambda *got: bodies.append(got[3]), auto_ack=True)
    publish(channel, queue, b"somebody")
    return empty, client.until(lambda: list(bodies), [b"somebody"])


def idle_queue_goes(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "expires", expires=2000)
    channel.queue_bind(queue, "amq.direct", "expires-key")
    returned = ["312 NO_ROUTE expires"]  # a publish is no use of the queue, a declare is one
    unrouted = client.until(lambda: publish(channel, queue, b"1", mandatory=True), returned)
    unbound = publish(channel, "expires-key", b"1", exchange="amq.direct", mandatory=True)
    return unrouted, unbound, client.fault(lambda c: c.queue_declare(queue, passive=True))


# ── length ──────────────────────────────────────────────────────────────────────────────


def max_length_drops_the_head(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "maxlen", max_length=3)
    acks = publish(channel, queue, *[b"%d" % number for number in range(5)])
    return acks, client.wait_count(queue, 3), drain(channel, queue)


def unacked_do_not_count(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "maxlen-unacked", max_length=2)
    publish(channel, queue, b"0", b"1")
    out = [got(channel, queue), got(channel, queue)]
    publish(channel, queue, b"2", b"3", b"4")
    ready = client.wait_count(queue, 2)
    channel.basic_recover(requeue=True)
    return out, ready, client.wait_count(queue, 2), drain(channel, queue)


def max_bytes_are_bodies(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "maxbytes", max_length_bytes=1000)
    publish(channel, queue, bytes(400), bytes(300), headers={"long": "x" * 2000})
    before = client.count(queue)[0]
    publish(channel, queue, bytes(500))
    ready = client.wait_count(queue, 2)
    return before, ready, [len(body) for body in drain(channel, queue)]


def reject_publish(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "reject", max_length=2, overflow="reject-publish")
    first = publish(channel, queue, b"0", b"1", b"2", b"3")
    mandatory = publish(channel, queue, b"4", mandatory=True)
    got(channel, queue, auto_ack=True)
    return first, mandatory, publish(channel, queue, b"5", b"6"), drain(channel, queue)


def reject_publish_by_bytes(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "rejectb", max_length_bytes=100, overflow="reject-publish")
    return publish(channel, queue, bytes(60), bytes(60), bytes(40), b"x"), client.count(queue)[0]


def one_of_two_queues_rejects(client: Client) -> Seen:
    channel = client.channel()
    full = client.declare(channel, "reject-a", max_length=1, overflow="reject-publish")
    free = client.declare(channel, "reject-b")
    channel.exchange_declare("reject-both", "fanout", auto_delete=True)
    for queue in (full, free):
        channel.queue_bind(queue, "reject-both")
    seen = publish(channel, "", b"1", b"2", exchange="reject-both")
    return seen, client.count(full)[0], client.count(free)[0]


def reject_publish_dlx(client: Client) -> Seen:
    channel = client.channel()
    dead = client.declare(channel, "rejected-dead")
    queue = client.declare(
        channel,
        "reject-dlx",
        max_length=1,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key=dead,
    )
    seen = publish(channel, queue, b"1", b"2")
    client.wait_count(dead, 1)
    return seen, headers_of(channel, dead), drain(channel, queue)


# ── dead letters ────────────────────────────────────────────────────────────────────────


def rejected_letters(client: Client) -> Seen:
    channel = client.channel()
    dead = client.declare(channel, "dead-rejected")
    channel.exchange_declare("dlx", "topic")
    channel.queue_bind(dead, "dlx", "#")
    queue = client.declare(channel, "rejecting", dead_letter_exchange="dlx")
    channel.exchange_declare("origin", "fanout")
    channel.queue_bind(queue, "origin")
    publish(channel, "a.b", b"1", b"2", exchange="origin", headers={"n": 1})
    tag = got(channel, queue)[0]
    channel.basic_reject(tag, requeue=False)
    tag = got(channel, queue)[0]
    channel.basic_nack(tag, requeue=False)
    client.wait_count(dead, 2)
    return headers_of(channel, dead), headers_of(channel, dead), client.count(queue)[0]


def expired_letters_by_the_default_exchange(client: Client) -> Seen:
    channel = client.channel()
    dead = client.declare(channel, "dead-expired")
    queue = client.declare(
        channel, "expiring", dead_letter_exchange="", dead_letter_routing_key=dead
    )
    publish(
        channel,
        queue,
        b"1",
        expiration="100",
        headers={"CC": ["elsewhere"]},
        content_type="text/plain",
        delivery_mode=2,
    )
    client.wait_count(dead, 1)
    return headers_of(channel, dead)


def dropped_letters_keep_their_keys(client: Client) -> Seen:
    channel = client.channel()
    dead = client.declare(channel, "dead-dropped")
    cc = client.declare(channel, "dead-dropped-cc")
    channel.exchange_declare("dlx-direct", "direct")
    channel.queue_bind(dead, "dlx-direct", "dropping")
    channel.queue_bind(cc, "dlx-direct", "copy")
    queue = client.declare(channel, "dropping", max_length=1, dead_letter_exchange="dlx-direct")
    publish(channel, queue, b"1", b"2", headers={"CC": ["copy"]})
    client.wait_count(dead, 1)
    client.wait_count(cc, 1)
    return headers_of(channel, dead), headers_of(channel, cc)


def a_retry_ladder(client: Client) -> Seen:
    """Rejected, waits in a queue with a time, comes back; twice."""
    channel = client.channel()
    retry = "ladder-retry"
    queue = client.declare(
        channel, "ladder", dead_letter_exchange="", dead_letter_routing_key=retry
    )
    client.declare(
        channel, retry, message_ttl=100, dead_letter_exchange="", dead_letter_routing_key=queue
    )
    publish(channel, queue, b"1")
    for _ in range(2):
        client.wait_count(queue, 1)
        channel.basic_reject(got(channel, queue)[0], requeue=False)
    client.wait_count(queue, 1)
    return headers_of(channel, queue)


def a_cycle_without_a_reject_ends(client: Client) -> Seen:
    channel = client.channel()
    first = client.declare(
        channel,
        "cycle-a",
        message_ttl=100,
        dead_letter_exchange="",
        dead_letter_routing_key="cycle-b",
    )
    second = client.declare(
        channel,
        "cycle-b",
        message_ttl=100,
        dead_letter_exchange="",
        dead_letter_routing_key="cycle-a",
    )
    publish(channel, first, b"1")
    client.connection.process_data_events(0.7)
    return client.wait_count(first, 0), client.wait_count(second, 0)


def no_exchange_for_letters(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "nowhere", message_ttl=50, dead_letter_exchange="no-such")
    publish(channel, queue, b"1")
    return client.wait_count(queue, 0)


def an_alternate_exchange_takes_letters(client: Client) -> Seen:
    channel = client.channel()
    last = client.declare(channel, "dead-last")
    channel.exchange_declare("dlx-last", "fanout")
    channel.queue_bind(last, "dlx-last")
    channel.exchange_delete("dlx-empty")
    channel.exchange_declare("dlx-empty", "direct", arguments={"alternate-exchange": "dlx-last"})
    queue = client.declare(
        channel, "dead-alternate", message_ttl=0, dead_letter_exchange="dlx-empty"
    )
    publish(channel, queue, b"1")
    client.wait_count(last, 1)
    return headers_of(channel, last)


# ── priorities, single active, delivery limit ───────────────────────────────────────────


def priorities(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "priorities", max_priority=5)
    for number, priority in enumerate((1, 5, None, 9, 1, 0)):
        publish(channel, queue, b"%d" % number, priority=priority)
    count = client.count(queue)[0]
    first = got(channel, queue)
    channel.basic_nack(first[0], requeue=True)
    return count, first, drain(channel, queue)


def drop_head_drops_the_highest(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "priorities-maxlen", max_priority=5, max_length=2)
    for number, priority in enumerate((3, 1, 5, 0)):
        publish(channel, queue, b"%d" % number, priority=priority)
    client.wait_count(queue, 2)
    return drain(channel, queue)


def single_active(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "single", single_active_consumer=True)
    seen: list[tuple[str, bytes]] = []

    def take(tag: str) -> Callable[..., None]:
        return lambda _, method, properties, body: seen.append((tag, body))

    for tag in ("first", "second", "third"):
        channel.basic_consume(queue, take(tag), auto_ack=True, consumer_tag=tag)
    publish(channel, queue, b"1", b"2", b"3")
    client.until(lambda: len(seen), 3)
    counts = client.count(queue)
    channel.basic_cancel("first")
    publish(channel, queue, b"4")
    client.until(lambda: len(seen), 4)
    return seen, counts, client.count(queue)


def delivery_limit(client: Client) -> Seen:
    channel = client.channel()
    dead = client.declare(channel, "dead-limit")
    queue = client.declare(
        channel,
        "limited",
        queue_type="quorum",
        delivery_limit=2,
        dead_letter_exchange="",
        dead_letter_routing_key=dead,
    )
    publish(channel, queue, b"1")
    attempts = []
    for _ in range(3):
        client.wait_count(queue, 1)
        method, properties, _ = channel.basic_get(queue)
        attempts.append((method.redelivered, (properties.headers or {}).get("x-delivery-count")))
        channel.basic_nack(method.delivery_tag, requeue=True)
    client.wait_count(dead, 1)
    seen = headers_of(channel, dead)
    seen[3].pop("x-delivery-count", None)  # a leftover of Raft's bookkeeping
    channel.queue_delete(queue)
    return attempts, seen


# ── counts, purge, delete, cancel ───────────────────────────────────────────────────────


def counts(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "counts")
    seen: list[Seen] = [client.count(queue)]
    publish(channel, queue, b"1", b"2", b"3")
    seen.append(client.count(queue))
    channel.basic_qos(prefetch_count=1)
    bodies: list[bytes] = []
    channel.basic_consume(queue, lambda *got: bodies.append(got[3]), consumer_tag="one")
    client.until(lambda: len(bodies), 1)
    seen.append(client.count(queue))
    other = client.connect().channel()
    other.basic_qos(prefetch_count=1)
    other.basic_consume(queue, lambda *got: None, consumer_tag="two")
    seen.append(client.until(lambda: client.count(queue), (1, 2)))
    channel.basic_cancel("one")
    seen.append(client.count(queue))
    seen.append(client.fault(lambda c: c.queue_delete(queue, if_unused=True)))
    seen.append(client.fault(lambda c: c.queue_delete(queue, if_empty=True)))
    other.connection.close()
    seen.append(client.until(lambda: client.count(queue), (2, 0)))
    seen.append(channel.queue_purge(queue).method.message_count)
    seen.append(channel.queue_delete(queue).method.message_count)
    seen.append(channel.queue_delete(queue).method.message_count)
    return seen


def get_counts_and_recover(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "gets")
    publish(channel, queue, *[b"%d" % number for number in range(4)])
    seen = [got(channel, queue) for _ in range(3)]
    channel.basic_ack(2)
    channel.basic_recover(requeue=True)
    seen += [got(channel, queue) for _ in range(4)]
    channel.basic_nack(0, multiple=True, requeue=True)
    return seen, drain(channel, queue)


def consumers_hear_of_the_end(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "ending")
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_consume(queue, lambda *got: None, consumer_tag="told")
    client.connect().channel().queue_delete(queue)
    return client.until(lambda: list(cancelled), ["told"])


def auto_delete(client: Client) -> Seen:
    channel = client.channel()
    channel.queue_declare("auto-q", auto_delete=True)
    channel.exchange_declare("auto-x", "fanout", auto_delete=True)
    channel.queue_bind("auto-q", "auto-x")
    before = client.count("auto-q")
    channel.basic_consume("auto-q", lambda *got: None, consumer_tag="only")
    channel.basic_cancel("only")
    return (
        before,
        client.fault(lambda c: c.queue_declare("auto-q", passive=True)),
        client.fault(lambda c: c.exchange_declare("auto-x", passive=True)),
    )


# ── routing ─────────────────────────────────────────────────────────────────────────────


def alternate_exchanges(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "alternate")
    for name in ("ae-main", "ae-next"):
        channel.exchange_delete(name)
    channel.exchange_declare("ae-next", "fanout")
    channel.exchange_declare("ae-main", "direct", arguments={"alternate-exchange": "ae-next"})
    seen = publish(channel, "no", b"lost", exchange="ae-main", mandatory=True)
    channel.queue_bind(queue, "ae-next")
    seen += publish(channel, "no", b"caught", exchange="ae-main", mandatory=True)
    return seen, headers_of(channel, queue)


def exchanges_bound_to_exchanges(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "e2e")
    for name in ("e2e-a", "e2e-b", "e2e-c"):
        channel.exchange_delete(name)
    channel.exchange_declare("e2e-a", "topic")
    channel.exchange_declare("e2e-b", "fanout", internal=True)
    channel.exchange_declare("e2e-c", "direct")
    channel.exchange_bind("e2e-b", "e2e-a", "x.#")
    channel.exchange_bind("e2e-c", "e2e-b", "")
    channel.exchange_bind("e2e-a", "e2e-c", "x.loop")  # a circle is visited once
    channel.queue_bind(queue, "e2e-b")
    channel.queue_bind(queue, "e2e-c", "x.y")
    seen = publish(channel, "x.y", b"1", exchange="e2e-a", mandatory=True)
    seen += publish(channel, "y", b"2", exchange="e2e-a", mandatory=True)
    internal = client.fault(lambda c: c.basic_publish("e2e-b", "k", b""))
    channel.exchange_unbind("e2e-b", "e2e-a", "x.#")
    seen += publish(channel, "x.y", b"3", exchange="e2e-a", mandatory=True)
    return seen, headers_of(channel, queue), headers_of(channel, queue), internal


def headers_exchange(client: Client) -> Seen:
    channel = client.channel()
    channel.exchange_delete("by-headers")
    channel.exchange_declare("by-headers", "headers")
    wanted = {
        "h-all": {"x-match": "all", "a": 1, "b": "two"},
        "h-any": {"x-match": "any", "a": 1, "b": "two"},
        "h-default": {"a": 1},
        "h-exists": {"a": None},
        "h-none": {"x-match": "any"},
        "h-every": {},
        "h-x": {"x-match": "all-with-x", "x-a": 1},
    }
    for name, arguments in wanted.items():
        client.declare(channel, name)
        channel.queue_bind(name, "by-headers", "", arguments)
    sent: list[dict[str, Any]] = [
        {"a": 1, "b": "two"},
        {"a": 1},
        {"b": "two"},
        {"a": 2},
        {"x-a": 1},
        {},
    ]
    for number, headers in enumerate(sent):
        publish(channel, "", b"%d" % number, exchange="by-headers", headers=headers)
    return {name: drain(channel, name) for name in wanted}


def mandatory_returns(client: Client) -> Seen:
    channel = client.channel()
    try:
        channel.basic_publish("amq.direct", "k", b"body", Properties(type="t"), mandatory=True)
    except pika.exceptions.UnroutableError as error:
        (one,) = error.messages
        method = one.method
        return method.reply_code, method.reply_text, method.exchange, one.body, one.properties.type
    return None


def direct_reply_to(client: Client) -> Seen:
    channel = client.channel(confirms=False)
    service = client.declare(channel, "service")
    seen: list[Seen] = []
    name = "amq.rabbitmq.reply-to"
    channel.basic_consume(
        name, lambda _, m, p, body: seen.append((m.exchange, p.correlation_id, body)), auto_ack=True
    )
    channel.basic_publish(
        "", service, b"ask", Properties(reply_to=name, correlation_id="7", headers={"h": 1})
    )
    server = client.connect().channel()
    server.confirm_delivery()
    client.until(lambda: client.count(service)[0], 1)
    _, properties, _ = server.basic_get(service, auto_ack=True)
    has_own_name = properties.reply_to.startswith(name + ".")
    answered = publish(server, properties.reply_to, b"answer", correlation_id="7")
    client.until(lambda: len(seen), 1)
    there = server.queue_declare(properties.reply_to, passive=True).method.message_count
    channel.close()
    lost = client.until(
        lambda: publish(server, properties.reply_to, b"late", mandatory=True)[0][:12],
        "312 NO_ROUTE",
    )
    return has_own_name, properties.headers, answered, seen, there, lost


def direct_reply_to_faults(client: Client) -> Seen:
    name = "amq.rabbitmq.reply-to"

    def twice(channel: BlockingChannel) -> None:
        for _ in range(2):
            channel.basic_consume(name, lambda *got: None, auto_ack=True)

    return (
        client.fault(lambda c: c.basic_consume(name, lambda *got: None)),
        client.fault(lambda c: c.basic_publish("", "x", b"", Properties(reply_to=name))),
        client.fault(twice),
        client.fault(lambda c: c.queue_declare(name, passive=True)),
    )


# ── texts ───────────────────────────────────────────────────────────────────────────────


def unlike_declarations(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "unlike", message_ttl=5000, max_length=3)
    tries: list[dict[str, Any]] = [
        {"arguments": {}},
        {"arguments": {"x-message-ttl": 4000, "x-max-length": 3}},
        {"arguments": {"x-message-ttl": 5000, "x-max-length": 3}},
        {"arguments": {"x-message-ttl": 5000, "x-max-length": 3, "x-mine": 1}},
        {"arguments": {"x-message-ttl": 5000, "x-max-length": 3, "x-max-priority": 3}},
        {"durable": True},
        {"auto_delete": True},
        {"exclusive": True},
    ]
    return [client.fault(lambda c, one=one: c.queue_declare(queue, **one)) for one in tries]


def bad_arguments(client: Client) -> Seen:
    tries: list[dict[str, Any]] = [
        {"x-message-ttl": -1},
        {"x-message-ttl": "soon"},
        {"x-expires": 0},
        {"x-max-length": -1},
        {"x-max-length": "few"},
        {"x-overflow": "shrug"},
        {"x-overflow": 1},
        {"x-dead-letter-exchange": 1},
        {"x-dead-letter-routing-key": "k"},
        {"x-max-priority": 256},
        {"x-max-priority": -1},
        {"x-single-active-consumer": 1},
        {"x-queue-mode": "busy"},
        {"x-queue-type": "zz"},
        {"x-delivery-limit": 3},
    ]
    return [client.fault(lambda c, one=one: c.queue_declare("bad", arguments=one)) for one in tries]


def quorum_properties(client: Client) -> Seen:
    quorum = {"x-queue-type": "quorum"}
    tries: list[dict[str, Any]] = [
        {"durable": False, "arguments": quorum},
        {"durable": True, "exclusive": True, "arguments": quorum},
        {"durable": True, "auto_delete": True, "arguments": quorum},
        {"durable": True, "arguments": {**quorum, "x-max-priority": 3}},
        {"durable": True, "arguments": {**quorum, "x-delivery-limit": -1}},
    ]
    return [client.fault(lambda c, one=one: c.queue_declare("bad-q", **one)) for one in tries]


def exclusive_use(client: Client) -> Seen:
    channel = client.channel()
    channel.queue_declare("mine", exclusive=True)
    queue = client.declare(channel, "shared")
    channel.basic_consume(queue, lambda *got: None, exclusive=True, consumer_tag="only")
    seen = [
        client.fault(lambda c: c.queue_declare("mine", passive=True)),
        client.fault(lambda c: c.basic_get("mine")),
        client.fault(lambda c: c.queue_declare("mine")),
        client.fault(lambda c: c.basic_consume(queue, lambda *got: None)),
        client.fault(lambda c: c.basic_consume(queue, lambda *got: None, exclusive=True)),
        client.fault(lambda c: c.basic_get(queue)),
    ]
    channel.basic_cancel("only")
    channel.basic_consume(queue, lambda *got: None, consumer_tag="plain")
    seen.append(client.fault(lambda c: c.basic_consume(queue, lambda *g: None, exclusive=True)))
    return seen


def refusals(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "refusing")
    channel.exchange_declare("refuser", "direct")
    return [
        client.fault(lambda c: c.queue_declare("no-such", passive=True)),
        client.fault(lambda c: c.exchange_declare("no-such", passive=True)),
        client.fault(lambda c: c.queue_bind(queue, "no-such", "k")),
        client.fault(lambda c: c.queue_bind("no-such", "refuser", "k")),
        client.fault(lambda c: c.basic_consume("no-such", lambda *got: None)),
        client.fault(lambda c: c.basic_get("no-such")),
        client.fault(lambda c: c.queue_purge("no-such")),
        client.fault(lambda c: c.basic_publish("no-such", "k", b"")),
        client.fault(lambda c: c.basic_publish("", "k", b"", Properties(expiration="abc"))),
        client.fault(lambda c: c.basic_publish("", "k", b"", Properties(user_id="other"))),
        client.fault(lambda c: c.basic_publish("", "k", b"", Properties(headers={"CC": "k"}))),
        client.fault(lambda c: c.queue_declare("amq.mine")),
        client.fault(lambda c: c.exchange_declare("amq.mine", "direct")),
        client.fault(lambda c: c.exchange_declare("refuser", "topic")),
        client.fault(lambda c: c.exchange_declare("refuser", "direct", durable=True)),
        client.fault(lambda c: c.queue_bind(queue, "", "k")),
        client.fault(lambda c: c.exchange_delete("amq.topic")),
        client.fault(lambda c: c.basic_ack(1)),
        client.fault(lambda c: c.basic_qos(prefetch_size=1)),
        client.fault(lambda c: c.tx_commit()),
    ]


SCRIPTS: tuple[Callable[[Client], Seen], ...] = (
    queue_ttl,
    message_ttl_at_the_head_only,
    the_shorter_ttl_counts,
    ttl_zero,
    idle_queue_goes,
    max_length_drops_the_head,
    unacked_do_not_count,
    max_bytes_are_bodies,
    reject_publish,
    reject_publish_by_bytes,
    one_of_two_queues_rejects,
    reject_publish_dlx,
    rejected_letters,
    expired_letters_by_the_default_exchange,
    dropped_letters_keep_their_keys,
    a_retry_ladder,
    a_cycle_without_a_reject_ends,
    no_exchange_for_letters,
    an_alternate_exchange_takes_letters,
    priorities,
    drop_head_drops_the_highest,
    single_active,
    delivery_limit,
    counts,
    get_counts_and_recover,
    consumers_hear_of_the_end,
    auto_delete,
    alternate_exchanges,
    exchanges_bound_to_exchanges,
    headers_exchange,
    mandatory_returns,
    direct_reply_to,
    direct_reply_to_faults,
    unlike_declarations,
    bad_arguments,
    quorum_properties,
    exclusive_use,
    refusals,
)
