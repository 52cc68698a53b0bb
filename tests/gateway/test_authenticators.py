"""Tokens, a web service, password files: who gets in, as whom, and what fails closed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gateway import config as configuration
from gateway.acl import Acl
from gateway.authenticators.http import HttpAuthenticator
from gateway.authenticators.jwt import JwtAuthenticator
from gateway.authenticators.settings import HttpAuthConfig, JwtConfig
from gateway.identity import Identities, hash_password
from gateway.ruleconfig import AclConfig
from protocols.canonical import Call, Identity
from protocols.errors import ConfigError
from protocols.pipeline import Credentials
from tests.support.patience import PATIENCE_S

SECRET = "a shared secret of thirty-two bytes"


def shown(password: str | bytes, user: str = "", **more: Any) -> Credentials:
    data = password.encode() if isinstance(password, str) else password
    return Credentials(
        protocol="mqtt",
        listener="mqtt",
        user=user,
        password=data,
        client_id="c1",
        peer="192.0.2.1:5000",
        has_credentials=True,
        **more,
    )


def token(key: Any = SECRET, algorithm: str = "HS256", kid: str = "", **claims: Any) -> str:
    body = {"sub": "dev-7", "exp": int(time.time()) + 60, **claims}
    kept = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(kept, key, algorithm=algorithm, headers={"kid": kid} if kid else None)


def by_secret(**settings: Any) -> JwtAuthenticator:
    return JwtAuthenticator(JwtConfig(type="jwt", secret=SECRET, **settings))


# ── tokens ──────────────────────────────────────────────────────────────────────────────


async def test_claims_become_the_identity() -> None:
    """Subject, roles, expiry, rights in both forms."""
    at = int(time.time()) + 60
    found = await by_secret().authenticate(
        shown(token(roles=["device", "eu"], exp=at, acl={"pub": ["t/%c"], "sub": "t/#"}))
    )
    assert found is not None
    assert (found.name, found.roles, found.expires_at_ms) == ("dev-7", ("device", "eu"), at * 1000)
    acl = Acl(None)
    call = Call(protocol="mqtt", listener="mqtt", identity=found, client_id="c1")
    assert acl.is_allowed(call, "publish", subject="t/c1")
    assert not acl.is_allowed(call, "publish", subject="t/c2")
    assert acl.is_allowed(call, "subscribe", subject="t/+")
    assert not acl.is_allowed(call, "subscribe", subject="#")


async def test_rights_come_before_the_acl_which_may_grant_more() -> None:
    """A denial in the token beats the ACL; what the token does not name is the ACL's."""
    rules = [
        {"permission": "deny", "action": "publish", "topic": "t/secret"},
        {"permission": "allow", "action": "all", "topic": "t/#"},
    ]
    found = await by_secret().authenticate(shown(token(acl=rules)))
    assert found is not None
    call = Call(protocol="mqtt", listener="mqtt", identity=found)
    acl = Acl([AclConfig.model_validate({"allow": ["publish"], "topic": ["t/#", "news"]})])
    allowed = [
        acl.is_allowed(call, "publish", subject=topic)
        for topic in ("t/secret", "t/a", "news", "elsewhere")
    ]
    assert allowed == [False, True, True, False]


@pytest.mark.parametrize(
    "bad",
    [
        token(exp=int(time.time()) - 5),
        token(exp=None),
        token(key="another secret that is long enough!"),
        token(sub=None),
        token(sub=7),
        token(roles={"a": 1}),
        token(acl=[{"permission": "perhaps", "topic": "t"}]),
        token(acl={"fly": ["t"]}),
        token(acl={"pub": ["t/#/x"]}),
        jwt.encode({"sub": "dev-7", "exp": 2**33}, None, algorithm="none"),
        "a.b.c",
        "no token",
        "",
    ],
)
async def test_bad_tokens_are_nobody(bad: str) -> None:
    assert await by_secret().authenticate(shown(bad)) is None


async def test_issuer_audience_and_user() -> None:
    """Each is wanted where it is configured."""
    strict = by_secret(issuer="https://id", audience="gateway", user_must_match=True)
    good = token(iss="https://id", aud="gateway")
    assert await strict.authenticate(shown(good)) is not None
    assert await strict.authenticate(shown(good, "dev-7")) is not None
    assert await strict.authenticate(shown(good, "dev-8")) is None
    assert await strict.authenticate(shown(token(iss="https://id", aud="x"))) is None
    assert await strict.authenticate(shown(token(aud="gateway"))) is None
    by_user = by_secret(read_from="user")
    assert await by_user.authenticate(shown("", token())) is not None


