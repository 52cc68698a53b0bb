"""The whole schema: references, defaults, safety rules, tests in the file."""

import json
from pathlib import Path

import pytest

from gateway import checks
from gateway import config as configuration
from gateway.config import Loaded
from gateway.identity import Identities, hash_password, verify_password
from gateway.plugins import build_adapters
from protocols.canonical import Identity
from protocols.errors import ConfigError
from protocols.pipeline import Credentials


def read(text: str, *settings: str, namesrv: tuple[str, ...] = ()) -> Loaded:
    return configuration.read(
        Path("gw.yaml"), settings, namesrv=namesrv, text=text, environ={"HOME": "/"}
    )


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value.problems


def test_three_mistakes_are_three_lines() -> None:
    """A wrong reference, an unknown key and a wrong port, each with file, line and column."""
    text = """\
clusters:
  us: { namesrv: ["127.0.0.1:9876"] }
listeners:
  mqtt: { bind: "127.0.0.1:99999" }
routes:
  - name: default
    to: [ {cluster: uz} ]
throttle:
  - { name: a, publsh: 5/s, publish: 5/s }
"""
    assert problems(text) == [
        "gw.yaml:4:17 listeners.mqtt.bind: '127.0.0.1:99999' is no host:port",
        "gw.yaml:7:21 routes[0].to[0].cluster: 'uz' is no cluster (did you mean 'us'?)",
        "gw.yaml:9:16 throttle[0].publsh: unknown key (did you mean 'publish'?)",
    ]


def test_mistakes_in_included_files_name_them(tmp_path: Path) -> None:
    """``routing.yaml:4:21``, not the file that includes it."""
    (tmp_path / "gw.yaml").write_text("include: [routing.yaml]\n")
    (tmp_path / "routing.yaml").write_text("routes:\n  - name: x\n    to: [{cluster: eu}]\n")
    with pytest.raises(ConfigError, match=r"routing.yaml:3:20 routes\[0\].to\[0\].cluster: 'eu'"):
        configuration.read(tmp_path / "gw.yaml")


def test_without_a_file() -> None:
    """``--namesrvAddr`` is a cluster named default with a route default; seven listeners."""
    config = read("", namesrv=("ns:9876",)).config
    assert config.clusters["default"].namesrv == ("ns:9876",)
    assert [route.name for route in config.routes] == ["default"]
    assert list(config.listeners) == [*configuration.DEFAULT_LISTENERS]
    assert all(item.bind.startswith("127.0.0.1:") for item in config.listeners.values())


def test_settings_change_default_listeners() -> None:
    """``listeners.<name>.bind`` is there to be set, one listener to be left out."""
    loaded = read("", "listeners.mqtt.bind=127.0.0.1:0", "listeners.grpc.enabled=false")
    assert loaded.config.listeners["mqtt"].bind == "127.0.0.1:0"
    assert loaded.config.listeners["mqtt"].protocol == "mqtt"
    assert not loaded.config.listeners["grpc"].enabled


@pytest.mark.parametrize("bind", ["0.0.0.0:1883", "192.0.2.1:1883", "[::]:1883"])
def test_a_bind_beyond_loopback_wants_users(bind: str) -> None:
    """Nobody is let in from outside before there is somebody to keep out."""
    found = problems(f"listeners:\n  mqtt: {{ bind: '{bind}' }}\n")
    assert len(found) == 1
    assert found[0].startswith("gw.yaml:2:17 listeners.mqtt.bind: ")
    text = f"listeners:\n  mqtt: {{ bind: '{bind}' }}\nusers: [{{name: a}}]\n"
    assert read(text).config.users[0].name == "a"


def test_names_given_twice() -> None:
    """Names are how logs, metrics and explain say which rule."""
    text = "routes:\n" + "  - {name: a, to: [{cluster: default}]}\n" * 2
    assert problems(text) == ["gw.yaml:3:12 routes[1].name: 'a' is there twice"]


