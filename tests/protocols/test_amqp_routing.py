"""Exchange types, addresses, the topology's table: pure, as RabbitMQ measured."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp.addresses import filters_of, routing_key_of, subject_of
from protocols.amqp.arguments import check_queue_arguments, policy_of
from protocols.amqp.fields import Field, Table, encode_table, table_of
from protocols.amqp.matching import TopicIndex, matches_headers, matches_topic, words_of
from protocols.amqp.replies import AmqpFault
from protocols.amqp.topology import (
    BindingRecord,
    ExchangeRecord,
    QueueRecord,
    Topology,
    binding_key,
    record_key,
)
from protocols.directory import Record
from protocols.subjects import is_valid_filter, matches

# (pattern, key, matches): AMQP 0-9-1 section 3.1.3.3, empty words as RabbitMQ 3.10 does them
TOPICS = [
    ("a.b", "a.b", True),
    ("a.b", "a.c", False),
    ("*", "", False),
    ("#", "", True),
    ("*", "a", True),
    ("a.*.c", "a..c", True),
    ("a.#", "a", True),
    ("a.#", "a.b.c", True),
    ("#.#", "", True),
    ("#.z", "z", True),
    ("#.z", "a.b.z", True),
    ("#.z", "a.b", False),
    ("a.#.z", "a.z", True),
    ("a.#.z", "a.b.c.z", True),
    ("a.#.z", "a.b", False),
    ("*.#.*", "a", False),
    ("*.#.*", "a.b", True),
    ("$a.*", "$a.b", True),
    ("#", "$a.b", True),
    ("a/b.*", "a/b.c", True),
    ("+", "a", False),
    ("+", "+", True),
]


@pytest.mark.parametrize(("pattern", "key", "expected"), TOPICS)
def test_topic_patterns(pattern: str, key: str, expected: bool) -> None:
    """The index and the plain matcher agree with RabbitMQ."""
    index = TopicIndex()
    index.add(pattern, ("queue", "q"))
    index.add("other.key", ("queue", "p"))
    assert (("queue", "q") in index.match(key)) is expected
    assert matches_topic(words_of(pattern), words_of(key)) is expected
    index.remove(pattern, ("queue", "q"))
    assert ("queue", "q") not in index.match(key)


WORDS = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), min_size=1, max_size=5)
KEYS = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(WORDS, KEYS)
def test_the_index_agrees_with_the_matcher(pattern: list[str], key: list[str]) -> None:
    """For any pattern and key."""
    index = TopicIndex()
    index.add(".".join(pattern), ("queue", "q"))
    found = bool(index.match(".".join(key)))
    assert found is matches_topic(words_of(".".join(pattern)), words_of(".".join(key)))


@settings(max_examples=300, deadline=None)
@given(WORDS, KEYS)
def test_filters_mean_what_the_pattern_means(pattern: list[str], key: list[str]) -> None:
    """A binding to amq.topic as MQTT filters matches the same keys as the AMQP pattern."""
    text, routing_key = ".".join(pattern), ".".join(key)
    if not text or not routing_key:
        return  # the empty key has no address
    found = filters_of(text)
    if len([word for word in pattern if word == "#"]) > 2 and not found:
        return  # too many filters: refused at bind
    assert all(is_valid_filter(item) for item in found)
    expected = matches_topic(words_of(text), words_of(routing_key))
    assert any(matches(item, subject_of(routing_key)) for item in found) is expected


def test_filters_of_patterns() -> None:
    """One filter where MQTT can say it; several for an inner ``#``; none for too many."""
    assert filters_of("plants.*.temp") == ["plants/+/temp"]
    assert filters_of("plants.#") == ["plants/#"]
    assert filters_of("#") == ["#"]
    assert filters_of("#.*") == ["+/#"]
    assert filters_of("a.#.z")[:3] == ["a/z", "a/+/z", "a/+/+/z"]
    assert filters_of("a.#.b.#.c.#.d") == []
    assert filters_of("") == []
    assert filters_of("a.b+c") == ["a/b%2Bc"]


