"""Who gets in and what they may do: tokens, a web service, bans, limits, ACL files."""

import asyncio
import contextlib
import queue
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import aio_pika
import aiormq
import jwt
import paho.mqtt.client as paho
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.identity import hash_password
from protocols.mqtt.packets import Reason
from tests.support.commands import output_of
from tests.support.identity_service import IdentityService, jwk
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons, wait_until

pytestmark = pytest.mark.client

CONFIG = """
clusters: {{ default: {{ namesrv: "{namesrv}" }} }}
users:
  - {{ name: root, password_hash: "{hash}" }}
  - {{ name: bob, password_hash: "{hash}" }}
  - {{ name: twin, password_hash: "{hash}" }}
  - {{ name: slow, password_hash: "{hash}" }}
authenticators:
  - {{ type: jwt, jwks_url: "{url}/keys", refresh: 1s, timeout: 2s }}
  - {{ type: http, url: "{url}/login", cache: 1h, cache_denied: 10ms, timeout: 60s }}
acl_file: {folder}/acl
acl: [{{ allow: [all], identity: root }}]
listeners:
  tight: {{ protocol: mqtt, bind: "127.0.0.1:0" }}
  acme: {{ protocol: mqtt, bind: "127.0.0.1:0", tenant: acme }}
throttle:
  - {{ name: door, per: listener, when: {{ listener: tight }}, connections: 2 }}
  - {{ name: each, per: identity, when: {{ identity: twin }}, connections: 1 }}
  - {{ name: tenant, per: tenant, when: {{ tenant: acme }}, connect_rate: 1/h, burst: 600s }}
  - {{ name: pace, per: client, when: {{ identity: slow }}, publish: 1/h, burst: 600s }}
"""
ACL = """
topic read news
pattern readwrite c/%c/#
pattern read u/%u/#
user bob
topic readwrite bob/#
topic deny bob/secret
user slow
topic readwrite slow/#
"""
OLD, NEW = (rsa.generate_private_key(65537, 2048) for _ in range(2))
TOO_MANY, TOO_FAST = Reason.QUOTA_EXCEEDED, Reason.CONNECTION_RATE_EXCEEDED
CURVE = ec.generate_private_key(ec.SECP256R1())


class Site(NamedTuple):
    """Two gateways, one store, and what they ask."""

    here: Daemon
    there: Daemon
    service: IdentityService


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Daemons() as daemons, IdentityService() as service:
        service.keys = [jwk("old", OLD), jwk("curve", CURVE)]
        namesrv = daemons.namesrv()
        daemons.store(namesrv)
        (daemons.folder / "acl").write_text(ACL)
        path = daemons.folder / "gateway.yaml"
        path.write_text(
            CONFIG.format(
                namesrv=namesrv.addresses["namesrv"],
                hash=hash_password("right"),
                url=service.url,
                folder=daemons.folder,
            )
        )
        here, there = (
            daemons.gateway("", name=name, arguments=("-c", str(path))) for name in ("gw-1", "gw-2")
        )
        yield Site(here, there, service)


class Client:
    """A paho client of MQTT 5 that connects at once; ``reason`` says how that went."""

    def __init__(
        self,
        gateway: Daemon,
        user: str = "bob",
        password: str = "right",
        client_id: str = "c",
        *,
        listener: str = "mqtt",
        source: str = "127.0.0.1",
    ) -> None:
        self.events: queue.Queue[Any] = queue.Queue()
        self.paho = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )
        events = self.events
        self.paho.on_connect = lambda _c, _d, _f, reason, _p: events.put(reason.value)
        self.paho.on_disconnect = lambda _c, _d, _f, reason, _p: events.put(reason.value)
        self.paho.on_subscribe = lambda _c, _d, _m, reasons, _p: events.put(reasons[0].value)
        self.paho.on_publish = lambda _c, _d, _m, reason, _p: events.put(reason.value)
        self.paho.on_message = lambda _c, _d, message: events.put(message.topic)
        self.paho.username_pw_set(user, password)
        self.paho.connect(*gateway.address(listener), bind_address=source)
        self.paho.loop_start()
        self.reason = self.next()

    def next(self) -> Any:
        return self.events.get(timeout=PATIENCE_S)

    def publish(self, topic: str) -> Any:
        self.paho.publish(topic, b"x", 1)
        return self.next()

    def subscribe(self, topic_filter: str) -> Any:
        self.paho.subscribe(topic_filter, 1)
        return self.next()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()
        # no cycle: the collector would find its sockets before paho's __del__ closes them
        self.paho.on_connect = self.paho.on_disconnect = self.paho.on_subscribe = None
        self.paho.on_publish = self.paho.on_message = None