TESTED = """\
clusters:
  eu: { namesrv: "a:1;b:2" }
routes:
  - name: alarms
    when: {topic: "plants/+/alarm/#"}
    to: [{cluster: eu, topic: ALARM, key: "{2}"}]
  - { name: default, to: [{cluster: eu}] }
acl:
  - { allow: [publish], topic: "plants/#" }
tests:
  - send: {protocol: mqtt, identity: d, topic: plants/9/alarm/fire}
    expect: {route: alarms, cluster: eu, topic: ALARM, key: "9"}
  - send: {topic: other}
    expect: {denied: no acl rule matches}
"""


def test_tests_in_the_file_pass() -> None:
    """They are run whenever the file is read."""
    assert read(TESTED).config.clusters["eu"].namesrv == ("a:1", "b:2")


def test_a_failing_test_is_a_mistake() -> None:
    """With the position of the expectation that does not hold."""
    assert problems(TESTED.replace('key: "9"', 'key: "8"')) == [
        "gw.yaml:12:61 tests[0].expect.key: '8' is expected, the rules give '9'"
    ]
    allowed = TESTED.replace("fire}\n    expect: {", "fire}\n    expect: {allowed: true, ")
    assert "allowed: the request is denied" in problems(allowed.replace("publish]", "consume]"))[0]


def test_a_route_behind_a_denial_is_a_warning() -> None:
    """The rules of routing are as expected; in operation the request does not come so far."""
    loaded = read(TESTED.replace("publish]", "consume]"))
    assert checks.warnings(loaded.config, loaded.document) == [
        "warning: gw.yaml:11:11 tests[0].send: the acl denies this request before any route "
        "(no acl rule matches)"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("listeners: {admin: {bnd: x}}", "gw.yaml:1:21 listeners.admin.bnd: unknown key"),
        (
            "listeners: {mqtt: {bnd: x}}",
            "gw.yaml:1:20 listeners.mqtt.bnd: unknown key (did you mean 'bind'?)",
        ),
        ("mqtt: {xx: 1}", "gw.yaml:1:8 mqtt.xx: unknown key"),
        (
            "listeners: {mqtt: {mapping: flat}}",
            "gw.yaml:1:20 listeners.mqtt.mapping: is the same for all listeners: "
            "write it under `mqtt:`",
        ),
        ("grpc: {streams_max: x}", "gw.yaml:1:21 grpc.streams_max: 'x' is no count such as 500,"),
        ("amqp: {vhosts: 5}", "gw.yaml:1:16 amqp.vhosts: should be a list"),
        (
            "clusters: {eu: {namesrv: a:1}, p: {type: mqtt, url: amqp://h}}",
            "gw.yaml:1:35 clusters.p: 'amqp://h' is no mqtt:// URL",
        ),
        (
            "clusters: {eu: {namesrv: a:1, url: mqtt://h}}",
            "gw.yaml:1:16 clusters.eu: url and url_file are for bridge targets: type amqp or mqtt",
        ),
    ],
)
def test_a_key_in_the_wrong_place_is_named_once(text: str, problem: str) -> None:
    """Also in the blocks of protocols, which their adapters check, and in that of the admin."""
    with pytest.raises(ConfigError) as caught:
        build_adapters(read(text, namesrv=() if "namesrv" in text else ("a:1",)))
    (found,) = caught.value.problems
    assert found.startswith(problem)


def test_sizes_and_counts_are_written_with_units() -> None:
    """As everywhere in the file, also in what an adapter checks."""
    text = "mqtt: {packet_bytes_max: 64KiB, mapping: flat}\namqp: {message_bytes_max: 1MiB}\n"
    loaded = read(text, namesrv=("a:1",))
    assert build_adapters(loaded)
    assert loaded.config.mqtt.mapping == "flat"