@pytest.mark.parametrize("key", ["a.b.c", "a/b.c", "one", "a..b", "ü.x", "50%"])
def test_addresses_come_back(key: str) -> None:
    """Key to subject and back; dots and slashes swap."""
    assert routing_key_of(subject_of(key)) == key
    assert subject_of("a.b/c") == "a/b.c"
    assert routing_key_of("plants/9/temp") == "plants.9.temp"


INT7: Table = {"k": Field("I", 7)}


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"x-match": "all", "k": 7, "l": "x"}, {"k": 7, "l": "x"}, True),
        ({"x-match": "all", "k": 7, "l": "x"}, {"k": 7}, False),
        ({"k": 7}, {"k": 7, "more": 1}, True),
        ({"x-match": "any", "k": 7, "l": "x"}, {"l": "x"}, True),
        ({"x-match": "any", "k": 7}, {"k": 8}, False),
        ({"k": None}, {"k": "whatever"}, True),
        ({"k": None}, {}, False),
        ({}, {}, True),
        ({"x-match": "any"}, {"k": 1}, False),
        ({"x-foo": 1}, {}, True),
        ({"x-match": "all-with-x", "x-foo": 1}, {}, False),
        ({"x-match": "any-with-x", "x-foo": 1}, {"x-foo": 1}, True),
        ({"k": 7}, {"k": "7"}, False),
        ({"k": 1 << 40}, {"k": 1 << 40}, True),
    ],
)
def test_headers_exchange(
    arguments: dict[str, object], headers: dict[str, object], expected: bool
) -> None:
    """x-match in its four forms; void; integers whatever their width."""
    assert matches_headers(table_of(arguments), table_of(headers)) is expected  # type: ignore[arg-type]


def test_integer_width_does_not_matter_to_headers() -> None:
    """A binding with I 7 takes a message with l 7."""
    assert matches_headers(INT7, {"k": Field("l", 7)})


# ── topology ────────────────────────────────────────────────────────────────────────────


class Records:
    """A topology with records put into it by name."""

    def __init__(self) -> None:
        self.topology = Topology(["/", "other"])
        self._version = 0

    def put(self, key: str, value: msgspec.Struct | None) -> None:
        self._version += 1
        data = None if value is None else msgspec.msgpack.encode(value)
        self.topology.apply([Record(key, data, self._version)])

    def queue(self, name: str, vhost: str = "/") -> None:
        record = QueueRecord(vhost=vhost, name=name, incarnation=1, store="broker-a")
        self.put(record_key(vhost, "queue", name), record)

    def exchange(self, name: str, kind: str, alternate: str = "") -> None:
        arguments = table_of({"alternate-exchange": alternate} if alternate else {})
        record = ExchangeRecord(vhost="/", name=name, type=kind, arguments=encode_table(arguments))
        self.put(record_key("/", "exchange", name), record)

    def bind(
        self, source: str, destination: str, key: str = "", *, is_exchange: bool = False
    ) -> BindingRecord:
        binding = BindingRecord(
            vhost="/", source=source, destination=destination, key=key, is_exchange=is_exchange
        )
        self.put(binding_key(binding), binding)
        return binding

    def route(
        self, exchange: str, key: str, vhost: str = "/", keys: Sequence[str] = ()
    ) -> list[str]:
        found = self.topology.route(vhost, exchange, keys or [key], {}).queues
        return sorted(queue.record.name for queue in found)


def test_the_default_exchange_knows_every_queue_of_its_vhost() -> None:
    """By name; other virtual hosts are other name spaces."""
    table = Records()
    table.queue("q")
    table.queue("p", vhost="other")
    assert table.route("", "q") == ["q"]
    assert table.route("", "p") == []
    assert table.route("", "p", vhost="other") == ["p"]


def test_each_of_the_keys_counts_at_every_exchange() -> None:
    """CC and BCC: one key leads to the second exchange, another one on from there."""
    table = Records()
    for name in ("near", "far"):
        table.queue(name)
    table.exchange("first", "direct")
    table.exchange("second", "topic")
    table.bind("first", "second", "cc", is_exchange=True)
    table.bind("first", "near", "key")
    table.bind("second", "far", "bcc")
    assert table.route("first", "key") == ["near"]
    assert table.route("first", "cc") == []
    assert table.route("first", "", keys=["key", "cc", "bcc"]) == ["far", "near"]
    assert table.route("", "", keys=["near", "far", "none"]) == ["far", "near"]


