"""What decisions of one connection share is the same as if each had been made in full."""

from collections.abc import AsyncIterator

import pytest

from gateway.config import GatewayConfig
from gateway.decided import Decision, Decisions
from gateway.decisions import Decider
from gateway.policy import Policy
from protocols.canonical import Call, Head
from tests.gateway.test_pipeline import World, subscribe
from tests.support.core import call

ROUTE = {"name": "default", "to": [{"cluster": "default", "key": "k"}]}
RULES = [{"deny": ["publish"], "topic": "a/secret/#"}, {"allow": ["all"]}]


def policy(**more: object) -> Policy:
    config = {"clusters": {"default": {"namesrv": ["127.0.0.1:9876"]}}, "routes": [ROUTE], **more}
    return Policy.from_config(GatewayConfig.model_validate(config))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.core.start(store_count=2)
    await world.core.cluster.routes.load("mqtt")
    yield world
    await world.core.stop()


def heads() -> list[Head]:
    """Of one client: all of the first level ``a``, where most are of one kind."""
    own = [
        Head(subject=f"a/{name}", order_key="p", qos=qos, properties=(("mqtt_topic", f"a/{name}"),))
        for name in ("1", "2", "2/x", "3", "secret/1", "pinned", "4")
        for qos in (0, 1)
    ]
    return [
        *own,
        Head(subject="a/5", order_key="p", retain=True),
        Head(subject="a/6", order_key="another", is_fifo=True),
        Head(subject="a/7", order_key="p", tag="t"),
        Head(subject="$SYS/x", order_key="p"),
        Head(subject="a", order_key="p"),
    ]


def told(decision: Decision, turn: int) -> object:
    """All of a decision that a message can see."""
    if decision.refusal is not None:
        return decision.refusal.code
    return [
        (copy.link.broker, copy.topic, copy.queue_id, copy.set_bytes, copy.queues, copy.flags,
         copy.is_primary, copy.is_only, copy.target_count, copy.order_hash, copy.template._tail)
        for copy in decision.copies(turn)
    ]  # fmt: skip


def decide(decider: Decider, asking: Call, head: Head) -> Decision:
    return decider.decide(asking, head, stamp=decider.stamp, now_ms=1)


async def test_a_kind_is_what_each_would_be(world: World) -> None:
    """Denied, pinned, retained and other keys included."""
    for subject_filter in ("a/2", "a/+", "a/2/#", "b/#"):
        subscribe(world, subject_filter)
    subscribe(world, "a/pinned", store="b")
    rules = policy(acl=RULES)
    shared = world.core.pipeline.decider
    shared.policy = rules
    asking = call("p")
    for head in heads():
        alone = Decider(
            shared.clusters, world.core.matching, default_cluster="default", policy=rules
        )
        assert told(decide(shared, asking, head), 3) == told(decide(alone, asking, head), 3), head
    first, second = (
        decide(shared, asking, Head(subject=f"a/{name}", order_key="p")) for name in "89"
    )
    assert first._places is second._places  # it was taken from the kind


async def test_a_new_subscription_is_seen(world: World) -> None:
    """A kind holds for one stamp only."""
    shared = world.core.pipeline.decider
    asking, head = call("p"), Head(subject="a/1", order_key="p")
    for name in ("a/0", "a/1"):
        decide(shared, asking, Head(subject=name, order_key="p"))
    queue = subscribe(world, "a/1")
    (copy,) = decide(shared, asking, head).copies(0)
    assert copy.queues == (queue,)


@pytest.mark.parametrize(
    "more",
    [
        {"routes": [{**ROUTE, "when": {"topic": "a/#"}}, ROUTE | {"name": "rest"}]},
        {"routes": [{"name": "default", "to": [{"cluster": "default", "key": "{2}"}]}]},
        {"throttle": [{"name": "t", "per": "topic", "publish": "9/s"}]},
        {"mqtt": {"mapping": "flat"}},
    ],
)
def test_rules_that_look_at_the_address(more: dict[str, object]) -> None:
    """Then every subject is decided in full."""
    assert policy().is_subject_blind
    assert not policy(**more).is_subject_blind


def test_the_oldest_decisions_make_room() -> None:
    """A part at a time; what was decided last is kept."""
    known, who = Decisions(128), call()
    heads = [Head(subject=str(number)) for number in range(130)]
    for number, head in enumerate(heads):
        known.keep(who, head, Decision(number))
    assert [head for head in heads if known.find(who, head) is not None] == heads[2:]
    found = known.find(who, heads[-1])
    assert found is not None
    assert found.stamp == 129


def test_many_connections_make_room_for_new_ones() -> None:
    """The longest known first; a decision made anew takes no further room."""
    known, callers, head = Decisions(128), [call() for _ in range(200)], Head(subject="a")
    for who in callers:
        for number in range(2):
            known.keep(who, head, Decision(number))
        assert len(known) <= 128
    found = [number for number, who in enumerate(callers) if known.find(who, head) is not None]
    assert found == list(range(72, 200))


def test_what_was_decided_for_a_connection_ends_with_it() -> None:
    known, who, other, head = Decisions(), call(), call(), Head(subject="a")
    known.keep(who, head, Decision(1))
    known.keep(other, head, Decision(2))
    for _ in range(2):
        known.forget(who)
        assert (len(known), known.find(who, head)) == (1, None)
    assert known.find(other, head) is not None
