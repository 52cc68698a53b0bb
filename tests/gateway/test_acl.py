"""ACL rules: one ordered list for all protocols."""

import pytest

from gateway import acl as acl_module
from gateway.acl import END, FILE, OPEN, RIGHTS, Acl, Judgement
from gateway.ruleconfig import AclConfig
from gateway.rules import covers, overlaps
from protocols.canonical import Call, Identity, Right

RULES = [
    {"deny": ["all"], "identity": "dev-13"},
    {"deny": ["consume"], "topic": "telemetry/secret/#"},
    {
        "allow": ["publish"],
        "identity": "dev-*",
        "topic": "telemetry/{identity}/#",
        "protocol": "mqtt",
    },
    {"allow": ["consume"], "identity": "dev-*", "topic": "telemetry/#"},
    {
        "allow": ["publish", "consume"],
        "tenant": "acme",
        "topic": "acme.*",
        "group": "acme-*",
        "protocol": ["amqp", "cloudevents", "grpc"],
    },
    {"allow": ["consume"], "client_ip": "10.0.0.0/8", "topic": "news"},
    {"allow": ["all"], "identity": "role:admin"},
]


def call(
    name: str = "dev-7",
    protocol: str = "mqtt",
    *,
    tenant: str = "",
    roles: tuple[str, ...] = (),
    peer: str = "192.0.2.1:5000",
) -> Call:
    identity = Identity(name=name, roles=roles)
    return Call(protocol=protocol, listener=protocol, identity=identity, tenant=tenant, peer=peer)


@pytest.fixture
def acl() -> Acl:
    return Acl([AclConfig.model_validate(rule) for rule in RULES])


@pytest.mark.parametrize(
    ("who", "operation", "subject", "expected"),
    [
        (call(), "publish", "telemetry/dev-7/t", True),
        (call(), "publish", "telemetry/dev-8/t", False),
        (call(protocol="amqp"), "publish", "telemetry/dev-7/t", False),
        (call("dev-13"), "publish", "telemetry/dev-13/t", False),
        (call("dev-+"), "publish", "telemetry/dev-+/t", False),
        (call("dev-7/x"), "publish", "telemetry/dev-7/x", False),
        (call(), "subscribe", "telemetry/+/t", True),
        (call(), "consume", "telemetry/dev-1/t", True),
        (call(), "consume", "telemetry/dev-1/#", True),
        (call(), "subscribe", "telemetry/#", True),
        (call(), "subscribe", "telemetry/secret/+", False),
        (call(protocol="amqp"), "consume", "telemetry/#", False),
        (call(), "consume", "#", False),
        (call("x", roles=("admin",)), "consume", "telemetry/secret/a", False),
        (call("x", roles=("admin",)), "publish", "anything", True),
        (call("x", peer="10.1.2.3:9"), "consume", "news", True),
        (call("x", peer="[2001:db8::1]:9"), "consume", "news", False),
        (call("nobody"), "publish", "telemetry/nobody/t", False),
    ],
)
def test_the_first_matching_rule_decides(
    acl: Acl, who: Call, operation: str, subject: str, expected: bool
) -> None:
    """Order counts, names fill in without widening, an MQTT filter is denied only as a whole."""
    assert acl.is_allowed(who, operation, subject=subject) is expected


def test_topics_and_groups_of_other_protocols(acl: Acl) -> None:
    """What a request does not name need not be allowed: a publish has no group."""
    who = call("app", "grpc", tenant="acme")
    assert acl.is_allowed(who, "publish", topic="acme.orders", subject="acme.orders")
    assert acl.is_allowed(who, "consume", topic="acme.orders", group="acme-billing")
    assert not acl.is_allowed(who, "consume", topic="acme.orders", group="other")
    assert not acl.is_allowed(who, "consume", topic="orders", group="acme-billing")


def test_without_a_list_everything_is_allowed() -> None:
    """No block is no rule; an empty block denies all."""
    assert Acl(None).is_allowed(call(), "publish", subject="a")
    assert not Acl([]).is_allowed(call(), "publish", subject="a")


@pytest.mark.parametrize(
    ("pattern", "subject_filter", "is_covered", "is_met"),
    [
        ("a/#", "a/+/c", True, True),
        ("a/+", "a/#", False, True),
        ("a/+", "a/+", True, True),
        ("a/b", "a/+", False, True),
        ("a/b", "b/+", False, False),
        ("#", "$SYS/x", False, True),
        ("a/#", "a", True, True),
        ("a/b/#", "a", False, False),
        ("a/+/#", "a/b", True, True),
    ],
)
def test_filters_against_patterns(
    pattern: str, subject_filter: str, is_covered: bool, is_met: bool
) -> None:
    """Covering is for allowing, meeting for denying."""
    assert covers(pattern, subject_filter) is is_covered
    assert overlaps(pattern, subject_filter) is is_met


def test_subscribing_and_receiving_are_told_apart() -> None:
    """``consume`` is both; once a rule says ``receive`` deliveries are judged."""
    acl = Acl(
        [
            AclConfig.model_validate(rule)
            for rule in (
                {"deny": ["receive"], "topic": "t/secret"},
                {"allow": ["subscribe"], "topic": "#"},
                {"allow": ["receive"], "topic": "t/#"},
            )
        ]
    )
    assert acl.checks_receive
    assert acl.is_allowed(call(), "subscribe", subject="#")
    assert not acl.is_allowed(call(), "publish", subject="t/a")
    assert not acl.is_allowed(call(), "consume", subject="t/a")
    received = [
        acl.is_allowed(call(), "receive", subject=topic) for topic in ("t/a", "t/secret", "u")
    ]
    assert received == [True, False, False]


