"""
The key-value table of a name server (``kvConfig.json``): small, rare, durable.

Written whole at each change (``files``).
"""

import json
from pathlib import Path
from typing import Final

from namesrv.files import write_whole
from protocols.errors import Code, ConfigError, Refused

ENTRIES_MAX: Final = 100_000
"""Keys over all namespaces; more are refused."""

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""Namespace that holds ``broker-a:4;broker-b:4`` per ordered topic."""

Table = dict[str, dict[str, str]]


class KvTable:
    """Namespace → key → value, kept in one file. ``save`` blocks: call it off the loop."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "kvConfig.json"
        self._table: Table = {}

    def load(self) -> None:
        """Read the file if there is one. Raises ConfigError if it is damaged."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        try:
            table = json.loads(text)["configTable"]
            self._table = {
                str(name): {str(key): str(value) for key, value in entries.items()}
                for name, entries in table.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError([f"{self._path}: no key-value table: {error}"]) from error

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def entries(self, namespace: str) -> dict[str, str] | None:
        """All of one namespace; None if it has none."""
        return self._table.get(namespace)

    @property
    def count(self) -> int:
        """Keys over all namespaces."""
        return sum(map(len, self._table.values()))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raises Refused when the table is full."""
        if self.get(namespace, key) is None and self.count >= ENTRIES_MAX:
            raise Refused(Code.TOO_MANY_REQUESTS, namespace, f"more than {ENTRIES_MAX} keys")
        self._table.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        entries = self._table.get(namespace, {})
        entries.pop(key, None)
        if not entries:
            self._table.pop(namespace, None)

    def to_bytes(self) -> bytes:
        """The file's content now."""
        return json.dumps({"configTable": self._table}, indent=1).encode()

    def save(self, content: bytes) -> None:
        """Make *content* the file, durably. Raises OSError."""
        write_whole(self._path, content)