def test_a_password_is_not_repeated() -> None:
    """What is wrong with a secret is said without it."""
    (line,) = problems("users: [{name: a, password_hash: hunter2}]")
    assert "tidegate user add" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_two_listeners_at_one_address_are_a_mistake(host: str) -> None:
    """Only one of them could open; the second is named. Port 0 is any."""
    text = f"""\
listeners:
  amqp: {{ bind: "{host}:1883" }}
  a: {{ protocol: mqtt, bind: "127.0.0.1:0" }}
  b: {{ protocol: mqtt, bind: "127.0.0.1:0" }}
users: [{{name: u}}]
"""
    assert problems(text) == [
        f"gw.yaml:2:17 listeners.amqp.bind: {host}:1883 is listener mqtt's",
    ]


def test_what_is_not_installed_or_not_there_is_named() -> None:
    """A plug-in that does not exist stops the start; certificates may lie on another machine."""
    assert problems("authenticators: [{type: jtw}]") == [
        "gw.yaml:1:18 authenticators[0]: no plug-in 'jtw' is installed (did you mean 'jwt'?)"
    ]
    loaded = read("listeners: {mqtt: {tls: {cert: /no/cert, key: /no/key}}}")
    assert checks.warnings(loaded.config, loaded.document) == [
        "warning: gw.yaml:1:32 listeners.mqtt.tls.cert: /no/cert is not there",
        "warning: gw.yaml:1:47 listeners.mqtt.tls.key: /no/key is not there",
    ]


def test_warnings_say_what_is_hardly_meant() -> None:
    """A rule that can never match, a cluster in no route, odd weights."""
    text = """\
clusters: { eu: {namesrv: "a:1"}, us: {namesrv: "b:1"} }
routes:
  - { name: all, to: [{cluster: eu}] }
  - { name: late, when: {topic: a}, to: [{cluster: eu}] }
"""
    loaded = read(text)
    assert checks.warnings(loaded.config, loaded.document) == [
        "warning: gw.yaml:4:5 routes[1]: route 'late' is never reached: 'all' takes all of it",
        "warning: gw.yaml:1:39 clusters.us: cluster 'us' is in no route",
    ]


def test_other_daemons_blocks_are_left_alone() -> None:
    """One file for all: the store checks its own block."""
    assert read("store: {anything: 1}\nnamesrv: {bind: x}\n").config.version == 1


# ── identities ──────────────────────────────────────────────────────────────────────────


def shown(
    user: str = "", password: bytes = b"", protocol: str = "mqtt", **more: object
) -> Credentials:
    return Credentials(
        protocol=protocol,
        listener=protocol,
        user=user,
        password=password,
        has_credentials=bool(user),
        **more,  # type: ignore[arg-type]
    )


async def test_a_laptop_lets_everyone_in() -> None:
    """Without users: anonymous, and guest/guest for AMQP whose clients always log in."""
    identities = Identities(read("").config)
    assert (await identities.authenticate(shown())).is_anonymous
    assert (await identities.authenticate(shown("guest", b"guest", "amqp"))).name == "guest"
    assert await identities.authenticate(shown("guest", b"wrong", "amqp")) is None
    await identities.close()


async def test_the_first_user_turns_anonymous_access_off() -> None:
    """Right password in; wrong, unknown and none out, on every protocol."""
    line = json.dumps({"name": "ada", "password_hash": hash_password("secret"), "roles": ["admin"]})
    identities = Identities(read(f"users: [{line}]\n").config)
    assert await identities.authenticate(shown("ada", b"secret")) == Identity(
        name="ada", roles=("admin",)
    )
    assert await identities.authenticate(shown("ada", b"secret")) is not None  # from the cache
    for wrong in (shown("ada", b"Secret"), shown("bob", b"secret"), shown()):
        assert await identities.authenticate(wrong) is None
    assert await identities.authenticate(shown("guest", b"guest", "amqp")) is None
    await identities.close()


