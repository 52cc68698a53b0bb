"""Codes and texts."""

from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.amqp_parity.client import (
    Client,
    Properties,
    Seen,
    drain,
    publish,
)


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


def exchanges_refused(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "ops-queue")
    for name in ("ops-a", "ops-b", "ops-inner", "ops-headers"):
        channel.exchange_delete(name)
    channel.exchange_declare("ops-a", "direct")
    channel.exchange_declare("ops-b", "direct", auto_delete=True)
    channel.exchange_declare("ops-inner", "direct", internal=True)
    channel.exchange_declare("ops-headers", "headers")
    channel.queue_bind(queue, "ops-a", "k")
    channel.queue_bind(queue, "ops-a", "k")
    channel.exchange_bind("amq.fanout", "ops-b", "k")
    channel.exchange_unbind("amq.fanout", "ops-b", "k")
    seen = [client.fault(lambda c: c.exchange_delete("ops-a", if_unused=True))]
    channel.queue_unbind(queue, "ops-a", "k")
    channel.queue_unbind(queue, "ops-a", "k")
    other = {"alternate-exchange": "amq.fanout"}
    bad = {"alternate-exchange": 3}
    return seen + [
        client.fault(act)
        for act in (
            lambda c: c.queue_unbind(queue, "no-such", "k"),
            lambda c: c.queue_unbind("no-such", "ops-a", "k"),
            lambda c: c.queue_unbind(queue, "", "k"),
            lambda c: c.exchange_unbind("no-such", "ops-a", "k"),
            lambda c: c.exchange_bind("no-such", "ops-a", "k"),
            lambda c: c.exchange_bind("ops-a", "no-such", "k"),
            lambda c: c.exchange_bind("", "ops-a", "k"),
            lambda c: c.exchange_delete("ops-a", if_unused=True),
            lambda c: c.exchange_delete("ops-a"),
            lambda c: c.exchange_declare("ops-b", passive=True),
            lambda c: c.exchange_declare("", "direct"),
            lambda c: c.exchange_declare("", passive=True),
            lambda c: c.exchange_delete(""),
            lambda c: c.exchange_delete("amq.no-such"),
            lambda c: c.exchange_declare("amq.x", passive=True),
            lambda c: c.exchange_declare("amq.topic", "topic", durable=True),
            lambda c: c.exchange_declare("amq.topic", "fanout", durable=True),
            lambda c: c.exchange_declare("ops-type", "no-such-type"),
            lambda c: c.exchange_declare("ops-inner", "direct"),
            lambda c: c.exchange_declare("ops-inner", "direct", internal=True, auto_delete=True),
            lambda c: c.exchange_declare("ops-inner", "direct", internal=True, arguments=other),
            lambda c: c.exchange_declare("ops-bad", "direct", arguments=bad),
            lambda c: c.queue_bind(queue, "ops-headers", "", {"x-match": "some"}),
            lambda c: c.queue_bind(queue, "ops-headers", "", {"x-match": 1}),
            lambda c: c.basic_publish("amq.rabbitmq.trace", "k", b""),
        )
    ]


def methods_refused(client: Client) -> Seen:
    def send(channel: BlockingChannel, method: Any, content: Any = None) -> None:
        channel._impl._send_method(method, content)

    immediate = pika.spec.Basic.Publish(exchange="", routing_key="x", immediate=True)
    acts: list[Callable[[BlockingChannel], object]] = [
        lambda c: send(c, immediate, (Properties(), b"x")),
        lambda c: send(c, pika.spec.Channel.Open()),
        lambda c: send(c, pika.spec.Basic.ConsumeOk("x")),
        lambda c: send(c, pika.spec.Basic.Cancel("no-such")),
        lambda c: c.basic_recover(requeue=False),
        lambda c: c.basic_ack(0, multiple=False),
        lambda c: c.basic_ack(0, multiple=True),
        lambda c: c.basic_nack(3),
        lambda c: c.basic_reject(3),
        lambda c: c.tx_rollback(),
        lambda c: (c.tx_select(), c.confirm_delivery()),
        lambda c: (c.confirm_delivery(), c.tx_select()),
        lambda c: (c.tx_select(), c.basic_publish("no-such", "k", b""), c.tx_commit()),
        lambda c: (c.tx_select(), c.basic_ack(77), c.tx_commit()),
        lambda c: c.basic_publish("", "k" * 255, b"x"),
        lambda c: c.queue_delete("no-such"),
        lambda c: c.queue_delete("amq.no-such"),
    ]
    for text in ("-1", "1.5", " 5", "99999999999", "4294967296", "1000"):
        one = Properties(expiration=text)
        acts.append(lambda c, one=one: c.basic_publish("", "x", b"", one))
    return [client.fault(act) for act in acts]


