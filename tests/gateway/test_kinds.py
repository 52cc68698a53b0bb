"""What decisions of one connection share is the same as if each had been made in full."""

from collections.abc import AsyncIterator

import pytest

from gateway.config import GatewayConfig
from gateway.decided import Decision, remember
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
    known: dict[tuple[Call, Head], Decision] = {}
    who = call()
    heads = [Head(subject=str(number)) for number in range(130)]
    for number, head in enumerate(heads):
        remember(known, who, head, Decision(number), most=128)
    assert [head for _, head in known] == heads[2:]
    assert known[who, heads[-1]].stamp == 129
