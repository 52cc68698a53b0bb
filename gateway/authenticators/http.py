"""
A web service decides who may come in. What it does not clearly allow, in time, is refused.
"""

import asyncio
import hmac
import json
import logging
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from gateway.authenticators.reading import whole_body
from gateway.authenticators.rights import rights_of, roles_of
from gateway.authenticators.settings import HttpAuthConfig
from protocols import clock
from protocols.addresses import host_of
from protocols.canonical import Identity
from protocols.pipeline import Credentials

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger("tidegate.identity")

ANSWER_BYTES_MAX: Final = 64 << 10


class HttpAuthenticator:
    """``Authenticator`` by a POST for each new set of credentials."""

    def __init__(self, config: HttpAuthConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(config.requests_max)
        self._cache: OrderedDict[bytes, tuple[float, Identity | None]] = OrderedDict()
        self._cache_key = os.urandom(32)
        self._asking: dict[bytes, asyncio.Future[Identity | None]] = {}

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        """From the cache, or ask; the same question is under way once."""
        question = _question(credentials)
        key = hmac.digest(self._cache_key, question, "sha256")
        if (found := self._find(key)) is not None:
            return found[1]
        while (asking := self._asking.get(key)) is not None:
            await asyncio.wait([asking])
            if not asking.cancelled():
                return asking.result()
        asking = self._asking[key] = asyncio.get_running_loop().create_future()
        try:
            identity = await self._ask(question, credentials)
            asking.set_result(identity)
        finally:
            del self._asking[key]
            asking.cancel()  # who asked has gone without an answer: another one asks
        keep_ms = self._config.cache if identity is not None else self._config.cache_denied
        if keep_ms:
            self._cache[key] = (clock.monotonic() + keep_ms / 1000, identity)
            self._cache.move_to_end(key)
            while len(self._cache) > self._config.cache_max:
                self._cache.popitem(last=False)
        return identity

    def recall(self, credentials: Credentials) -> Identity | None:
        """A yes of the cache."""
        found = self._find(hmac.digest(self._cache_key, _question(credentials), "sha256"))
        return found[1] if found is not None else None

    def _find(self, key: bytes) -> tuple[float, Identity | None] | None:
        found = self._cache.get(key)
        is_good = found is not None and found[0] > clock.monotonic() and not _is_over(found[1])
        return found if is_good else None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, question: bytes, credentials: Credentials) -> Identity | None:
        import aiohttp

        try:
            async with asyncio.timeout(self._config.timeout / 1000), self._places:
                if self._session is None:
                    self._session = aiohttp.ClientSession(
                        headers={**self._config.headers, "Content-Type": "application/json"},
                        cookie_jar=aiohttp.DummyCookieJar(),
                    )
                async with self._session.post(
                    self._config.url, data=question, allow_redirects=False
                ) as answer:
                    if answer.status == 204:
                        return _identity({"result": "allow"}, credentials)
                    if answer.status != 200:
                        _complain(answer.status)
                        return None
                    data = await whole_body(answer, ANSWER_BYTES_MAX)
            return _identity(json.loads(data), credentials)
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError) as error:
            logger.error("authentication service: %r: refused", error)
            return None


def _question(credentials: Credentials) -> bytes:
    return json.dumps(
        {
            "username": credentials.user,
            "password": credentials.password.decode("utf-8", "replace"),
            "clientid": credentials.client_id,
            "peerhost": host_of(credentials.peer),
            "cert_common_name": credentials.certificate_name,
            "protocol": credentials.protocol,
            "listener": credentials.listener,
        }
    ).encode()


def _identity(answer: Any, credentials: Credentials) -> Identity | None:
    """Raises ValueError if the answer cannot be read."""
    if not isinstance(answer, dict) or answer.get("result") != "allow":
        return None
    expires = answer.get("expire_at")
    name = str(answer.get("username") or _name(credentials))
    identity = Identity(
        name=name or "anonymous",
        is_anonymous=not name,
        roles=roles_of(answer.get("roles")),
        expires_at_ms=int(float(expires) * 1000) if expires else 0,
        rights=rights_of(answer.get("acl")),
    )
    return None if _is_over(identity) else identity


def _name(credentials: Credentials) -> str:
    """Not the client id: whoever may come without a name would choose whose rights it has."""
    return credentials.user or credentials.certificate_name


def _is_over(identity: Identity | None) -> bool:
    return identity is not None and 0 < identity.expires_at_ms <= clock.wall_ms()


def _complain(status: int) -> None:
    """A no is no news; anything else is a fault of the service."""
    if status not in (401, 403):
        logger.error("authentication service: status %d: refused", status)