def key_set(**keys: Any) -> dict[str, Any]:
    found = []
    for kid, key in keys.items():
        maker = (
            jwt.algorithms.RSAAlgorithm
            if hasattr(key, "private_numbers") and isinstance(key, rsa.RSAPrivateKey)
            else jwt.algorithms.ECAlgorithm
        )
        item = json.loads(maker.to_jwk(key.public_key()))
        found.append({**item, "kid": kid, "use": "sig"})
    return {"keys": found}


async def test_a_key_set_file(tmp_path: Path) -> None:
    """RS and ES by key id; no key of the set is a shared secret."""
    rsa_key, ec_key = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(key_set(one=rsa_key, two=ec_key)))
    by_set = JwtAuthenticator(JwtConfig(type="jwt", jwks_file=path))
    assert await by_set.authenticate(shown(token(rsa_key, "RS256", "one"))) is not None
    assert await by_set.authenticate(shown(token(ec_key, "ES256", "two"))) is not None
    assert await by_set.authenticate(shown(token(ec_key, "ES256", "one"))) is None
    assert await by_set.authenticate(shown(token(ec_key, "ES256", "three"))) is None
    assert await by_set.authenticate(shown(token(ec_key, "ES256"))) is None
    assert await by_set.authenticate(shown(token(SECRET, "HS256", "one"))) is None


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def web_service(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def test_a_key_set_at_an_identity_provider() -> None:
    """Fetched with the first token and kept; a failed fetch leaves the keys that were known."""
    key = ec.generate_private_key(ec.SECP256R1())
    answers: list[Any] = [key_set(one=key)]
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response(answers[0], status=200 if answers[0] else 500)

    async with web_service(answer) as url:
        by_url = JwtAuthenticator(JwtConfig(type="jwt", jwks_url=url))
        both = await asyncio.gather(
            *(by_url.authenticate(shown(token(key, "ES256", "one"))) for _ in range(2))
        )
        assert all(both)
        assert len(asked) == 1
        answers[0] = None
        by_url._fetched_at -= 601
        assert await by_url.authenticate(shown(token(key, "ES256", "one"))) is not None
        assert len(asked) == 2
        for _ in range(5):  # unknown key ids: not a fetch each
            assert await by_url.authenticate(shown(token(key, "ES256", "new"))) is None
        assert len(asked) == 2


async def test_a_refresh_of_keys_holds_up_nobody() -> None:
    """Hundreds log in by a key that is known while one fetch is under way."""
    key = ec.generate_private_key(ec.SECP256R1())
    keys, asked, may_answer = key_set(one=key), [0], asyncio.Event()
    may_answer.set()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked[0] += 1
        await may_answer.wait()
        return web.json_response(keys)

    credentials = shown(token(key, "ES256", "one"))
    async with web_service(answer) as url:
        by_url = JwtAuthenticator(JwtConfig(type="jwt", jwks_url=url))
        assert await by_url.authenticate(credentials) is not None
        may_answer.clear()
        by_url._fetched_at -= 301
        found = await asyncio.gather(*(by_url.authenticate(credentials) for _ in range(200)))
        assert all(found)
        keys = key_set(new=key)
        may_answer.set()
        async with asyncio.timeout(PATIENCE_S):
            while await by_url.authenticate(credentials):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.001)
        assert asked == [2]
        await by_url.close()


async def test_a_single_key_is_rotated() -> None:
    """An unknown key id fetches the set again, also where one key was all there was."""
    old, new = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    keys = key_set(old=old)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(keys)

    async with web_service(answer) as url:
        by_url = JwtAuthenticator(JwtConfig(type="jwt", jwks_url=url))
        assert await by_url.authenticate(shown(token(old, "ES256", "old"))) is not None
        keys = key_set(new=new)
        assert await by_url.authenticate(shown(token(new, "ES256", "new"))) is None  # too soon
        by_url._fetched_at -= 11
        assert await by_url.authenticate(shown(token(new, "ES256", "new"))) is not None
        assert await by_url.authenticate(shown(token(old, "ES256", "old"))) is None


