"""SCRAM against the RFCs' own exchange, and against everything that is not one."""

import base64
import hashlib
import hmac
import json

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from gateway import config as configuration
from gateway.authenticators.saslprep import saslprep
from gateway.authenticators.scram import ScramExchange, ScramUsers
from gateway.authenticators.verifiers import Verifier
from gateway.commands.users import user as user_command
from gateway.identity import Identities
from gateway.ruleconfig import UserConfig
from protocols.canonical import Identity
from protocols.exchanges import Challenge, Exchange, Proved
from protocols.pipeline import Credentials

# RFC 7677, 3
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=" + CLIENT_NONCE.encode()
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = (
    f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},"
    "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
).encode()  # fmt: skip
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

DOOR = Credentials(protocol="mqtt", listener="mqtt")
SHA256, SHA512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


def kept(method: str = SHA256, password: str = "pencil", iterations: int = 4096) -> str:
    return str(Verifier.make(method, password, SALT, iterations))


def users(*names: str, method: str = SHA256) -> ScramUsers:
    made = [UserConfig(name=name, scram=(kept(method),), roles=("r",)) for name in names]
    return ScramUsers(made)


def example(name: str = "user") -> ScramExchange:
    """With the nonce of the RFC."""
    begun = users(name).begin(SHA256, DOOR)
    assert isinstance(begun, ScramExchange)
    begun._nonce = lambda: SERVER_NONCE
    return begun


def final(method: str, password: str, first: bytes, challenge: bytes, **changed: str) -> bytes:
    """A client's last message, by RFC 5802, 3, read anew; *changed* fields lie."""
    digest = "sha256" if method == SHA256 else "sha512"
    fields = dict(item.split("=", 1) for item in challenge.decode().split(","))
    header, bare = first.decode().rsplit("n=", 1)
    bound = base64.b64encode(header.encode()).decode()
    fields |= {"c": bound} | changed
    without = f"c={fields['c']},r={fields['r']}"
    salt = base64.b64decode(fields["s"])
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", digest)
    signed = f"n={bare},{challenge.decode()},{without}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without},p={base64.b64encode(proof).decode()}".encode()


async def challenged(exchange: Exchange | None, first: bytes) -> bytes:
    assert exchange is not None
    found = await exchange.answer(first)
    assert isinstance(found, Challenge)
    return found.data


async def test_the_example_of_the_rfc() -> None:
    """To the letter, with the identity of the configuration."""
    exchange = example()
    assert await exchange.answer(b"") == Challenge(b"")
    assert await exchange.answer(CLIENT_FIRST) == Challenge(SERVER_FIRST)
    found = await exchange.answer(CLIENT_FINAL)
    assert found == Proved(Identity(name="user", roles=("r",)), SERVER_FINAL)
    assert await exchange.answer(CLIENT_FINAL) is None


@pytest.mark.parametrize("method", [SHA256, SHA512])
@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=a=2Cb=3D,"])
async def test_a_client_of_another_hand(method: str, header: str) -> None:
    """Both hashes, flags of clients that bind nothing, a name with what has to be written so."""
    first = f"{header}n=a=2Cb=3D,r=abc".encode()
    exchange = users("else", "a,b=", method=method).begin(method, DOOR)
    challenge = await challenged(exchange, first)
    assert exchange is not None
    found = await exchange.answer(final(method, "pencil", first, challenge))
    assert isinstance(found, Proved)
    assert (found.identity.name, found.data[:2]) == ("a,b=", b"v=")


async def test_wrong_passwords_and_changed_words() -> None:
    """None is told why."""
    challenge, first = SERVER_FIRST, CLIENT_FIRST
    right = final(SHA256, "pencil", first, challenge)
    assert right == CLIENT_FINAL
    for wrong in (
        final(SHA256, "pencils", first, challenge),
        final(SHA256, "pencil", first, challenge, r="another"),
        final(SHA256, "pencil", first, challenge, c="eSws"),
        right + b"=",
        right[:-4],
        right.replace(b",p=", b",m=1,p="),
        right.replace(b",p=", b",x=1,p="),
        CLIENT_FIRST,
        b"c=biws",
        b"",
        b"\xff",
        b"x" * 5000,
    ):
        exchange = example()
        await challenged(exchange, first)
        assert await exchange.answer(wrong) is None, wrong
        assert await exchange.answer(right) is None  # one attempt each


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-exporter,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=abc,m=x",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a\xc3\xa4",
        b"n,,n=us=er,r=abc",
        b"n,,n=user\x07,r=abc",
        b"n,,r=abc,n=user",
        b"n,n=user,r=abc",
        b"user",
        b"\xff\xfe",
        b"n,,n=user,r=" + b"a" * 5000,
    ],
)
async def test_no_first_message(first: bytes) -> None:
    """Channel binding, acting for others, extensions we do not know, nonsense."""
    exchange = example()
    assert await exchange.answer(first) is None
    assert await exchange.answer(CLIENT_FIRST) is None


