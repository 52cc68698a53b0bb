"""Mosquitto's ACL and password files, as they are."""

from pathlib import Path

import pytest

from gateway.acl import Acl
from gateway.mosquitto import is_known_hash, read_acl_file, read_password_file, verify_password
from protocols.canonical import Call, Identity
from protocols.errors import ConfigError

FILE = """\
# general, for clients without a user name
topic read $SYS/#
topic news/#

user roger
topic foo/bar
topic read a topic/with spaces
topic write only/in
topic readwrite plant/#
topic deny plant/secret/#

user ann lee
topic read #

pattern write $SYS/broker/connection/%c/state
pattern readwrite dev/%u/%c/#
pattern deny dev/+/+/locked
pattern write ${username}/${clientid}/x${cert_common_name}
"""


@pytest.fixture
def acl(tmp_path: Path) -> Acl:
    path = tmp_path / "acl"
    path.write_text(FILE)
    return Acl(None, file=read_acl_file(path))


def call(name: str, client_id: str = "c1", certificate: str = "") -> Call:
    identity = Identity(name=name, is_anonymous=name == "anonymous")
    return Call(
        protocol="mqtt",
        listener="mqtt",
        identity=identity,
        client_id=client_id,
        certificate_name=certificate,
    )


@pytest.mark.parametrize(
    ("who", "operation", "topic", "expected"),
    [
        ("anonymous", "publish", "news/a", True),
        ("anonymous", "receive", "news/a", True),
        ("anonymous", "receive", "$SYS/broker/uptime", True),
        ("anonymous", "publish", "$SYS/broker/uptime", False),
        ("anonymous", "publish", "foo/bar", False),
        ("roger", "publish", "news/a", False),
        ("roger", "publish", "foo/bar", True),
        ("roger", "receive", "a topic/with spaces", True),
        ("roger", "publish", "a topic/with spaces", False),
        ("roger", "receive", "only/in", False),
        ("roger", "publish", "only/in", True),
        ("roger", "publish", "plant/a/b", True),
        ("roger", "publish", "plant/secret/b", False),
        ("roger", "receive", "plant/secret", False),
        ("ann lee", "receive", "any/thing", True),
        ("ann lee", "receive", "$SYS/broker", False),
        ("ann lee", "publish", "any/thing", False),
        ("roger", "publish", "dev/roger/c1/t", True),
        ("roger", "publish", "dev/roger/c2/t", False),
        ("roger", "publish", "dev/ann/c1/t", False),
        ("roger", "publish", "dev/roger/c1/locked", False),
        ("anonymous", "publish", "dev//c1/t", False),
        ("stranger", "publish", "$SYS/broker/connection/c1/state", True),
        ("stranger", "publish", "$SYS/broker/connection/c2/state", False),
        ("stranger", "publish", "elsewhere", False),
        ("roger", "subscribe", "plant/#", True),
        ("roger", "subscribe", "#", True),
        ("roger", "subscribe", "plant/secret/+", False),
        ("roger", "subscribe", "only/in", False),
        ("roger", "subscribe", "elsewhere/#", False),
        ("anonymous", "subscribe", "$SYS/#", True),
        ("roger", "subscribe", "$SYS/#", False),
    ],
)
def test_lines_mean_what_they_mean_to_mosquitto(
    acl: Acl, who: str, operation: str, topic: str, expected: bool
) -> None:
    """A user's own denials, then grants, then the patterns; a filter if some of it may be read."""
    assert acl.is_allowed(call(who), operation, subject=topic) is expected


@pytest.mark.parametrize(
    ("certificate", "topic", "expected"),
    [("cn", "roger/c1/xcn", True), ("cn", "roger/c1/xcm", False), ("", "roger/c1/x", False)],
)
def test_placeholders_of_rules_stand_in_a_file_too(
    acl: Acl, certificate: str, topic: str, expected: bool
) -> None:
    """A pattern that wants a name which the client has not says nothing."""
    assert acl.is_allowed(call("roger", "c1", certificate), "publish", subject=topic) is expected


def test_wildcards_in_names_turn_no_pattern(acl: Acl) -> None:
    """A client id or user name with ``+`` or ``#`` gets nothing from patterns."""
    assert not acl.is_allowed(call("roger", "+"), "publish", subject="dev/roger/c9/t")
    assert not acl.is_allowed(call("#", "c1"), "publish", subject="dev/x/c1/t")
    assert not acl.is_allowed(call("roger", "c1", "+"), "publish", subject="roger/c1/x9")


def test_deliveries_are_judged_with_a_file(acl: Acl) -> None:
    assert acl.checks_receive
    assert not Acl(()).checks_receive


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    """With file and number."""
    path = tmp_path / "acl"
    path.write_text("topic readd x\ntopik read x\npattern read a/#/b\nuser\n")
    with pytest.raises(ConfigError) as caught:
        read_acl_file(path)
    assert [line.split(" ")[0] for line in caught.value.problems] == [
        f"{path}:{number}" for number in (1, 2, 3, 4)
    ]


# Made by mosquitto_passwd 2.0.11 for the password "secret".
PBKDF2 = (
    "$7$101$PNgps7t17CmghAp3$pR5TpjRkhKVRtCS8RdLM3nAlmQZe2DPY266SCKynUrGfoQHHvzY5aMhlYhy1+FwiYGQkSJSN"
    "9hmfZj/RA87PfA=="
)
SHA512 = (
    "$6$/ZdIbZ/U1DiejYDg$tcli9qUl7tHg6YkRnD20hSHPGZzEHBecQhrV2jtGe+5dPGos1cBOLEP+13796keQz4xS+C2gURU9"
    "chyzW7rE1A=="
)


@pytest.mark.parametrize("password_hash", [PBKDF2, SHA512])
def test_hashes_of_mosquitto_passwd(password_hash: str) -> None:
    assert verify_password(password_hash, b"secret")
    assert not verify_password(password_hash, b"Secret")


def test_a_password_file(tmp_path: Path) -> None:
    """Users by name; a line without a hash we know is named."""
    path = tmp_path / "passwd"
    path.write_text(f"bob:{PBKDF2}\nann lee:{SHA512}\n")
    assert read_password_file(path) == {"bob": PBKDF2, "ann lee": SHA512}
    path.write_text(f"bob:{PBKDF2}\nplain:secret\n")
    with pytest.raises(ConfigError, match=":2 wants user:hash"):
        read_password_file(path)
    assert not is_known_hash("$7$x$y$z")
    assert not is_known_hash("$6$AAAA$AAAA")