async def test_a_key_set_in_pieces_with_strange_keys() -> None:
    """However it arrives; kinds of keys that nobody knows spoil no others; too much is refused."""
    key = rsa.generate_private_key(65537, 2048)
    strange = [{"kty": "LTC", "kid": "x"}, {"kty": "EC", "crv": "P-9", "kid": "y"}, "z"]
    data = json.dumps({"keys": [*strange, *key_set(one=key)["keys"]], "pad": "x" * 300_000})
    padding = b""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(data), 50_000):
            await response.write(data[start : start + 50_000].encode())
            await asyncio.sleep(0)
        await response.write(padding)
        return response

    async with web_service(answer) as url:
        by_url = JwtAuthenticator(JwtConfig(type="jwt", jwks_url=url))
        for algorithm in ("RS256", "RS512", "PS384"):
            assert await by_url.authenticate(shown(token(key, algorithm, "one"))) is not None
        assert await by_url.authenticate(shown(token(SECRET, "HS256", "one"))) is None
        padding = b" " * (1 << 20)
        wary = JwtAuthenticator(JwtConfig(type="jwt", jwks_url=url))
        assert await wary.authenticate(shown(token(key, "RS256", "one"))) is None


@pytest.mark.parametrize("kind", ["key_file", "jwks_file"])
def test_a_file_without_keys_is_found_at_the_start(tmp_path: Path, kind: str) -> None:
    """And named."""
    path = tmp_path / "keys"
    path.write_text("nonsense")
    with pytest.raises(ConfigError, match=str(path)):
        JwtAuthenticator(JwtConfig.model_validate({"type": "jwt", kind: path}))


def test_one_source_of_keys() -> None:
    with pytest.raises(ValueError, match="one of secret"):
        JwtConfig(type="jwt")
    with pytest.raises(ValueError, match="one of secret"):
        JwtConfig(type="jwt", secret="x", jwks_url="http://id/")


# ── a web service ───────────────────────────────────────────────────────────────────────


async def test_the_service_is_asked_once_for_the_same_credentials() -> None:
    """And told who asks; its answer is the identity."""
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        if asked[-1]["password"] != "right":
            return web.Response(status=403)
        rights = [{"permission": "allow", "action": "publish", "topic": "t/${clientid}"}]
        return web.json_response({"result": "allow", "roles": ["device"], "acl": rights})

    async with web_service(answer) as url:
        by_http = HttpAuthenticator(HttpAuthConfig(type="http", url=url))
        found = await asyncio.gather(
            *(by_http.authenticate(shown("right", "dev-7")) for _ in range(5))
        )
        assert {one and (one.name, one.roles) for one in found} == {("dev-7", ("device",))}
        assert await by_http.authenticate(shown("right", "dev-7")) == found[0]
        assert len(asked) == 1
        assert asked[0]["clientid"] == "c1"
        assert asked[0]["peerhost"] == "192.0.2.1"
        assert found[0] is not None
        call = Call(protocol="mqtt", listener="mqtt", identity=found[0], client_id="c1")
        assert Acl(None).is_allowed(call, "publish", subject="t/c1")
        assert not Acl(None).is_allowed(call, "publish", subject="t/c2")
        for _ in range(3):
            assert await by_http.authenticate(shown("wrong", "dev-7")) is None
        assert len(asked) == 2  # a no is believed for a moment too
        assert by_http.recall(shown("right", "dev-7")) == found[0]
        assert by_http.recall(shown("wrong", "dev-7")) is None
        assert by_http.recall(shown("other", "dev-7")) is None
        await by_http.close()


async def test_a_certificate_names_its_client_where_there_are_no_users() -> None:
    """Without asking anybody all others are let in at once; it is no reason to forget its name."""
    identities = Identities(configuration.read(None, text="").config)
    shown_by = Credentials(protocol="mqtt", listener="mqtt", certificate_name="dev-9")
    assert identities.recall(shown_by) is None
    assert await identities.authenticate(shown_by) == Identity(name="dev-9")
    nameless = identities.recall(Credentials(protocol="mqtt", listener="mqtt"))
    assert nameless is not None
    assert nameless.is_anonymous
    await identities.close()


async def test_who_has_logged_in_is_known_for_a_while() -> None:
    """By the right password alone; a user's name does not lead to a service's answer."""
    users = f'users: [{{ name: ann, roles: [x], password_hash: "{hash_password("pw")}" }}]'
    identities = Identities(configuration.read(None, text=users).config)
    assert identities.recall(shown("pw", "ann")) is None
    found = await identities.authenticate(shown("pw", "ann"))
    assert found == Identity(name="ann", roles=("x",))
    assert identities.recall(shown("pw", "ann")) == found
    assert identities.recall(shown("pwd", "ann")) is None
    assert identities.recall(shown("pw", "bob")) is None
    assert identities.recall(Credentials(protocol="mqtt", listener="mqtt")) is None
    await identities.close()