def reason(*arguments: Any, **options: Any) -> int:
    """Of the CONNACK; a client that comes in leaves."""
    with Client(*arguments, **options) as client:
        return int(client.reason)


def token(key: Any, algorithm: str, kid: str, **claims: Any) -> str:
    body = {"sub": "dev-7", "exp": int(time.time()) + 600, **claims}
    return jwt.encode(body, key, algorithm=algorithm, headers={"kid": kid})


def tidegate(gateway: Daemon, *words: str, code: int = 0) -> str:
    url = f"http://{gateway.addresses['admin']}"
    return output_of(*words, "--url", url, "--user", "root:right", code=code)


def test_tokens_of_an_identity_provider(site: Site) -> None:
    """Good ones by each kind of key; none that is over, of another key, or forged."""
    good = token(OLD, "RS256", "old")
    public = OLD.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    forged = jwt.api_jws.PyJWS()
    forged._algorithms["HS256"].prepare_key = lambda key: key  # type: ignore[method-assign]
    bad = [
        token(OLD, "RS256", "old", exp=int(time.time()) - 5),
        token(NEW, "RS256", "old"),
        token(NEW, "RS256", "unknown"),
        jwt.encode({"sub": "dev-7", "exp": 2**33}, None, algorithm="none", headers={"kid": "old"}),
        forged.encode(b'{"sub":"dev-7","exp":8589934592}', public, "HS256", {"kid": "old"}),
        good[:-4] + "AAAA",
    ]
    for one in (
        good,
        token(OLD, "RS512", "old"),
        token(OLD, "PS256", "old"),
        token(CURVE, "ES256", "curve"),
    ):
        assert reason(site.here, "", one) == 0
    for one in bad:
        assert reason(site.here, "", one) in (
            Reason.BAD_USER_NAME_OR_PASSWORD,
            Reason.NOT_AUTHORIZED,
        )


def test_keys_are_rotated_and_the_provider_goes_away(site: Site) -> None:
    """The new key is found, the old one forgotten; while nobody answers, known keys are good."""
    service, new = site.service, jwk("new", NEW)
    service.keys = [new]
    wait_until(
        lambda: reason(site.there, "", token(OLD, "RS256", "old")) != 0, "the old key is forgotten"
    )
    assert reason(site.there, "", token(NEW, "RS256", "new")) == 0
    service.is_answering.clear()
    count = service.fetch_count
    wait_until(
        lambda: (
            reason(site.there, "", token(NEW, "RS256", "new")) == 0 and service.fetch_count > count
        ),
        "a login while the fetch is under way",
    )
    service.is_answering.set()
    service.keys = [new, jwk("old", OLD), jwk("curve", CURVE)]
    wait_until(lambda: reason(site.there, "", token(OLD, "RS256", "old")) == 0, "both keys")


def test_a_token_says_what_its_client_may_and_until_when(site: Site) -> None:
    """Its own rights, then those of the file; the connection ends with the token."""
    rights = {"pub": ["t/%c"], "sub": ["t/#"]}
    with Client(site.here, "", token(CURVE, "ES256", "curve", acl=rights), "c1") as client:
        assert client.publish("t/c1") == 0
        assert client.publish("t/c2") == Reason.NOT_AUTHORIZED
        assert client.publish("c/c1/x") == 0  # the file's pattern
        assert client.subscribe("t/+") == 1
        assert client.subscribe("x/#") == Reason.NOT_AUTHORIZED

    def is_ended() -> bool:
        shown = token(CURVE, "ES256", "curve", exp=int(time.time()) + 2)
        with Client(site.here, "", shown, "c2") as client:
            return client.reason == 0 and bool(client.next() == Reason.NOT_AUTHORIZED)

    wait_until(is_ended, "a connection that ends with its token, on however slow a machine")


async def test_an_amqp_connection_ends_with_its_token_unless_it_gets_another(site: Site) -> None:
    """The secret can be renewed, by the same identity's; a wrong one ends the connection."""
    url = f"amqp://{{}}@127.0.0.1:{site.here.port('amqp')}/"

    async def end_of(renewed_s: int, name: str) -> str:
        connection = await aio_pika.connect(url.format("dev-7:" + token(CURVE, "ES256", "curve")))
        assert connection.transport is not None
        closing = connection.transport.connection.closing
        another = token(CURVE, "ES256", "curve", sub=name, exp=int(time.time()) + renewed_s)
        with contextlib.suppress(aiormq.exceptions.AMQPError):
            await connection.update_secret(another)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([closing])
        return str(closing.exception())

    assert "New secret was refused" in await end_of(600, "dev-8")
    async with asyncio.timeout(PATIENCE_S):
        while "credential expired" not in await end_of(2, "dev-7"):
            pass  # it was over before it came: the machine is slow


