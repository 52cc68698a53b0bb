"""The rule table: match, rewrite, weight, mirror, failover; what a consumer reads from."""

from collections import Counter

from gateway.routing import RouteTable, Target, choose
from gateway.ruleconfig import RouteConfig
from gateway.rules import Facts
from protocols.canonical import Identity

ROUTES = [
    {
        "name": "alarms",
        "when": {"protocol": "mqtt", "topic": "plants/+/alarm/#"},
        "to": [{"cluster": "eu", "topic": "ALARM", "key": "{2}", "tag": "alarm"}],
        "mirror": [{"cluster": "us", "percent": 100}],
    },
    {
        "name": "canary",
        "when": {"tenant": ["acme", "globex"], "topic": "telemetry/#", "identity": "dev-*"},
        "to": [{"cluster": "eu", "weight": 95}, {"cluster": "us", "weight": 5}],
        "prefer": "same_zone",
        "failover": ["us"],
    },
    {"name": "default", "to": [{"cluster": "eu"}]},
]


def table(*routes: dict[str, object]) -> RouteTable:
    return RouteTable([RouteConfig.model_validate(route) for route in routes or ROUTES])


def facts(subject: str, protocol: str = "mqtt", name: str = "dev-7", **more: str) -> Facts:
    return Facts(protocol=protocol, identity=Identity(name=name), subject=subject, **more)


def test_the_first_match_decides_and_rewrites() -> None:
    """``{2}`` is the second level of the address."""
    decision = table().decide(facts("plants/9/alarm/fire", operation="publish"))
    assert decision is not None
    assert decision.route == "alarms"
    assert decision.targets == (Target("eu", "ALARM", "9", "alarm"),)
    assert [(mirror.cluster, mirror.topic) for mirror in decision.mirrors] == [("us", "ALARM")]


def test_fields_are_and_ed_and_lists_or_ed() -> None:
    """The canary wants one of two tenants and a device."""
    assert table().decide(facts("telemetry/1", tenant="globex")).route == "canary"
    assert table().decide(facts("telemetry/1", tenant="other")).route == "default"
    assert table().decide(facts("telemetry/1", tenant="acme", name="app")).route == "default"
    assert table().decide(facts("plants/9/alarm", protocol="amqp")).route == "default"


def test_weights_are_shares_of_keys_and_sticky() -> None:
    """One key keeps its target; shares come out near the weights."""
    targets = (Target("eu", weight=95), Target("us", weight=5))
    chosen = {f"dev-{n}": choose(targets, f"dev-{n}").cluster for n in range(5000)}
    assert 170 < Counter(chosen.values())["us"] < 330
    assert all(choose(targets, key).cluster == cluster for key, cluster in chosen.items())


def test_a_changed_weight_moves_only_what_it_must() -> None:
    """Rendezvous: raising one share moves keys to it, none between the others."""
    before = (Target("a", weight=50), Target("b", weight=50), Target("c", weight=0))
    after = (Target("a", weight=50), Target("b", weight=50), Target("c", weight=20))
    moves = Counter(
        (choose(before, str(n)).cluster, choose(after, str(n)).cluster) for n in range(2000)
    )
    assert {pair for pair in moves if pair[0] != pair[1]} == {("a", "c"), ("b", "c")}


def test_weight_zero_takes_nothing() -> None:
    """Drained: no new messages, still read from."""
    targets = [{"cluster": "eu", "weight": 0}, {"cluster": "us", "weight": 1}]
    drained = table({"name": "d", "to": targets})
    decision = drained.decide(facts("x"))
    assert {decision.choose(str(n)).cluster for n in range(100)} == {"us"}
    assert {target.cluster for target in drained.consume_targets(facts("x"))} == {"eu", "us"}


def test_consumers_read_from_all_targets() -> None:
    """A canary or a failover never hides messages from a consumer."""
    read = table().consume_targets(facts("telemetry/#", operation="consume", tenant="acme"))
    assert {target.cluster for target in read} == {"eu", "us"}
    read = table().consume_targets(facts("other/#", operation="consume", tenant="acme"))
    assert {target.cluster for target in read} == {"eu"}


def test_consumers_of_a_rewritten_topic_find_it() -> None:
    """The topic a route writes to is read where the route writes it."""
    routes = table(
        {"name": "r", "when": {"topic": "plants/#"}, "to": [{"cluster": "us", "topic": "PLANTS"}]},
        {"name": "default", "to": [{"cluster": "eu"}]},
    )
    read = routes.consume_targets(facts("", "grpc", topic="PLANTS"))
    assert ("us", "") in read
    read = routes.consume_targets(facts("plants/+/x", operation="consume"))
    assert ("us", "PLANTS") in read


def test_consumers_read_what_publishers_may_have_put_elsewhere() -> None:
    """Who and how they publish is not the consumer's; a route that takes all is the last one."""
    routes = table(
        {"name": "own", "when": {"topic": "own/{identity}/#"}, "to": [{"cluster": "us"}]},
        {"name": "amqp", "when": {"protocol": "amqp"}, "to": [{"cluster": "asia"}]},
        {"name": "default", "to": [{"cluster": "eu"}]},
        {"name": "unreachable", "to": [{"cluster": "mars"}]},
    )

    def read(subject: str) -> set[str]:
        found = routes.consume_targets(facts(subject, operation="consume"))
        return {target.cluster for target in found}

    assert read("own/dev-8/x") == {"us", "asia", "eu"}
    assert read("other/dev-7/x") == {"asia", "eu"}


def test_no_route_is_no_decision() -> None:
    """A table without a default refuses what it does not name."""
    assert table(ROUTES[0]).decide(facts("x", "amqp")) is None


def test_names_that_are_no_topics_are_made_ones() -> None:
    """A rewritten topic has only characters that RocketMQ takes."""
    routes = table({"name": "r", "to": [{"cluster": "eu", "topic": "t_{subject}"}]})
    assert routes.decide(facts("a/b c/é")).targets[0].topic == "t_a_b_c__"


def test_header_rules_look_at_properties() -> None:
    routes = table(
        {"name": "h", "when": {"header": {"kind": "al*"}}, "to": [{"cluster": "us"}]},
        {"name": "default", "to": [{"cluster": "eu"}]},
    )
    assert routes.decide(facts("x")).route == "default"
    assert routes.decide(facts("x")._replace(properties={"kind": "alarm"})).route == "h"
