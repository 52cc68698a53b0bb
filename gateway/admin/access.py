"""
Who may use the admin API.

Reading is open on a developer's laptop (no users, loopback only, and only under a loopback name,
so that no web page can read it by DNS rebinding). Changing anything takes a session: the one-time
token of the console URL, or a user with the operation ``admin``.
"""

import base64
import hmac
import ipaddress
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from protocols import clock
from protocols.addresses import split_bind
from protocols.canonical import Call, Identity
from protocols.pipeline import Authenticator, Credentials, Permission

COOKIE: Final = "tidegate_session"
SESSION_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 100


class Access:
    """Sessions of one admin listener."""

    def __init__(
        self,
        listener: str,
        authenticator: Authenticator,
        permission: Permission,
        *,
        is_open: Callable[[], bool],
    ) -> None:
        """*is_open*: whether there are no users, which a reload may change."""
        self.token = secrets.token_urlsafe(24) if is_open() else ""
        """Good once, in the console URL; good as a bearer token until then."""

        self._listener = listener
        self._authenticator = authenticator
        self._permission = permission
        self._is_open = is_open
        self._sessions: dict[str, float] = {}

    def open_session(self, token: str) -> str:
        """The cookie for a right one-time token, which is spent by this; empty otherwise."""
        if (
            not self.token
            or not self._is_open()
            or not hmac.compare_digest(token.encode(), self.token.encode())
        ):
            return ""
        self.token = ""
        now = clock.monotonic()
        self._sessions = {key: end for key, end in self._sessions.items() if end > now}
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.pop(next(iter(self._sessions)))
        session = secrets.token_urlsafe(32)
        self._sessions[session] = now + SESSION_S
        return session

    def may_read(self, host: str) -> bool:
        """Without credentials: on a laptop, under a loopback name."""
        return self._is_open() and is_loopback_name(host)

    async def may_change(
        self, headers: Mapping[str, str], cookies: Mapping[str, str], peer: str
    ) -> bool:
        """By session cookie, bearer token or a user's name and password."""
        end = self._sessions.get(cookies.get(COOKIE, ""))
        if end is not None and end > clock.monotonic():
            return True
        kind, _, value = headers.get("Authorization", "").partition(" ")
        is_open = self._is_open()
        if kind.lower() == "bearer" and self.token and is_open:
            return hmac.compare_digest(value.encode(), self.token.encode())
        if kind.lower() != "basic" or is_open:
            return False
        return await self._is_admin(value, peer)

    async def _is_admin(self, encoded: str, peer: str) -> bool:
        try:
            user, separator, password = base64.b64decode(encoded).decode().partition(":")
        except ValueError:
            return False
        if not separator:
            return False
        identity = await self._authenticator.authenticate(
            Credentials(
                protocol="admin",
                listener=self._listener,
                user=user,
                password=password.encode(),
                peer=peer,
                has_credentials=True,
            )
        )
        return identity is not None and self._permission.is_allowed(
            self._call(identity, peer), "admin"
        )

    def _call(self, identity: Identity, peer: str) -> Call:
        return Call(protocol="admin", listener=self._listener, identity=identity, peer=peer)


def is_loopback_name(host: str) -> bool:
    """``localhost`` or a loopback address, as a Host header has it."""
    try:
        name = split_bind(host)[0] if ":" in host.rpartition("]")[2] else host.strip("[]")
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
