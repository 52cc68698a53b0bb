"""
Which brokers were registered when this name server last ran.

A name server that was just started lacks the topics of brokers that have not come back yet. A
gateway that starts in the same moment would take those topics for missing; told whom to expect,
it waits for them.
"""

import json
import logging
from pathlib import Path
from typing import Final

logger = logging.getLogger("tidegate.namesrv")

EXPECTED_S_MAX: Final = 120.0
"""A broker that has not come by then is not expected any more."""

Members = dict[str, str]
"""Broker name → its cluster."""


class MemberFile:
    """Remembers names over a restart. ``to_bytes`` is written by its owner, off the loop."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "members.json"
        self.version = 0
        """Rises with every change; ``saved`` is told which one is on disk."""

        self._saved_version = 0
        self._members: Members = {}
        self._expected: Members = {}
        self._started = 0.0

    def load(self, now: float) -> None:
        """Expect who was there. A file that is damaged or missing names nobody."""
        self._started = now
        try:
            members = json.loads(self.path.read_text(encoding="utf-8"))["brokers"]
            self._members = {str(name): str(cluster) for name, cluster in members.items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s names nobody: %s", self.path, error)
        self._expected = dict(self._members)

    def came(self, name: str, cluster: str) -> None:
        """It has registered."""
        self._expected.pop(name, None)
        if self._members.get(name) != cluster:
            self._members[name] = cluster
            self.version += 1

    def left(self, name: str) -> None:
        """It said goodbye: nobody needs to wait for it."""
        self._expected.pop(name, None)
        if self._members.pop(name, None) is not None:
            self.version += 1

    def expected(self, now: float, cluster: str = "") -> list[str]:
        """Who was there before the restart and has not come back, of one cluster or all."""
        if self._expected and now - self._started > EXPECTED_S_MAX:
            for name in list(self._expected):
                self.left(name)
        return sorted(
            name for name, home in self._expected.items() if not cluster or home == cluster
        )

    @property
    def is_changed(self) -> bool:
        """There is something to write."""
        return self.version != self._saved_version

    def saved(self, version: int) -> None:
        """The content of that version is on disk."""
        self._saved_version = version

    def to_bytes(self) -> bytes:
        """The file's content now."""
        return json.dumps({"brokers": self._members}, indent=1).encode()
