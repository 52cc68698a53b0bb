"""Priorities, who is served, counts, ends of queues."""

import datetime
import decimal
from collections.abc import Callable
from typing import Any

from tests.interop.amqp_parity.client import (
    Client,
    Seen,
    drain,
    got,
    headers_of,
    publish,
)


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


def what_a_closed_connection_leaves(client: Client) -> Seen:
    """After close-ok its auto-delete and exclusive queues are gone: none is found half dead."""
    seen: list[Seen] = []
    for number in range(5):
        there = client.connect()
        channel = there.channel()
        channel.queue_declare("leaves-auto", auto_delete=True)
        channel.queue_declare(f"leaves-own-{number}", exclusive=True)
        channel.basic_consume("leaves-auto", lambda *got: None)
        there.close()
        seen.append(client.fault(lambda c: c.queue_declare("leaves-auto", passive=True)))
        own = f"leaves-own-{number}"
        seen.append(client.fault(lambda c, own=own: c.queue_declare(own, passive=True)))
    return seen


def consumers_with_more_priority(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "consumer-priority")
    there = client.connect().channel()
    there.basic_qos(prefetch_count=2)
    seen: list[tuple[str, bytes]] = []
    for tag, arguments in (("low", {"x-priority": -1}), ("high", {"x-priority": 10}), ("none", {})):
        there.basic_consume(
            queue,
            lambda _, method, properties, body: seen.append((method.consumer_tag, body)),
            consumer_tag=tag,
            arguments=arguments,
        )
    for body in (b"1", b"2", b"3", b"4", b"5"):
        publish(channel, queue, body)
        count = len(seen) + 1
        client.until(lambda count=count: len(seen), count, there)
    bad = {"x-priority": "much"}
    wrong = client.fault(lambda c: c.basic_consume(queue, lambda *got: None, arguments=bad))
    return seen, wrong


def requeued_in_place(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "requeued")
    publish(channel, queue, *[b"%d" % number for number in range(6)])
    tags = [got(channel, queue)[0] for _ in range(5)]
    channel.basic_nack(tags[2], requeue=True)
    seen = [got(channel, queue)]
    channel.basic_nack(tags[0], requeue=True)
    channel.basic_nack(tags[3], requeue=True)
    return seen, [got(channel, queue) for _ in range(4)]


def prefetch(client: Client) -> Seen:
    """Of a consumer, then of the channel."""
    channel = client.channel()
    queue = client.declare(channel, "prefetch")
    publish(channel, queue, *[b"%d" % number for number in range(20)])
    there = client.connect().channel()
    deliveries: list[tuple[int, bytes]] = []
    there.basic_qos(prefetch_count=3)
    there.basic_consume(queue, lambda *got: deliveries.append((got[1].delivery_tag, got[3])))

    def held(count: int, ready: int) -> Seen:
        came = client.until(lambda: len(deliveries), count, there)
        return came, client.until(lambda: client.count(queue), (ready, 1))

    seen = [held(3, 17)]
    there.basic_ack(2, multiple=True)
    seen.append(held(5, 15))
    there.basic_nack(0, multiple=True, requeue=True)
    seen.append(held(8, 15))
    there.basic_qos(prefetch_count=2, global_qos=True)
    there.basic_ack(0, multiple=True)
    seen.append(held(10, 13))
    there.close()
    return seen, client.until(lambda: client.count(queue), (15, 0)), deliveries[-1]


def a_limit_of_the_channel_is_shared(client: Client) -> Seen:
    """No consumer goes without, and what the limit holds back is there for basic.get."""
    channel = client.channel()
    there = client.connect().channel()
    there.basic_qos(prefetch_count=1, global_qos=True)
    deliveries: list[tuple[str, int]] = []

    def came(_: Any, method: Any, *rest: Any) -> None:
        deliveries.append((method.consumer_tag, method.delivery_tag))

    queues = [client.declare(channel, f"shared-limit-{number}") for number in range(3)]
    for queue in queues:
        publish(channel, queue, *[b"m"] * 4)
        there.basic_consume(queue, came, consumer_tag=queue)
    seen: list[Seen] = []
    for number in range(9):
        client.until(lambda: len(deliveries), number + 1, there)
        if not number:
            seen.append([got(channel, queue, auto_ack=True) is not None for queue in queues])
        there.basic_ack(deliveries[-1][1])
    served = {tag: len([item for item in deliveries if item[0] == tag]) for tag in queues}
    return seen, [served[queue] > 1 for queue in queues]


def an_exclusive_queue_that_deletes_itself(client: Client) -> Seen:
    """After its last consumer, and the connection goes on."""
    channel = client.channel()
    channel.queue_declare("own-auto", exclusive=True, auto_delete=True)
    channel.basic_consume("own-auto", lambda *got: None, consumer_tag="only")
    channel.basic_cancel("only")
    again = channel.queue_declare("own-auto").method.message_count
    channel.queue_delete("own-auto")
    return again, client.fault(lambda c: c.queue_declare("own-auto", passive=True))


def transactions(client: Client) -> Seen:
    channel = client.channel(confirms=False)
    queue = client.declare(channel, "transactions")
    channel.tx_select()
    for body in (b"1", b"2"):
        channel.basic_publish("", queue, body)
    seen = [client.count(queue)]
    channel.tx_commit()
    seen.append(client.count(queue))
    channel.basic_publish("", queue, b"3")
    channel.tx_rollback()
    seen.append(client.count(queue))
    tag = got(channel, queue)[0]
    channel.basic_ack(tag)
    channel.tx_rollback()  # it is outstanding again
    channel.basic_ack(tag)
    channel.tx_commit()
    seen.append(client.count(queue))
    channel.basic_ack(got(channel, queue)[0])
    channel.tx_rollback()
    channel.basic_recover(requeue=True)
    channel.tx_commit()
    return seen, client.wait_count(queue, 1)


def what_is_delivered(client: Client) -> Seen:
    channel = client.channel()
    queue = client.declare(channel, "delivered")
    channel.queue_bind(queue, "amq.direct", "delivered-key")
    headers = {
        "text": "s",
        "bool": True,
        "int": 1,
        "big": 2**40,
        "negative": -3,
        "decimal": decimal.Decimal("1.25"),
        "void": None,
        "array": [1, "a", None, {"x": 1}],
        "table": {"y": 2},
        "time": datetime.datetime(2020, 1, 1),
        "bytes": b"\x00\xff",
    }
    publish(
        channel,
        "delivered-key",
        b"x" * 300_000,
        exchange="amq.direct",
        content_type="a/b",
        content_encoding="gzip",
        headers=headers,
        delivery_mode=2,
        priority=7,
        correlation_id="c",
        reply_to="r",
        expiration="600000",
        message_id="m",
        timestamp=123,
        type="t",
        user_id="guest",
        app_id="app",
        cluster_id="cl",
    )
    publish(channel, queue, b"")
    seen: list[Seen] = []
    channel.basic_consume(
        queue,
        lambda _, method, properties, body: seen.append(
            (vars(method), vars(properties), len(body))
        ),
        consumer_tag="tag",
    )
    client.until(lambda: len(seen), 2)
    return [str(part) for one in seen for part in one]
