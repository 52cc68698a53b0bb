"""
Run by the client's own interpreter: rocketmq-python-client against a gateway.

Its own process and environment, because it registers the same protobuf names as the gateway.
Reads one JSON object on stdin (endpoints, case, topic, group, count, bodies, properties, keys)
and prints one JSON line.
"""

import json
import logging
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from rocketmq.v5.exception.client_exception import InternalErrorException


def configuration(endpoints, keys):
    return ClientConfiguration(endpoints, Credentials(*keys))


def message(topic, body, *, tag="", keys="", properties=(), group=""):
    one = Message()
    one.topic = topic
    one.body = body
    if tag:
        one.tag = tag
    if keys:
        one.keys = keys
    if group:
        one.message_group = group
    for name, value in properties:
        one.add_property(name, value)
    return one


def send(config, topic, messages):
    producer = Producer(config, (topic,))
    producer.startup()
    try:
        return [producer.send(one).message_id for one in messages]
    finally:
        producer.shutdown()


def simple_case(config, topic, group):
    """Produce three, receive them by tag, ack one, let one come back by a change to nothing."""
    ids = send(
        config,
        topic,
        [
            message(topic, b"one", tag="t", keys="k1", properties=[("colour", "blue")]),
            message(topic, b"two", tag="t"),
            message(topic, b"other", tag="u"),
        ],
    )
    consumer = SimpleConsumer(config, group, {topic: FilterExpression("t")}, await_duration=5)
    consumer.startup()
    try:
        got = receive(consumer, 2)
        by_body = {one.body: one for one in got}
        first = by_body[b"one"]
        consumer.ack(first)
        consumer.change_invisible_duration(by_body[b"two"], 1)
        (again,) = receive(consumer, 1)
        consumer.ack(again)
        return {
            "sent": ids,
            "received": sorted(one.message_id for one in got),
            "tag": first.tag,
            "keys": list(first.keys),
            "properties": dict(first.properties),
            "again": again.body.decode(),
            "attempt": again.delivery_attempt,
        }
    finally:
        consumer.shutdown()


def receive(consumer, count, *, seconds=120):
    got = []
    until = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < until:
        try:
            got += consumer.receive(count - len(got), 15) or ()
        except InternalErrorException:  # Apache's proxy, asked before it has the settings
            time.sleep(0.2)
    assert len(got) == count, f"{len(got)} of {count}"
    return got


class Listener(MessageListener):
    def __init__(self, count):
        self.count = count
        self.bodies = []
        self.attempts = []
        self.lock = threading.Lock()
        self.done = threading.Event()

    def consume(self, message):
        with self.lock:
            self.attempts.append(message.delivery_attempt)
            if message.body == b"2" and message.delivery_attempt == 1:
                return ConsumeResult.FAILURE
            self.bodies.append(message.body.decode())
            if len(self.bodies) == self.count:
                self.done.set()
            return ConsumeResult.SUCCESS


def push_case(config, topic, group):
    """A push consumer gets five, one of them twice because its listener failed once."""
    send(config, topic, [message(topic, str(number).encode()) for number in range(5)])
    listener = Listener(5)
    consumer = PushConsumer(config, group, listener, {topic: FilterExpression()})
    consumer.startup()
    try:
        arrived = listener.done.wait(120)
        time.sleep(1)  # acks are asynchronous, and a wrong further delivery would show now
        return {
            "arrived": arrived,
            "bodies": sorted(listener.bodies),
            "attempts": sorted(listener.attempts),
        }
    finally:
        consumer.shutdown()


def send_case(config, topic, group, *, bodies, properties, tag="", keys=""):
    """Produce messages; their ids."""
    messages = [
        message(topic, body.encode(), tag=tag, keys=keys, properties=properties.items())
        for body in bodies
    ]
    return send(config, topic, messages)


def receive_case(config, topic, group, *, count):
    """Receive and acknowledge *count* with a simple consumer."""
    consumer = SimpleConsumer(config, group, {topic: FilterExpression()}, await_duration=5)
    consumer.startup()
    try:
        got = receive(consumer, count)
        for one in got:
            consumer.ack(one)
        return [described(one) for one in got]
    finally:
        consumer.shutdown()


def described(one):
    return {
        "body": one.body.decode(),
        "properties": dict(one.properties),
        "tag": one.tag,
        "keys": list(one.keys or ()),
        "id": one.message_id,
    }


def denied_case(config, topic, group):
    """What a client with wrong keys is told."""
    try:
        send(config, topic, [message(topic, b"x")])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": ""}


class Collector(MessageListener):
    def __init__(self, count):
        self.count = count
        self.got = []
        self.lock = threading.Lock()
        self.done = threading.Event()

    def consume(self, message):
        with self.lock:
            self.got.append(described(message))
            if len(self.got) >= self.count:
                self.done.set()
        return ConsumeResult.SUCCESS


def collect_case(config, topic, group, *, count):
    """Receive *count* with a push consumer."""
    listener = Collector(count)
    consumer = PushConsumer(config, group, listener, {topic: FilterExpression()})
    consumer.startup()
    try:
        assert listener.done.wait(120), f"{len(listener.got)} of {count}"
        time.sleep(0.5)  # acks are asynchronous
        return listener.got
    finally:
        consumer.shutdown()


CASES = {
    "simple": simple_case,
    "push": push_case,
    "send": send_case,
    "receive": receive_case,
    "collect": collect_case,
    "denied": denied_case,
}


def main():
    request = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    config = configuration(request.pop("endpoints"), request.pop("credentials"))
    case = CASES[request.pop("case")]
    print(json.dumps(case(config, request.pop("topic"), request.pop("group"), **request)))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