async def test_who_asks_and_goes_leaves_the_question_to_others() -> None:
    """A connection that ends while the service is asked refuses nobody else."""
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        is_asked.set()
        await may_answer.wait()
        return web.Response(status=204)

    async with web_service(answer) as url:
        by_http = HttpAuthenticator(HttpAuthConfig(type="http", url=url, timeout="60s"))
        first, second = (
            asyncio.create_task(by_http.authenticate(shown("right", "dev-7"))) for _ in range(2)
        )
        await is_asked.wait()
        first.cancel()
        may_answer.set()
        assert await second == Identity(name="dev-7")
        await by_http.close()


async def test_what_is_not_clearly_allowed_is_refused() -> None:
    """A slow, broken, absent or strange service lets nobody in."""
    answers = {
        "error": web.Response(status=500),
        "text": web.Response(text="yes"),
        "list": web.json_response(["allow"]),
        "deny": web.json_response({"result": "deny"}),
        "empty": web.json_response({}),
        "old": web.json_response({"result": "allow", "expire_at": 1}),
        "rights": web.json_response({"result": "allow", "acl": "everything"}),
        "moved": web.Response(status=302, headers={"Location": "/"}),
        "no content": web.Response(status=204),
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        word = (await request.json())["password"]
        if word == "slow":
            await is_given_up.wait()
        return web.Response(status=204) if word in ("slow", "nameless") else answers[word]

    is_given_up = asyncio.Event()
    async with web_service(answer) as url:
        hasty = HttpAuthenticator(HttpAuthConfig(type="http", url=url, timeout="200ms"))
        assert await hasty.authenticate(shown("slow", "dev-7")) is None
        is_given_up.set()
        await hasty.close()
        by_http = HttpAuthenticator(
            HttpAuthConfig(type="http", url=url, timeout="60s", cache_denied=0)
        )
        for word in list(answers)[:-1]:
            assert await by_http.authenticate(shown(word, "dev-7")) is None, word
        assert await by_http.authenticate(shown("no content", "dev-7")) == Identity(name="dev-7")
        nameless = Identity(name="anonymous", is_anonymous=True)  # its client id is its own word
        assert await by_http.authenticate(shown("nameless")) == nameless
        await by_http.close()
    absent = HttpAuthenticator(HttpAuthConfig(type="http", url=url, timeout="200ms"))
    assert await absent.authenticate(shown("x", "dev-7")) is None
    await absent.close()


# ── together ────────────────────────────────────────────────────────────────────────────


def read(text: str) -> configuration.GatewayConfig:
    return configuration.read(None, text=text, environ={}).config


async def test_users_come_first_then_each_in_order(tmp_path: Path) -> None:
    """A password file of Mosquitto, then tokens; a certificate is known by its name."""
    from tests.gateway.test_mosquitto_files import PBKDF2

    path = tmp_path / "passwd"
    path.write_text(f"bob:{PBKDF2}\n")
    identities = Identities(
        read(
            f"""
authenticators:
  - {{ type: passwords, file: {path}, roles: device }}
  - {{ type: jwt, secret: {SECRET} }}
"""
        )
    )
    bob = await identities.authenticate(shown("secret", "bob"))
    assert bob == Identity(name="bob", roles=("device",))
    assert await identities.authenticate(shown("wrong", "bob")) is None
    by_token = await identities.authenticate(shown(token(), "bob"))
    assert by_token is not None
    assert by_token.name == "dev-7"
    by_certificate = await identities.authenticate(
        Credentials(protocol="mqtt", listener="mqtt", certificate_name="dev-9")
    )
    assert by_certificate == Identity(name="dev-9")
    assert await identities.authenticate(Credentials(protocol="mqtt", listener="mqtt")) is None
    await identities.close()


def test_mistakes_have_a_place(tmp_path: Path) -> None:
    """Each with its line; files too."""
    (tmp_path / "acl").write_text("topik x\n")
    with pytest.raises(ConfigError) as caught:
        read(
            f"""
acl_file: {tmp_path}/acl
authenticators:
  - {{ type: jwt }}
  - {{ type: http, url: "ftp://x", cash: 3 }}
"""
        )
    text = "\n".join(caught.value.problems)
    assert "4:5 authenticators[0]: one of secret" in text
    assert "authenticators[1].url" in text
    assert "authenticators[1].cash: unknown key (did you mean 'cache'?)" in text
    with pytest.raises(ConfigError, match="acl:1 'topik'"):
        read(f"acl_file: {tmp_path}/acl")
