"""
SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677), the server's side: no socket, no clock.

The password never comes here. Nobody learns which names exist: who is unknown gets a salt that
is always the same for the name, the iterations that others have, and is refused at the end.
Without channel binding: MQTT 5 names none, and a client that insists on it is refused.
"""

import base64
import hashlib
import hmac
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gateway.authenticators.saslprep import saslprep
from gateway.authenticators.verifiers import DIGESTS, ITERATIONS, SALT_BYTES, Verifier
from gateway.ruleconfig import UserConfig
from protocols.canonical import Identity
from protocols.exchanges import Challenge, Exchange, Proved
from protocols.pipeline import Credentials

NONCE_BYTES: Final = 18
"""24 characters: as the examples of RFC 5802."""

MESSAGE_BYTES_MAX: Final = 4096
"""Of one of the client's messages: a name of 128 characters, a nonce, and much room."""

PRINTABLE: Final = frozenset(chr(code) for code in range(0x21, 0x7F)) - {","}
"""Of nonces (RFC 5802, 7)."""


class _First(NamedTuple):
    """client-first-message, taken apart."""

    header: str
    """``gs2-header``: comes back in the last message, so that nobody has changed it."""

    bare: str
    name: str
    nonce: str


class ScramUsers:
    """``BringsMethods``: users with verifiers."""

    def __init__(self, users: Iterable[UserConfig]) -> None:
        self._tables: dict[str, _Table] = {}
        found: dict[str, dict[str, tuple[Verifier, Identity]]] = {}
        for user in users:
            for text in user.scram:
                verifier = Verifier.parse(text)
                identity = Identity(name=user.name, roles=user.roles)
                found.setdefault(verifier.method, {})[_prepared(user.name)] = verifier, identity
        self._tables = {method: _Table(method, entries) for method, entries in found.items()}

    @property
    def methods(self) -> Sequence[str]:
        return tuple(self._tables)

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        table = self._tables.get(method)
        return ScramExchange(table) if table is not None else None


class _Table:
    """The users of one method, and what those who are none are told."""

    def __init__(self, method: str, entries: Mapping[str, tuple[Verifier, Identity]]) -> None:
        verifiers = [verifier for verifier, _ in entries.values()]
        self._entries = entries
        self._method, self.digest = method, DIGESTS[method]
        # The first user's key, which nobody else knows: the same at each gateway of these users
        # and after a restart, else an unknown name would be known by a salt that changes.
        self._secret = verifiers[0].server_key if verifiers else os.urandom(32)
        self._iterations = _commonest([verifier.iterations for verifier in verifiers], ITERATIONS)
        self._salt_bytes = _commonest([len(one.salt) for one in verifiers], SALT_BYTES)

    def find(self, name: str) -> tuple[Verifier, Identity | None]:
        """What is known of *name*; with None: nothing, and the verifier fits no proof."""
        decoy = self._decoy(name)  # made for those who are known, too: it takes time
        found = self._entries.get(name)
        return found if found is not None else (decoy, None)

    def _decoy(self, name: str) -> Verifier:
        def derived(label: str) -> bytes:
            return hmac.digest(self._secret, f"decoy {label} {name}".encode(), "sha512")

        size = hashlib.new(self.digest).digest_size
        salt = derived("salt")[: self._salt_bytes]
        keys = derived("stored")[:size], derived("server")[:size]
        return Verifier(self._method, self._iterations, salt, *keys)