async def test_unknown_names_cannot_be_told_from_known_ones() -> None:
    """The same salt each time, also after a restart; never the salt of another; no password."""
    asked = [b"n,,n=%s,r=abc" % name for name in (b"user", b"nobody", b"nobody", b"no-one")]
    told = [await challenged(users("user").begin(SHA256, DOOR), first) for first in asked]
    salts = [data.split(b",")[1] for data in told]
    assert salts[1] == salts[2]
    assert len({*salts}) == 3
    assert len({len(salt) for salt in salts}) == 1
    assert all(data.endswith(b",i=4096") for data in told)
    exchange = users("user").begin(SHA256, DOOR)
    challenge = await challenged(exchange, asked[1])
    assert exchange is not None
    assert await exchange.answer(final(SHA256, "pencil", asked[1], challenge)) is None


def test_methods_are_those_that_some_user_has() -> None:
    assert users("a").methods == (SHA256,)
    assert users("a").begin(SHA512, DOOR) is None
    assert users().methods == ()


@pytest.mark.parametrize(
    "text",
    [
        "pencil",
        kept().replace(SHA256, "SCRAM-SHA-1"),
        kept().replace("$4096:", "$4095:"),
        kept().replace("$4096:", "$1000001:"),
        kept().replace("W22ZaJ0SNY7soEsUEjb6gQ==", "AAAA"),
        kept().replace(SHA256, SHA512),
        kept()[:-8],
        kept() + "$",
    ],
)
def test_verifiers_that_are_none(text: str) -> None:
    with pytest.raises(ValidationError):
        UserConfig(name="user", scram=(text,))


def test_one_verifier_of_each_method() -> None:
    with pytest.raises(ValidationError, match="one verifier of each method"):
        UserConfig(name="user", scram=(kept(), kept()))


async def test_the_command_makes_what_the_file_takes() -> None:
    """From the command line to a login; without the password, which is nowhere in it."""
    arguments = ["add", "dev-7", "--role", "x", "--scram-only", "--iterations", "4096"]
    done = CliRunner().invoke(user_command, [*arguments, "--password", "caf\u00e9\u00ad"])
    assert done.exit_code == 0, done.output
    assert "password_hash" not in done.output
    assert "caf" not in done.output
    loaded = configuration.read(None, text="version: 1\nusers:\n" + done.output)
    identities = Identities(loaded.config)
    first = b"n,,n=dev-7,r=abc"
    for method in (SHA256, SHA512):
        exchange = identities.begin(method, DOOR)
        challenge = await challenged(exchange, first)
        assert exchange is not None
        found = await exchange.answer(final(method, "caf\u00e9", first, challenge))
        assert isinstance(found, Proved)
        assert found.identity == Identity(name="dev-7", roles=("x",))
    assert identities.begin("PLAIN", DOOR) is None


def test_the_command_as_json() -> None:
    done = CliRunner().invoke(user_command, ["add", "a", "--password", "b", "--scram", "--json"])
    entry = json.loads(done.output)
    assert [Verifier.parse(text).iterations for text in entry["scram"]] == [15_000, 15_000]
    assert entry["password_hash"].startswith("$argon2id$")
    refused = CliRunner().invoke(user_command, ["add", "a", "--scram-only", "--password", "\x07"])
    assert refused.exit_code == 2


# ── RFC 4013, 3 ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX")],
)
def test_texts_are_prepared(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u06271", "\u0627a\u0627", "\ue000", "\ufffd"])
def test_texts_that_nobody_may_have(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        saslprep(text)


def test_unassigned_characters_may_be_asked_for_and_not_kept() -> None:
    assert saslprep("\u0221") == "\u0221"
    with pytest.raises(ValueError, match="not assigned"):
        saslprep("\u0221", is_stored=True)


class ByVoucher:
    """A plug-in with a method of its own."""

    methods = ("X-VOUCHER",)

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        return None

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        return self

    async def answer(self, data: bytes) -> Challenge | Proved | None:
        return Proved(Identity(name=data.decode())) if data else Challenge(b"your voucher?")


async def test_a_plug_in_brings_a_method() -> None:
    """Beside those of the users; one that has none is not asked."""
    config = configuration.read(None, text="version: 1").config
    identities = Identities(config, [ByVoucher()])
    exchange = identities.begin("X-VOUCHER", DOOR)
    assert await challenged(exchange, b"") == b"your voucher?"
    assert exchange is not None
    assert await exchange.answer(b"v7") == Proved(Identity(name="v7"))
    assert identities.begin(SHA256, DOOR) is None