async def test_signatures_are_checked_under_the_users_secret() -> None:
    """HMAC-SHA1, raw, base64 or hexadecimal."""
    identities = Identities(read("users: [{name: key, secret: s3}]\n").config)
    signature = "9dfd6fc4a90ec1cfbb9b7d5c1ba6d5d7"
    assert (
        await identities.authenticate(
            shown("key", signature.encode(), "grpc", signed=b"20260101T000000Z", digest="hmac-sha1")
        )
        is None
    )
    import base64
    import hmac

    digest = hmac.digest(b"s3", b"20260101T000000Z", "sha1")
    for form in (digest, base64.b64encode(digest), digest.hex().upper().encode()):
        found = await identities.authenticate(
            shown("key", form, "grpc", signed=b"20260101T000000Z", digest="hmac-sha1")
        )
        assert found == Identity(name="key")
    await identities.close()


def test_hashes_are_argon2() -> None:
    """What ``user add`` prints is what the login checks."""
    made = hash_password("x")
    assert made.startswith("$argon2id$")
    assert verify_password(made, b"x")
    assert not verify_password("nonsense", b"x")


def test_true_is_no_number() -> None:
    """A truth where a count, a time or a rate is wanted is a mistake, in any daemon's block."""
    text = """\
mqtt: { receive_max: true, connect_s_max: true, subscribe_denied: false }
limits: { connections_max: true }
throttle: [{ name: a, publish: true }]
"""
    assert problems(text) == [
        "gw.yaml:2:28 limits.connections_max: should be a whole number",
        "gw.yaml:3:32 throttle[0].publish: should be a number",
    ]
    text = "mqtt: { receive_max: true, connect_s_max: true, anonymous: true }\n"
    with pytest.raises(ConfigError) as caught:
        build_adapters(read(text))
    assert caught.value.problems == [
        "gw.yaml:1:43 mqtt.connect_s_max: should be a number",
        "gw.yaml:1:22 mqtt.receive_max: should be a whole number",
    ]


@pytest.mark.parametrize("value", ["0", "1", "1.0", "2", '"1"', '"yes"', '"on"', '""', "[]"])
def test_no_number_is_a_truth(value: str) -> None:
    """Nor what pydantic takes for one."""
    assert problems(f"limits: {{}}\nlisteners: {{ mqtt: {{ enabled: {value} }} }}\n") == [
        "gw.yaml:2:31 listeners.mqtt.enabled: should be true or false"
    ]


@pytest.mark.parametrize("value", ["true", "false", "True", '"true"', '"${NONE:-FALSE}"'])
def test_a_truth_may_be_text(value: str) -> None:
    """As it comes from the environment into a quoted place."""
    read(f"listeners: {{ mqtt: {{ enabled: {value} }} }}\n")


def test_a_mistake_inside_a_list_of_a_protocol_is_shown_there() -> None:
    """The line is that of the list's entry."""
    text = "mqtt:\n  rewrite:\n    - { topic: a/b, to: c }\n    - { topic: a/b }\n"
    with pytest.raises(ConfigError) as caught:
        build_adapters(read(text))
    assert caught.value.problems == ["gw.yaml:4:7 mqtt.rewrite[1].to: is missing"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("acl_file: {}\n", "gw.yaml:1:11 acl_file"),
        (
            "authenticators:\n  - {{ type: passwords, file: {} }}\n",
            "gw.yaml:2:30 authenticators[0].file",
        ),
    ],
)
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("/none/users", "/none/users cannot be read: No such file or directory"),
        ("/", "/ cannot be read: Is a directory"),
        ('"a\\0b"', "a\\x00b cannot be read: embedded null byte"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_by_its_key(
    text: str, place: str, file: str, said: str
) -> None:
    """Where the name of the file stands, and why it cannot be read; never a traceback."""
    assert problems(text.format(file)) == [f"{place}: {said}"]
