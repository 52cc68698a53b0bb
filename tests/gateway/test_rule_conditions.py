"""Conditions of rules: headers, expressions, time windows; where a route goes and comes back to."""

from datetime import datetime

import pytest
from pydantic import ValidationError

from gateway import config
from gateway.acl import Acl
from gateway.checks import warnings
from gateway.failback import FailBack
from gateway.policy import Policy
from gateway.ruleconfig import AclConfig, RouteConfig, WhenConfig
from gateway.rules import Facts
from gateway.windows import TimeWindow, next_change_ms
from protocols import clock
from protocols.canonical import Call, Identity
from protocols.errors import ConfigError


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def fits(when: dict[str, object], **facts: object) -> bool:
    conditions = WhenConfig.model_validate(when).conditions()
    return conditions.mismatch(Facts(**facts)) == ""  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("test", "value", "expected"),
    [
        ("hot", "hot", True),
        ("h*t", "heat", True),
        ({"exact": "h*t"}, "heat", False),
        ({"exact": "h*t"}, "h*t", True),
        ({"prefix": "he"}, "heat", True),
        ({"prefix": "ea"}, "heat", False),
        ({"glob": "*ea*"}, "heat", True),
    ],
)
def test_headers_by_value_prefix_and_glob(test: object, value: str, expected: bool) -> None:
    assert fits({"header": {"x": test}}, properties={"x": value}) is expected
    assert not fits({"header": {"x": test}}, properties={})


@pytest.mark.parametrize(
    ("operations", "asked", "expected"),
    [
        (["publish"], "publish", True),
        (["publish"], "consume", False),
        (["consume", "publish"], "publish", True),
        (["all"], "consume", True),
        ([], "consume", True),
    ],
)
def test_operations(operations: list[str], asked: str, expected: bool) -> None:
    assert fits({"operation": operations}, operation=asked) is expected


def test_expressions_see_the_properties() -> None:
    """RocketMQ's SQL92, three-valued: unknown is not true."""
    when = {"expression": "temp > 30 AND site IN ('a', 'b')"}
    assert fits(when, properties={"temp": "31", "site": "a"})
    assert not fits(when, properties={"temp": "31", "site": "c"})
    assert not fits(when, properties={"site": "a"})
    with pytest.raises(ValidationError, match="expression"):
        WhenConfig.model_validate({"expression": "temp >"})


@pytest.mark.parametrize(
    ("window", "at", "expected"),
    [
        ("mon-fri 08:00-18:00", "2026-01-05T08:00+00:00", True),
        ("mon-fri 08:00-18:00", "2026-01-05T18:00+00:00", False),
        ("mon-fri 08:00-18:00", "2026-01-04T12:00+00:00", False),
        ("08:00-18:00 Europe/Berlin", "2026-07-05T06:30+00:00", True),
        ("08:00-18:00 Europe/Berlin", "2026-01-05T06:30+00:00", False),
        ("fri 22:00-06:00", "2026-01-10T05:59+00:00", True),
        ("fri 22:00-06:00", "2026-01-09T05:59+00:00", False),
        ("sat,sun", "2026-01-10T23:59+00:00", True),
        ("sat-mon", "2026-01-06T00:00+00:00", False),
    ],
)
def test_time_windows(window: str, at: str, expected: bool) -> None:
    assert fits({"time": window}, wall_ms=ms(at)) is expected


@pytest.mark.parametrize(
    "text", ["", "xyz", "mon 25:00-26:00", "08:00-08:00", "mon 08:00", "08:00-09:00 Nowhere/At"]
)
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(ValidationError):
        WhenConfig.model_validate({"time": text})


def test_a_window_says_when_it_changes() -> None:
    window = TimeWindow.parse("mon-fri 08:00-18:00")
    assert window.next_change_ms(ms("2026-01-05T07:00+00:00")) == ms("2026-01-05T08:00+00:00")
    assert window.next_change_ms(ms("2026-01-05T08:00+00:00")) == ms("2026-01-05T18:00+00:00")
    assert next_change_ms((), 1) == 0


