"""
Who a client is: users of the file (argon2), signatures, certificates, plug-ins, anonymous.

Without users and plug-ins the listeners are on loopback (the configuration sees to it) and
anonymous access is open; AMQP, whose clients always log in, takes ``guest``/``guest``.

argon2 costs some 0.1 to 0.3 s of CPU on purpose: it runs in a bounded pool, its outcome is
cached under a keyed hash for a while, and an unknown user costs the same as a wrong password.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from typing import Final, Protocol, runtime_checkable

from gateway import mosquitto
from gateway.authenticators.scram import ScramUsers
from gateway.authenticators.settings import (
    ENTRY_POINT_GROUP,
    HttpAuthConfig,
    JwtConfig,
    PasswordFileConfig,
    PluginConfig,
)
from gateway.checks import has_users
from gateway.config import GatewayConfig
from gateway.ruleconfig import UserConfig
from protocols import clock
from protocols.canonical import Identity
from protocols.errors import ConfigError
from protocols.exchanges import BringsMethods, Exchange
from protocols.pipeline import Authenticator, Credentials

logger = logging.getLogger("tidegate.identity")

HASHING_THREADS: Final = 2
HASHING_WAITING_MAX: Final = 1000
"""Logins waiting for a hash; more are refused, so that a storm cannot grow without bound."""

CACHE_S: Final = 300.0
"""How long a verified pair of user and password is believed."""

CACHE_MAX: Final = 100_000
GUEST: Final = ("guest", b"guest")
ANONYMOUS: Final = Identity(name="anonymous", is_anonymous=True)


@runtime_checkable
class _Closing(Protocol):
    """A plug-in that holds something open."""

    async def close(self) -> None: ...


@runtime_checkable
class _Recalling(Protocol):
    """A plug-in that keeps answers."""

    def recall(self, credentials: Credentials) -> Identity | None: ...


class Identities:
    """``Authenticator`` of the services, made anew by each reload."""

    def __init__(
        self, config: GatewayConfig, plugins: Sequence[Authenticator] | None = None
    ) -> None:
        self._is_open = not has_users(config)
        self._users = {**_users_of_files(config), **{user.name: user for user in config.users}}
        self._plugins = load_plugins(config) if plugins is None else tuple(plugins)
        self._bringing: tuple[BringsMethods, ...] = (
            ScramUsers(self._users.values()),
            *(plugin for plugin in self._plugins if isinstance(plugin, BringsMethods)),
        )
        self._cache: dict[bytes, float] = {}
        self._cache_key = os.urandom(32)
        self._pool: ThreadPoolExecutor | None = None
        self._waiting_count = 0

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        """The identity, or None: refuse the connection."""
        is_known = credentials.user in self._users
        if is_known and (found := await self._from_users(credentials)) is not None:
            return found
        for plugin in self._plugins:
            found = await plugin.authenticate(credentials)
            if found is not None:
                return found
        if not is_known and (found := await self._from_users(credentials)) is not None:
            return found  # a certificate; or nobody, found out as slowly as a wrong password
        return self._anonymous(credentials) if self._is_open else None

    def recall(self, credentials: Credentials) -> Identity | None:
        """What an earlier login left in a cache; the same as ``authenticate`` would say."""
        user = self._users.get(credentials.user)
        if user is not None and credentials.has_credentials and not credentials.digest:
            key = self._cache_key_of(user, credentials.password)
            if self._cache.get(key, 0.0) > clock.monotonic():
                return Identity(name=user.name, roles=user.roles)
            return None
        for plugin in self._plugins[:1]:
            if user is None and isinstance(plugin, _Recalling):
                return plugin.recall(credentials)
        if not self._is_open or credentials.certificate_name:
            return None  # a certificate is no cache's to judge
        return self._anonymous(credentials)

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        """An exchange with the first that has the method: users, then plug-ins in their order."""
        for one in self._bringing:
            if method in one.methods and (found := one.begin(method, credentials)) is not None:
                return found
        return None

    async def close(self) -> None:
        for plugin in self._plugins:
            if isinstance(plugin, _Closing):
                await plugin.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _anonymous(self, credentials: Credentials) -> Identity | None:
        """On a developer's laptop everyone is let in; a name given is kept for the logs."""
        if credentials.protocol == "amqp" and credentials.has_credentials:
            is_guest = (credentials.user, credentials.password) == GUEST
            return Identity(name="guest", is_anonymous=True) if is_guest else None
        if credentials.user:
            return Identity(name=credentials.user, is_anonymous=True)
        return ANONYMOUS

    async def _from_users(self, credentials: Credentials) -> Identity | None:
        if credentials.certificate_name and not credentials.has_credentials:
            user = self._users.get(credentials.certificate_name)
            roles = user.roles if user else ()
            return Identity(name=credentials.certificate_name, roles=roles)
        if not credentials.has_credentials or not self._users:
            return None
        user = self._users.get(credentials.user)
        if credentials.digest:
            is_known = user is not None and is_signed(user, credentials)
        else:
            is_known = await self._has_password(user, credentials.password)
        if user is None or not is_known:
            return None
        return Identity(name=user.name, roles=user.roles)

    def _cache_key_of(self, user: UserConfig | None, password: bytes) -> bytes:
        name = user.name.encode() if user is not None else b""
        return hmac.digest(self._cache_key, len(name).to_bytes(4) + name + password, "sha256")

    async def _has_password(self, user: UserConfig | None, password: bytes) -> bool:
        if user is not None and not user.password_hash:
            user = None
        key = self._cache_key_of(user, password)
        now = clock.monotonic()
        if user is not None and self._cache.get(key, 0.0) > now:
            return True
        if self._waiting_count >= HASHING_WAITING_MAX:
            logger.warning("too many logins wait for their password hash: refused")
            return False
        if self._pool is None:
            self._pool = ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="argon2")
        self._waiting_count += 1
        try:
            expected = user.password_hash if user is not None else _dummy_hash(self._users)
            is_right = await asyncio.get_running_loop().run_in_executor(
                self._pool, verify_password, expected, password
            )
        finally:
            self._waiting_count -= 1
        if user is None or not is_right:
            return False
        if len(self._cache) >= CACHE_MAX:
            self._cache.clear()
        self._cache[key] = now + CACHE_S
        return True