def test_conditions_on_qos_and_retain() -> None:
    """Of a publish, and of the QoS that a filter asks for."""
    acl = Acl(
        [
            AclConfig.model_validate(rule)
            for rule in (
                {"deny": ["publish"], "retain": True, "topic": "t/#"},
                {"allow": ["publish", "consume"], "qos": [0, 1], "topic": "t/#"},
            )
        ]
    )
    assert acl.is_allowed(call(), "publish", subject="t/a", qos=1)
    assert not acl.is_allowed(call(), "publish", subject="t/a", qos=2)
    assert not acl.is_allowed(call(), "publish", subject="t/a", qos=1, retain=True)
    assert not acl.is_allowed(call(), "subscribe", subject="t/a", qos=2)
    assert acl.is_allowed(call(), "subscribe", subject="t/a", qos=0)


@pytest.mark.parametrize(
    "pattern", ["d/{identity}/#", "d/%u/#", "d/${username}/#", "d/{certificate_name}/#",
                "d/${cert_common_name}/#", "d/%c/#", "d/${clientid}/#"]
)  # fmt: skip
def test_placeholders_of_other_brokers(pattern: str) -> None:
    """Mosquitto's and EMQX's words for the same things."""
    acl = Acl([AclConfig.model_validate({"allow": ["publish"], "topic": pattern})])
    who = Call(
        protocol="mqtt",
        listener="mqtt",
        identity=Identity(name="x7"),
        client_id="x7",
        certificate_name="x7",
    )
    assert acl.is_allowed(who, "publish", subject="d/x7/t")
    assert not acl.is_allowed(who, "publish", subject="d/x8/t")


def test_a_percent_sign_inside_a_level_is_itself() -> None:
    """``acme%updates`` is a topic of the tenant ``acme``."""
    acl = Acl([AclConfig.model_validate({"allow": ["publish"], "topic": "acme%updates"})])
    assert acl.is_allowed(call(), "publish", topic="acme%updates")


@pytest.mark.parametrize(
    ("operation", "granted"),
    [("subscribe", [False, False, False]), ("consume", [False, True, True])],
)
def test_a_denial_of_subscribe_alone_counts_at_once(operation: str, granted: list[bool]) -> None:
    """Nobody is asked at delivery: any overlap counts. `consume` is judged there."""
    denial = AclConfig.model_validate({"deny": [operation], "topic": "a/b"})
    acl = Acl([denial, AclConfig.model_validate({"allow": ["all"]})])
    asked = [acl.is_allowed(call(), "subscribe", subject=name) for name in ("a/b", "a/#", "#")]
    assert asked == granted
    assert not acl.checks_receive


def test_without_a_list_a_token_may_do_what_it_says_and_no_more() -> None:
    right = Right(is_allow=True, operations=("publish",), topic="t/#")
    who = Call(protocol="mqtt", listener="mqtt", identity=Identity(name="x", rights=(right,)))
    acl = Acl(None)
    asked = [acl.is_allowed(who, "publish", subject=name) for name in ("t/a", "u")]
    assert asked == [True, False]
    assert not acl.sees_all(who, "t/#")
    assert acl.sees_all(call(), "#")


def test_a_tokens_denials_meet_filters_and_its_permissions_cover_them() -> None:
    denied = Right(is_allow=False, operations=("subscribe",), topic="t/secret")
    allowed = Right(is_allow=True, operations=("subscribe",), topic="t/#")
    identity = Identity(name="x", rights=(denied, allowed))
    who = Call(protocol="mqtt", listener="mqtt", identity=identity)
    asked = [Acl(None).is_allowed(who, "subscribe", subject=name) for name in ("t/a", "t/#", "#")]
    assert asked == [True, False, False]


@pytest.mark.parametrize(
    ("rules", "looks"),
    [([{"allow": ["consume"]}], False), ([{"deny": ["receive"]}], True), ([], False)],
)
def test_deliveries_are_judged_where_a_rule_speaks_of_receiving(
    rules: list[object], looks: bool
) -> None:
    assert Acl([AclConfig.model_validate(rule) for rule in rules]).checks_receive is looks


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks for ever new topics: dropped whole, and as right as before."""
    monkeypatch.setattr(acl_module, "CACHE_MAX", 3)
    acl = Acl([AclConfig.model_validate({"allow": ["publish"], "topic": "t/#"})])
    sizes = []
    for number in range(5):
        assert acl.is_allowed(call(), "publish", subject=f"t/{number}")
        assert not acl.is_allowed(call(), "publish", subject=f"u/{number}")
        sizes.append(len(acl._cache))
    assert max(sizes) <= 3


@pytest.mark.parametrize(
    ("judgement", "source"),
    [
        (Judgement(True, FILE, 3), "line 3 of the ACL file"),
        (Judgement(False, FILE), "the end of the ACL file"),
        (Judgement(False, END), "the end of the list"),
        (Judgement(True, OPEN), "there is no acl"),
        (Judgement(False, RIGHTS), "the token's own rules"),
        (Judgement(True, 2, 9), "acl[2]"),
    ],
)
def test_people_are_told_who_decided(judgement: Judgement, source: str) -> None:
    assert judgement.source() == source