class ScramExchange:
    """``Exchange``: the client's first message, its last one, nothing more."""

    def __init__(self, table: _Table, nonce: Callable[[], str] | None = None) -> None:
        self._table = table
        self._nonce = nonce or new_nonce
        self._first: _First | None = None
        self._server_first = ""
        self._verifier: Verifier | None = None
        self._identity: Identity | None = None
        self._is_over = False

    async def answer(self, data: bytes) -> Challenge | Proved | None:
        """Of *data* that is no such message: None, as of a wrong proof."""
        if self._is_over:
            return None
        if not data and self._first is None:
            return Challenge(b"")  # RFC 4422, 3: the client begins, if not with its login
        try:
            text = data.decode() if len(data) <= MESSAGE_BYTES_MAX else ""
            if self._first is None:
                return self._begin(text)
            self._is_over = True
            return self._end(self._first, text)
        except ValueError:
            self._is_over = True
            return None

    def _begin(self, text: str) -> Challenge:
        """Raises ValueError."""
        first = self._first = _parse_first(text)
        verifier, self._identity = self._table.find(first.name)
        self._verifier = verifier
        salt = base64.b64encode(verifier.salt).decode()
        self._server_first = f"r={first.nonce}{self._nonce()},s={salt},i={verifier.iterations}"
        return Challenge(self._server_first.encode())

    def _end(self, first: _First, text: str) -> Proved | None:
        """Raises ValueError."""
        without_proof, separator, proof_text = text.rpartition(",p=")
        if not separator:
            raise ValueError("no proof")
        proof = base64.b64decode(proof_text, validate=True)
        fields = without_proof.split(",")
        header = base64.b64encode(first.header.encode()).decode()
        wanted = ["c=" + header, self._server_first.partition(",")[0]]
        is_same = hmac.compare_digest(
            "\0".join(fields[:2]).encode(), "\0".join(wanted).encode()
        ) and _are_extensions(fields[2:])
        verifier, digest = self._verifier, self._table.digest
        assert verifier is not None
        message = f"{first.bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(verifier.stored_key, message, digest)
        if len(proof) != len(signature):
            raise ValueError("a proof of another size")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        stored_key = hashlib.new(digest, client_key).digest()
        is_right = hmac.compare_digest(stored_key, verifier.stored_key)
        server_signature = hmac.digest(verifier.server_key, message, digest)
        if not (is_right and is_same) or self._identity is None:
            return None
        return Proved(self._identity, b"v=" + base64.b64encode(server_signature))


def new_nonce() -> str:
    return base64.b64encode(os.urandom(NONCE_BYTES)).decode()


def _parse_first(text: str) -> _First:
    """Raises ValueError."""
    binding, authorization, bare = text.split(",", 2)
    # 'p=…': it wants the channel bound, which no name without -PLUS does (RFC 5802, 6).
    # 'y': it could, and thinks that we cannot. It is right.
    if binding not in ("n", "y"):
        raise ValueError("channel binding is not supported")
    name_field, nonce_field, *extensions = bare.split(",")
    if not name_field.startswith("n=") or not nonce_field.startswith("r="):
        raise ValueError("no name, or no nonce")  # 'm=' in front: an extension we must know
    name, nonce = _sasl_name(name_field[2:]), nonce_field[2:]
    if not nonce or not PRINTABLE.issuperset(nonce) or not _are_extensions(extensions):
        raise ValueError("no nonce")
    if authorization and (authorization[:2] != "a=" or _sasl_name(authorization[2:]) != name):
        raise ValueError("nobody acts for another")
    return _First(f"{binding},{authorization},", bare, name, nonce)


def _are_extensions(fields: Sequence[str]) -> bool:
    """Which may be ignored, all but ``m`` (RFC 5802, 5.1)."""
    return all(
        len(field) > 2 and field[0].isascii() and field[0].isalpha() and field[0] != "m"
        and field[1] == "=" for field in fields
    )  # fmt: skip


def _sasl_name(text: str) -> str:
    """``saslname``, decoded and prepared. Raises ValueError."""
    pieces = text.split("=")
    name = pieces[0]
    for piece in pieces[1:]:
        if piece[:2] not in ("2C", "3D"):
            raise ValueError("'=' in a name is =3D, ',' is =2C")
        name += ("," if piece[:2] == "2C" else "=") + piece[2:]
    if not name:
        raise ValueError("no name")
    return saslprep(name)


def _prepared(name: str) -> str:
    """Of the configuration: a name that cannot be prepared is met by nobody."""
    try:
        return saslprep(name)
    except ValueError:
        return name


def _commonest(values: Sequence[int], default: int) -> int:
    return Counter(values).most_common(1)[0][0] if values else default
