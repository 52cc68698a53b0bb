"""Dead letters."""

from tests.interop.amqp_parity.client import Client, Seen, got, headers_of, publish


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
