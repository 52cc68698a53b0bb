"""What a protocol plug-in implements; built-in protocols come in by the same door."""

from collections.abc import Mapping
from typing import Any, Protocol, Self, runtime_checkable

from protocols.pipeline import Services

ENTRY_POINT_GROUP = "gateway.protocols"
"""``name = "package.module:AdapterClass"``; *name* is the ``protocol`` of a listener."""


class ProtocolAdapter(Protocol):
    """
    One listener of one protocol.

    The model of its keys, if it has one, may stand in the class as ``SETTINGS``: conf/README.md
    shows those of the built-in protocols.
    """

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        """
        Build from one entry of ``listeners:`` (merged over the protocol's own section).

        *name* is the listener's; *section* has at least ``bind`` (``host:port``). Raises
        ConfigError naming the key; opens nothing.
        """
        ...

    async def serve(self, services: Services) -> None:
        """
        Listen, call ``services.listening``, serve until cancelled.

        When cancelled: stop accepting, answer what is in flight, tell the clients in the
        protocol's own words, return.
        """
        ...


@runtime_checkable
class Refreshable(Protocol):
    """An adapter that reads files beside its section, certificates say."""

    def refresh(self) -> None:
        """Called at each reload that left its section as it was: look at the files again."""
        ...
