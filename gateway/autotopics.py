"""
The budget of topics that publishes may bring into being (``mqtt.auto_topics``).

Each is a row of the directory, so that all gateways spend from one budget and a restart does not
renew it. A gateway that asks in the same moment as another may go beyond it by one.
"""

from collections.abc import Callable, Sequence
from typing import Final

from protocols.directory import Directory, Put, Record

PREFIX: Final = "auto-topic/"


class AutoTopics:
    """Counts the rows; adds one when there is room."""

    def __init__(self, directory: Directory, limit: Callable[[], int]) -> None:
        self._directory = directory
        self._limit = limit
        self._rows: set[str] = set()
        self.refused_count = 0
        """Topics that the budget did not allow."""

        directory.watch(PREFIX, self._apply)

    def __len__(self) -> int:
        return len(self._rows)

    async def allow(self, cluster: str, topic: str) -> bool:
        """Whether this topic may be made. Raises Refused: the directory is away."""
        key = f"{PREFIX}{cluster}/{topic}"
        if key in self._rows:
            return True
        if len(self._rows) >= self._limit():
            self.refused_count += 1
            return False
        await self._directory.put([Put(key, b"1")])
        self._rows.add(key)
        return True

    def _apply(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.value is None:
                self._rows.discard(record.key)
            else:
                self._rows.add(record.key)