def is_signed(user: UserConfig, credentials: Credentials) -> bool:
    """
    Whether the signature is HMAC-SHA1 of the signed bytes under the user's secret.

    Remoting clients send it in base64, gRPC clients in hexadecimal (RocketMQ's ``AclUtils`` and
    the v2 clients' ``SignatureSigner``).
    """
    if credentials.digest != "hmac-sha1" or not user.secret:
        return False
    digest = hmac.digest(user.secret.encode(), credentials.signed, hashlib.sha1)
    given = credentials.password
    return any(
        [
            hmac.compare_digest(given, digest),
            hmac.compare_digest(given, base64.b64encode(digest)),
            hmac.compare_digest(given.lower(), digest.hex().encode()),
        ]
    )


def hash_password(password: str) -> str:
    """The line for ``password_hash``; argon2id as RFC 9106 advises for low memory."""
    import argon2

    return argon2.PasswordHasher().hash(password)


def verify_password(password_hash: str, password: bytes) -> bool:
    """Slow on purpose; call it off the event loop."""
    if not password_hash.startswith("$argon2"):
        return mosquitto.verify_password(password_hash, password)
    import argon2

    try:
        return argon2.PasswordHasher().verify(password_hash, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False


def _dummy_hash(users: dict[str, UserConfig]) -> str:
    """A hash that costs what the users' do, so that time does not tell which names exist."""
    for user in users.values():
        if user.password_hash:
            return user.password_hash
    return ""


def load_plugins(config: GatewayConfig) -> tuple[Authenticator, ...]:
    """The authenticators that the file names. Raises ConfigError for one not installed."""
    plugins: list[Authenticator] = []
    for entry in config.authenticators:
        if isinstance(entry, JwtConfig):
            from gateway.authenticators.jwt import JwtAuthenticator

            plugins.append(JwtAuthenticator(entry))
        elif isinstance(entry, HttpAuthConfig):
            from gateway.authenticators.http import HttpAuthenticator

            plugins.append(HttpAuthenticator(entry))
        elif not isinstance(entry, PasswordFileConfig):
            plugins.append(_plugin(entry))
    return tuple(plugins)


def _plugin(entry: str | PluginConfig) -> Authenticator:
    name = entry if isinstance(entry, str) else entry.type
    points = [*entry_points(group=ENTRY_POINT_GROUP, name=name)]
    if not points:
        raise ConfigError([f"authenticators: no plug-in '{name}' is installed"])
    kind = points[0].load()
    settings = {} if isinstance(entry, str) else entry.settings
    made: Authenticator
    if hasattr(kind, "from_config"):
        made = kind.from_config(settings)
    elif settings:
        raise ConfigError([f"authenticators: plug-in '{name}' takes no settings"])
    else:
        made = kind()
    return made


def _users_of_files(config: GatewayConfig) -> dict[str, UserConfig]:
    """Users of password files. Raises ConfigError."""
    return {
        name: UserConfig(name=name, password_hash=password_hash, roles=entry.roles)
        for entry in config.authenticators
        if isinstance(entry, PasswordFileConfig)
        for name, password_hash in mosquitto.read_password_file(entry.file).items()
    }
