"""
Logins of several steps: challenge and response, as SASL has them (RFC 4422).

A method is known by its SASL name. Adapters whose protocol can carry such an exchange begin it at
``Services.authenticator``; who can bring methods is an ``Authenticator`` plug-in that has them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from protocols.canonical import Identity

if TYPE_CHECKING:
    from protocols.pipeline import Credentials


class Challenge(NamedTuple):
    """More is wanted of the client."""

    data: bytes
    """May be empty: then the client was asked to begin."""


class Proved(NamedTuple):
    """The client is who it says."""

    identity: Identity
    data: bytes = b""
    """The server's own proof, where the method has one."""


class Exchange(Protocol):
    """One login by one method. It is dropped when the client goes, at any step."""

    async def answer(self, data: bytes) -> Challenge | Proved | None:
        """
        What follows from the client's next words; None: refused, and nothing more is asked.

        *data* of the first call is what came with the login, empty if nothing did.
        """
        ...


@runtime_checkable
class BringsMethods(Protocol):
    """An authenticator that knows methods, beside what it says to a name and a password."""

    @property
    def methods(self) -> Sequence[str]:
        """SASL names, such as ``SCRAM-SHA-256``."""
        ...

    def begin(self, method: str, credentials: "Credentials") -> Exchange | None:
        """A new exchange; None: not by this method. *credentials* is what is known of the door."""
        ...
