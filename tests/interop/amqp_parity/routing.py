"""Where messages go, and back."""

from itertools import pairwise
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.amqp_parity.client import (
    Client,
    Properties,
    Seen,
    drain,
    got,
    headers_of,
    publish,
)


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


def more_keys_in_headers(client: Client) -> Seen:
    channel = client.channel()
    queues = [client.declare(channel, name) for name in ("cc-a", "cc-b", "cc-c")]
    publish(channel, "cc-a", b"1", headers={"CC": ["cc-b"], "BCC": ["cc-c"], "other": 1})
    return [headers_of(channel, queue) for queue in queues]


PATTERNS = ("#", "*", "a.*", "a.#", "#.b", "*.*", "a.*.b", "", "a..b", "*.a", "a.b", "#.#")
KEYS = ("", "a", "a.b", "b", "a.x.b", "a..b", "x.a.y", "a.b.c.b", ".")


def keys_in_headers_go_on_behind_exchanges(client: Client) -> Seen:
    """CC leads to the second exchange, BCC on from there."""
    channel = client.channel()
    queue = client.declare(channel, "behind-cc")
    channel.exchange_declare("cc-first", "direct", auto_delete=True)
    channel.exchange_declare("cc-second", "topic", auto_delete=True)
    channel.exchange_bind("cc-second", "cc-first", "one")
    channel.queue_bind(queue, "cc-second", "two")
    publish(channel, "", b"both", exchange="cc-first", headers={"CC": ["one"], "BCC": ["two"]})
    publish(channel, "", b"one", exchange="cc-first", headers={"CC": ["one"]})
    return drain(channel, queue)


def exchanges_that_delete_themselves(client: Client) -> Seen:
    """A chain of them goes when its end does; two that lead to one another, when one way goes."""

    def missing(name: str) -> Seen:
        return client.fault(lambda channel: channel.exchange_declare(name, passive=True))

    channel = client.channel()
    for name in ("ad-a", "ad-b", "ad-c", "ad-end"):
        channel.exchange_declare(name, "fanout", auto_delete=True)
    for source, destination in pairwise(("ad-a", "ad-b", "ad-c", "ad-end")):
        channel.exchange_bind(destination, source)
    channel.exchange_delete("ad-end")
    seen = [missing(name) for name in ("ad-a", "ad-b", "ad-c")]
    for name in ("ad-to", "ad-fro"):
        channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.exchange_bind("ad-to", "ad-fro")
    channel.exchange_bind("ad-fro", "ad-to")
    channel.exchange_unbind("ad-to", "ad-fro")
    return seen, [missing(name) for name in ("ad-to", "ad-fro")]


def names_lose_their_line_ends(client: Client) -> Seen:
    """Where they are declared and deleted (pika waits for ever for a queue of another name)."""
    channel = client.channel()
    channel.exchange_declare("line\nends\r\n", "fanout", auto_delete=True)
    channel.exchange_declare("lineends", passive=True)
    channel.exchange_delete("line\rends")
    return client.fault(lambda channel: channel.exchange_declare("lineends", passive=True))


def _matching(client: Client, exchange: str) -> Seen:
    channel = client.channel()
    queues = [client.declare(channel, f"by {exchange} {pattern}") for pattern in PATTERNS]
    for queue, pattern in zip(queues, PATTERNS, strict=True):
        channel.queue_bind(queue, exchange, pattern)
    for key in KEYS:
        publish(channel, key, key.encode(), exchange=exchange)
    seen = {queue: drain(channel, queue) for queue in queues}
    for queue in queues:
        channel.queue_delete(queue)
    return seen


def topics(client: Client) -> Seen:
    channel = client.channel()
    channel.exchange_delete("topics")
    channel.exchange_declare("topics", "topic")
    return _matching(client, "topics")


def topics_shared_with_other_protocols(client: Client) -> Seen:
    return _matching(client, "amq.topic")


def an_exchange_before_the_shared_one(client: Client) -> Seen:
    """What it passes on is an address there; the message names the exchange it was sent to."""
    channel = client.channel()
    channel.exchange_delete("to-shared")
    channel.exchange_declare("to-shared", "fanout")
    channel.exchange_bind("amq.topic", "to-shared", "")
    queue = client.declare(channel, "behind-shared")
    channel.queue_bind(queue, "amq.topic", "shared.#")
    seen = [
        publish(channel, key, b"1", exchange="to-shared", mandatory=True, headers={"n": 1})
        for key in ("shared.x", "other")
    ]
    found = headers_of(channel, queue), got(channel, queue)
    channel.exchange_unbind("amq.topic", "to-shared", "")
    seen.append(publish(channel, "shared.x", b"2", exchange="to-shared", mandatory=True))
    return seen, found


def a_queue_behind_both(client: Client) -> Seen:
    """An exchange and ``amq.topic`` behind it lead to the same queue: it gets one."""
    channel = client.channel()
    channel.exchange_delete("before-both")
    channel.exchange_declare("before-both", "fanout")
    channel.exchange_bind("amq.topic", "before-both", "")
    queue, other = client.declare(channel, "behind-both"), client.declare(channel, "behind-one")
    channel.queue_bind(queue, "before-both", "")
    channel.queue_bind(queue, "amq.topic", "both.#")
    channel.queue_bind(other, "amq.topic", "both.x")
    publish(channel, "both.x", b"1", exchange="before-both")
    publish(channel, "both.y", b"2", exchange="amq.topic")
    return drain(channel, queue), drain(channel, other)


def an_exchange_behind_the_shared_one(client: Client) -> Seen:
    """What ``amq.topic`` gets is routed on by the exchanges that are bound to it."""
    channel = client.channel()
    for name, kind in (("from-shared", "direct"), ("from-there", "headers")):
        channel.exchange_delete(name)
        channel.exchange_declare(name, kind)
    channel.exchange_bind("from-shared", "amq.topic", "passed.#")
    channel.exchange_bind("from-there", "from-shared", "passed.x")
    queue, other = client.declare(channel, "behind-it"), client.declare(channel, "behind-there")
    channel.queue_bind(queue, "from-shared", "passed.x")
    channel.queue_bind(other, "from-there", "", {"x-match": "all", "n": 1})
    for key, body in (("passed.x", b"1"), ("passed.y", b"2"), ("other", b"3")):
        publish(channel, key, body, exchange="amq.topic", headers={"n": 1})
    publish(channel, "passed.x", b"4", exchange="amq.topic", headers={"n": 2})
    seen = client.wait_count(queue, 2), client.wait_count(other, 1)
    found = headers_of(channel, queue), drain(channel, queue), drain(channel, other)
    channel.exchange_unbind("from-shared", "amq.topic", "passed.#")
    publish(channel, "passed.x", b"5", exchange="amq.topic")
    return seen, found, drain(channel, queue)


def names_left_to_the_server(client: Client) -> Seen:
    channel = client.channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.direct", "")
    routed = publish(channel, name, b"1", exchange="amq.direct", mandatory=True)
    unrouted = publish(channel, "", b"2", exchange="amq.direct", mandatory=True)
    return (
        name[:8],
        len(name),
        routed,
        unrouted,
        got(channel, ""),
        client.fault(lambda c: c.queue_declare("", passive=True)),
        client.fault(lambda c: c.basic_get("")),
    )