def test_a_cycle_of_exchanges_ends() -> None:
    """Each exchange once, each queue once."""
    table = Records()
    table.queue("q")
    for name in ("a", "b"):
        table.exchange(name, "fanout")
    table.bind("a", "b", is_exchange=True)
    table.bind("b", "a", is_exchange=True)
    table.bind("a", "q")
    table.bind("b", "q", "other key")
    assert table.route("a", "") == ["q"]
    assert table.route("b", "") == ["q"]


def test_alternate_exchanges_chain() -> None:
    """Only when nothing matched; then the alternate of the alternate."""
    table = Records()
    table.queue("q")
    table.exchange("last", "fanout")
    table.exchange("middle", "direct", alternate="last")
    table.exchange("first", "direct", alternate="middle")
    table.bind("last", "q")
    assert table.route("first", "x") == ["q"]
    table.queue("p")
    table.bind("first", "p", "x")
    assert table.route("first", "x") == ["p"]


def test_an_unbound_key_stays_while_another_binding_wants_it() -> None:
    """Two bindings that differ in arguments only are two bindings."""
    table = Records()
    table.queue("q")
    table.exchange("x", "direct")
    first = table.bind("x", "q", "k")
    second = msgspec.structs.replace(first, arguments=encode_table(table_of({"n": 1})))
    table.put(binding_key(second), second)
    table.put(binding_key(first), None)
    assert table.route("x", "k") == ["q"]
    table.put(binding_key(second), None)
    assert table.route("x", "k") == []


def test_records_in_any_order_and_twice() -> None:
    """A binding may come before its exchange; an old record changes nothing."""
    table = Records()
    table.queue("q")
    binding = table.bind("late", "q", "k")
    table.exchange("late", "topic")
    assert table.route("late", "k") == ["q"]
    data = msgspec.msgpack.encode(binding)
    table.put(binding_key(binding), None)
    table.topology.apply([Record(binding_key(binding), data, 1)])
    assert table.route("late", "k") == []


def test_a_deleted_queue_is_reported_and_not_routed_to() -> None:
    """Its consumers are to be told."""
    table = Records()
    gone: list[str] = []
    table.topology.on_queue_gone = lambda queue, record: gone.append(queue.record.name)
    table.queue("q")
    assert table.route("", "q") == ["q"]
    table.put(record_key("/", "queue", "q"), None)
    assert table.route("", "q") == []
    assert gone == ["q"]


def test_keys_keep_virtual_hosts_apart() -> None:
    """Whatever characters the names have."""
    assert record_key("/", "queue", "a/b").startswith("amqp/%2F/queue/")
    assert record_key("a", "queue", "b") != record_key("a/queue", "", "b")


# ── arguments ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-message-ttl", -1),
        ("x-message-ttl", "5"),
        ("x-expires", 0),
        ("x-max-length", -1),
        ("x-overflow", "elsewhere"),
        ("x-max-priority", 256),
        ("x-single-active-consumer", 1),
        ("x-queue-type", "zz"),
        ("x-dead-letter-exchange", 5),
        ("x-dead-letter-routing-key", "k"),
    ],
)
def test_bad_arguments_are_406(name: str, value: int | str) -> None:
    """Each with the argument's name."""
    with pytest.raises(AmqpFault, match=name) as caught:
        check_queue_arguments("q", "/", table_of({name: value}))
    assert caught.value.code == 406
    assert not caught.value.is_hard


def test_good_arguments_pass_and_become_a_policy() -> None:
    """Unknown ones too."""
    arguments = table_of({"x-max-length": 5, "x-overflow": "reject-publish", "x-mine": True})
    check_queue_arguments("q", "/", arguments)
    assert policy_of(arguments, "amqp//") == {
        "keep": "until_acked", "max_length": 5, "overflow": "reject"
    }  # fmt: skip
    dead = table_of({"x-dead-letter-exchange": "dlx", "x-expires": 10})
    assert policy_of(dead, "amqp//") == {
        "keep": "until_acked",
        "idle_ms": 10,
        "dead_letter": "amqp//",
        "dead_letter_note": '["dlx", null]',
        "notices": "amqp//",
    }