def settled_tags(client: Client) -> Seen:
    """Multiple settles nothing up to a tag that is settled; also within a transaction."""
    acts: list[tuple[int, Callable[[BlockingChannel], object]]] = [  # with how many are left
        (2, lambda c: (c.basic_ack(2), c.basic_ack(2, multiple=True))),
        (2, lambda c: (c.basic_ack(3), c.basic_nack(3, multiple=True, requeue=False))),
        (1, lambda c: (c.basic_ack(2, multiple=True), c.basic_reject(2))),
        (2, lambda c: (c.basic_ack(3), c.basic_ack(4, multiple=True))),
        (0, lambda c: (c.basic_ack(0, multiple=True), c.basic_ack(0, multiple=True))),
        (3, lambda c: (c.tx_select(), c.basic_ack(2), c.basic_ack(2, multiple=True))),
        (2, lambda c: (c.tx_select(), c.basic_ack(2), c.tx_commit(), c.basic_ack(2, True))),
        (
            2,
            lambda c: (
                c.tx_select(),
                c.basic_ack(2),
                c.tx_rollback(),
                c.basic_ack(2),
                c.tx_commit(),
            ),
        ),
    ]
    channel = client.channel()
    seen = []
    for left, act in acts:
        queue = client.declare(channel, "settled")
        publish(channel, queue, b"0", b"1", b"2")
        fault = client.fault(
            lambda c, act=act: ([c.basic_get("settled") for _ in range(3)], act(c))
        )
        if client.connections[-1].is_open:
            client.connections[-1].close()
        seen.append((fault, client.wait_count(queue, left), drain(channel, queue)))
    return seen


def more_unlike_declarations(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "unlike-letters", dead_letter_exchange="a")
    changes: list[dict[str, Any]] = [
        {},
        {"x-dead-letter-exchange": "b"},
        {"x-dead-letter-routing-key": "k"},
        {"x-expires": 10_000},
        {"x-overflow": "drop-head"},
        {"x-single-active-consumer": True},
        {"x-queue-type": "classic"},
        {"x-queue-type": "quorum"},
        {"x-max-length-bytes": 2**40},
    ]
    arguments = [{"x-dead-letter-exchange": "a", **change} for change in changes]
    seen = [
        client.fault(lambda c, one=one: c.queue_declare(queue, arguments=one)) for one in arguments
    ]
    passive = client.fault(lambda c: c.queue_declare(queue, passive=True, durable=True))
    return seen, passive


def large_arguments(client: Client) -> Seen:
    channel = client.channel()
    tries: list[dict[str, Any]] = [
        {"x-message-ttl": 2**32},
        {"x-expires": 2**31},
        {"x-expires": 2**32},
        {"x-max-length": 2**63 - 1},
        {"x-max-length": True},
        {"x-max-priority": 255},
        {"x-queue-type": 1},
        {"x-dead-letter-strategy": "at-least-once"},
        {"x-queue-version": 2},
        {"x-queue-master-locator": "client-local"},
        {"x-max-age": "1D"},
        {"x-quorum-initial-group-size": 3},
        {"x-single-active-consumer": "yes"},
        {"x-queue-type": "quorum", "x-overflow": "reject-publish-dlx"},
    ]
    seen = []
    for one in tries:
        channel.queue_delete("large")
        seen.append(client.fault(lambda c, one=one: c.queue_declare("large", True, arguments=one)))
    return seen
