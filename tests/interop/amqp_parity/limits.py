"""Expiry and length."""

from tests.interop.amqp_parity.client import Client, Seen, drain, got, headers_of, publish


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
