"""
JSON Web Tokens: the claims of a token that verifies are the identity.

Keys come from the configuration, a file or an identity provider. Nothing is believed of a token
before its signature, not even which family of algorithms it wants: that follows from the keys.
"""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, Final

from gateway.authenticators.reading import whole_body
from gateway.authenticators.rights import rights_of, roles_of
from gateway.authenticators.settings import JwtConfig
from protocols import clock
from protocols.canonical import Identity
from protocols.errors import ConfigError
from protocols.pipeline import Credentials
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.identity")

HMAC: Final = ("HS256", "HS384", "HS512")
SIGNATURES: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
TOKEN_BYTES_MAX: Final = 16 << 10
KEY_SET_BYTES_MAX: Final = 1 << 20
REFETCH_S: Final = 10.0
"""Between two fetches because of unknown key ids: anybody can invent those."""

STALE_FACTOR: Final = 2
"""Until its keys are so many times as old as they may be, a login does not wait for new ones."""


class JwtAuthenticator:
    """``Authenticator`` by tokens."""

    def __init__(self, config: JwtConfig) -> None:
        try:
            import jwt
        except ImportError as error:
            raise ConfigError(["authenticators: type jwt wants the extra 'jwt'"]) from error
        self._jwt = jwt
        self._config = config
        self._algorithms = [*config.algorithms] or [*_family(config)]
        self._keys: dict[str, Any] = {}
        self._fetched_at = float("-inf")
        self._lock = asyncio.Lock()
        self._tasks = Tasks("key set")
        self._load()

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        """The identity in the token; None: no token, or not a good one."""
        token = _token(self._config, credentials)
        if token.count(".") != 2 or len(token) > TOKEN_BYTES_MAX:
            return None
        try:
            claims = await self._claims(token)
            identity = self._identity(claims)
        except (self._jwt.PyJWTError, ValueError, TypeError) as error:
            logger.info("token of %s refused: %s", credentials.peer, error)
            return None
        is_other = credentials.user not in ("", token, identity.name)
        if self._config.user_must_match and is_other:
            logger.info("token of %s is another user's", credentials.peer)
            return None
        return identity

    async def close(self) -> None:
        await self._tasks.close()

    def _identity(self, claims: dict[str, Any]) -> Identity:
        config = self._config
        name = claims.get(config.identity_claim)
        if not isinstance(name, str) or not name:
            raise ValueError(f"no claim '{config.identity_claim}'")
        expires = claims.get("exp")
        return Identity(
            name=name,
            roles=roles_of(claims.get(config.roles_claim)),
            expires_at_ms=int(float(expires) * 1000) + config.leeway if expires else 0,
            rights=rights_of(claims.get(config.acl_claim)),
        )

    async def _claims(self, token: str) -> dict[str, Any]:
        """Raises PyJWTError."""
        config = self._config
        header = self._jwt.get_unverified_header(token)
        key = await self._key(str(header.get("kid", "")))
        options: Any = {"require": ["exp"] if config.needs_expiry else []}
        if not config.audience:
            options["verify_aud"] = False
        found: dict[str, Any] = self._jwt.decode(
            token,
            key,
            algorithms=self._algorithms,
            audience=[*config.audience] or None,
            issuer=config.issuer or None,
            leeway=config.leeway / 1000,
            options=options,
        )
        return found

    # ── keys ────────────────────────────────────────────────────────────────────────────

    def _load(self) -> None:
        """What can be read now. Raises ConfigError."""
        config = self._config
        try:
            if config.secret:
                self._keys[""] = config.secret
            elif config.secret_file is not None:
                self._keys[""] = config.secret_file.read_bytes().strip()
            elif config.key_file is not None:
                self._keys[""] = _public_key(config.key_file)
            elif config.jwks_file is not None:
                self._keys = self._key_set(config.jwks_file.read_bytes())
        except (OSError, ValueError, self._jwt.PyJWTError) as error:
            path = config.secret_file or config.key_file or config.jwks_file
            raise ConfigError([f"authenticators: jwt: {path}: {error}"]) from error
        if not config.jwks_url and not all(self._keys.values()):
            raise ConfigError(["authenticators: jwt: the secret is empty"])

    def _key_set(self, data: bytes) -> dict[str, Any]:
        """
        Key id to key. Raises ValueError.

        Keys of other uses are left out, and so are those of kinds we do not know, which must not
        spoil the others (RFC 7517, 5). A key that names no algorithm serves all of its kind.
        """
        read = json.loads(data)
        items = read.get("keys") if isinstance(read, dict) else None
        if not isinstance(items, list):
            raise ValueError("a key set has a list 'keys'")
        found: dict[str, Any] = {}
        for item in items:
            if not isinstance(item, dict) or item.get("use", "sig") != "sig":
                continue
            if item.get("kty") == "oct" and self._is_asymmetric:
                continue
            try:
                key = self._jwt.PyJWK(item)
            except self._jwt.PyJWTError as error:
                logger.warning("key '%s' of a key set left out: %s", item.get("kid"), error)
                continue
            found[str(item.get("kid", ""))] = key if "alg" in item else key.key
        return found

    @property
    def _is_asymmetric(self) -> bool:
        return not any(name in HMAC for name in self._algorithms)

    async def _key(self, kid: str) -> Any:
        """The key of that id; with a single key the id does not matter. Raises PyJWTError."""
        config = self._config
        if config.jwks_url:
            age_s = clock.monotonic() - self._fetched_at
            refresh_s = config.refresh / 1000
            is_unknown = self._known_key(kid) is None
            if age_s > STALE_FACTOR * refresh_s or (is_unknown and age_s > REFETCH_S):
                await self._fetch()
            elif age_s > refresh_s and not len(self._tasks):
                self._tasks.start(self._fetch(), name="refresh")
        key = self._known_key(kid)
        if key is None:
            raise self._jwt.InvalidKeyError(f"no key '{kid}'")
        return key

    def _known_key(self, kid: str) -> Any:
        key = self._keys.get(kid)
        if key is None and len(self._keys) == 1 and (not kid or "" in self._keys):
            key = next(iter(self._keys.values()))
        return key

    async def _fetch(self) -> None:
        """One fetch serves all who wait; the keys known before stay when it fails."""
        import aiohttp

        asked_at = clock.monotonic()
        async with self._lock:
            if self._fetched_at >= asked_at:
                return
            timeout = aiohttp.ClientTimeout(total=self._config.timeout / 1000)
            try:
                async with (
                    aiohttp.ClientSession(timeout=timeout) as session,
                    session.get(self._config.jwks_url) as answer,
                ):
                    answer.raise_for_status()
                    data = await whole_body(answer, KEY_SET_BYTES_MAX)
                self._keys = self._key_set(data)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                logger.error("key set %s not fetched: %r", self._config.jwks_url, error)
            finally:
                self._fetched_at = clock.monotonic()


def _family(config: JwtConfig) -> tuple[str, ...]:
    return HMAC if config.secret or config.secret_file is not None else SIGNATURES


def _token(config: JwtConfig, credentials: Credentials) -> str:
    if config.read_from == "user":
        return credentials.user
    return credentials.password.decode("ascii", "replace")


def _public_key(path: Path) -> bytes:
    """Of a PEM file with a public key or a certificate. Raises OSError, ValueError."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    data = path.read_bytes()
    is_certificate = b"BEGIN CERTIFICATE" in data
    key = (
        x509.load_pem_x509_certificate(data).public_key()
        if is_certificate
        else serialization.load_pem_public_key(data)
    )
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