def test_an_acl_with_windows_forgets_when_one_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its judgements are kept only until then."""
    acl = Acl([AclConfig.model_validate({"allow": "publish", "time": "08:00-18:00"})])
    call = Call(protocol="mqtt", listener="mqtt", identity=Identity(name="d"))
    answers = []
    for at in ("2026-01-05T07:59+00:00", "2026-01-05T08:00+00:00", "2026-01-05T18:00+00:00"):
        monkeypatch.setattr(clock, "wall_ms", lambda at=at: ms(at))
        answers.append(acl.is_allowed(call, "publish", subject="t"))
    assert answers == [False, True, False]


def test_a_policy_knows_whether_messages_have_to_be_looked_at() -> None:
    def policy(**when: object) -> Policy:
        text = {"name": "r", "when": when, "to": [{"cluster": "default"}]}
        loaded = config.read(None).config
        route = RouteConfig.model_validate(text)
        return Policy.from_config(loaded.model_copy(update={"routes": (route,)}))

    assert not policy(topic="a/#").has_residuals
    assert policy(expression="a = 1").has_residuals
    assert policy(header={"a": "b"}).has_residuals
    assert policy(time="08:00-18:00").valid_until_ms(ms("2026-01-05T07:00+00:00")) == ms(
        "2026-01-05T08:00+00:00"
    )
    assert policy().valid_until_ms(1) == 0


def test_a_target_is_used_again_when_it_has_been_well_for_a_while() -> None:
    """Ill, on trial, trusted; what one topic lacks says nothing about another."""
    state, names = FailBack(), ("eu", "us")
    assert state.order(names, "T", 1000, 0) == (names, 0)
    state.is_ill("eu", "T")
    assert state.order(names, "T", 1000, 10) == (names, 0)
    assert state.is_well("eu", "T", 100)
    assert not state.is_well("eu", "T", 200)
    assert state.order(names, "T", 1000, 200) == (("us", "eu"), 1100)
    assert state.order(names, "U", 1000, 200) == (names, 0)
    assert state.order(names, "T", 1000, 1100) == (names, 0)
    assert len(state) == 0


TESTED = """
routes:
  - name: night
    when: { time: "22:00-06:00 Europe/Berlin", expression: "level >= 3" }
    to: [ { cluster: default, topic: NIGHT } ]
  - name: day
    to: [ { cluster: default, topic: DAY } ]
tests:
  - { send: { topic: a, header: {level: "4"}, at: "2026-01-05T23:00:00+01:00" },
      expect: { topic: NIGHT } }
  - { send: { topic: a, header: {level: "2"}, at: "2026-01-05T23:00:00+01:00" },
      expect: { topic: DAY } }
  - { send: { topic: a, header: {level: "4"} }, expect: { topic: DAY } }
"""


def test_routing_tests_say_when() -> None:
    """A test without a time is outside of every window."""
    config.read(None, text=TESTED)
    with pytest.raises(ConfigError, match="topic"):
        config.read(None, text=TESTED.replace("topic: DAY } }", "topic: NIGHT } }"))


NEVER = """
routes:
  - { name: a, when: { protocol: amqp, listener: mqtt }, to: [ { cluster: default } ] }
  - { name: b, when: { operation: consume }, to: [ { cluster: default } ] }
  - { name: c, to: [ { cluster: default } ] }
acl:
  - { allow: all, topic: "a/#" }
  - { deny: publish, topic: "a/b" }
  - { allow: publish, expression: "x = 1" }
"""


def test_rules_that_never_match_are_warned_about() -> None:
    loaded = config.read(None, text=NEVER)
    found = "\n".join(warnings(loaded.config, loaded.document))
    for words in (
        "routes[0]: this rule never matches: its listeners speak mqtt",
        "routes[1]: this rule never matches: only publishes are asked about here, not consume",
        "acl[1]: this rule is never reached: acl[0] decides all of it",
        "acl[2]: this rule never matches: an ACL judges requests",
    ):
        assert words in found