def test_a_web_service_is_asked_once(site: Site) -> None:
    """Each gateway remembers a yes; while the service is away, only who it knows comes in."""
    service = site.service
    service.judge = lambda question: (
        {"result": "allow", "acl": {"pub": "w/${clientid}"}}
        if question["password"] == "please"
        else {"result": "deny"}
    )
    for _ in range(3):
        with Client(site.here, "web", "please", "w1") as client:
            assert client.publish("w/w1") == 0
            assert client.publish("w/w2") == Reason.NOT_AUTHORIZED
    asked = [question for question in service.questions if question["username"] == "web"]
    assert [(one["clientid"], one["peerhost"]) for one in asked] == [("w1", "127.0.0.1")]
    service.status = 500
    assert reason(site.here, "web", "please", "w1") == 0
    assert reason(site.there, "web", "please", "w1") != 0
    service.status = 200
    wait_until(lambda: reason(site.there, "web", "please", "w1") == 0, "the service is back")


def test_patterns_of_an_acl_file(site: Site) -> None:
    """%c and %u, a user's own lines and a denial; ``news`` is for the nameless."""
    with Client(site.here, client_id="c9") as client:
        codes = [client.publish(topic) for topic in ("c/c9/x", "c/c8/x", "bob/1", "bob/secret")]
        assert [code in (0, 16) for code in codes] == [True, False, True, False]
        filters = ("c/c9/#", "u/bob/+", "u/ann/+", "bob/#", "news", "olds")
        granted = [client.subscribe(one) == 1 for one in filters]
        assert granted == [True, True, False, True, False, False]
    with Client(site.here, client_id="+") as client:
        assert client.publish("c/c9/x") == Reason.NOT_AUTHORIZED


def test_bans_by_user_and_range_outlive_the_gateways(site: Site) -> None:
    """At all gateways, also those that start later; a kick takes no ban away; they end in time."""
    with Client(site.there, "twin", source="127.0.3.7") as client:
        assert client.reason == 0
        tidegate(site.here, "ban", "add", "ip", "127.0.3.0/24", "--reason", "range")
        assert client.next() == Reason.ADMINISTRATIVE_ACTION
    tidegate(site.here, "ban", "add", "user", "bob", "--for", "1h")
    tidegate(site.here, "ban", "add", "client", "gone")
    tidegate(site.here, "client", "kick", "gone")
    site.there.stop()
    site.there.restart()
    for gateway in (site.here, site.there):
        assert reason(gateway, "twin", source="127.0.3.7") == Reason.BANNED
        assert reason(gateway, "twin", source="127.0.4.7") == 0
        assert reason(gateway, "bob") == Reason.BANNED
        assert reason(gateway, "twin", client_id="gone") == Reason.BANNED
    tidegate(site.there, "ban", "remove", "ip", "127.0.3.9/24")
    tidegate(site.there, "ban", "remove", "client", "gone")
    tidegate(site.there, "ban", "add", "user", "bob", "--for", "1s")
    wait_until(lambda: reason(site.here, "bob") == 0, "the end of a ban")
    assert reason(site.here, "twin", source="127.0.3.7") == 0


def test_limits_at_the_door_and_behind_it(site: Site) -> None:
    """Of a listener, an identity, a tenant: refused as such; of a client's rate: told in PUBACK."""
    here = site.here
    with (
        Client(here, client_id="1", listener="tight"),
        Client(here, client_id="2", listener="tight"),
    ):
        assert reason(here, client_id="3", listener="tight") == TOO_MANY
        assert reason(here, client_id="4") == 0
    wait_until(lambda: reason(here, client_id="3", listener="tight") == 0, "a free place")
    with Client(here, "twin", client_id="t1"):
        assert reason(here, "twin", client_id="t2") == TOO_MANY
    with Client(here, client_id="a1", listener="acme") as first:
        codes = {first.reason, reason(here, client_id="a2", listener="acme")}
        assert codes == {0, TOO_FAST}
    with Client(here, "slow", client_id="s1") as client:
        codes = [client.publish("slow/x") for _ in range(2)]
        assert codes[0] in (0, 16)
        assert codes[1] == Reason.QUOTA_EXCEEDED
