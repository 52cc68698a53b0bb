"""
Clients that come again and again: two devices with one id, or one that crashes on its own data.

Counted per client id over a fixed window, in a table that forgets the oldest; off unless
``limits.flapping`` is there.
"""

from collections import OrderedDict
from typing import Final

from gateway.config import FlappingConfig

CLIENTS_MAX: Final = 100_000


class Flapping:
    """Says when a client has connected too often."""

    def __init__(self, config: FlappingConfig) -> None:
        self.config = config
        self._counts: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def connects(self, tenant: str, client_id: str, now: float) -> bool:
        """Count one more; True when it is the one too many, once per window."""
        key = (tenant, client_id)
        since, count = self._counts.pop(key, (now, 0))
        if now - since > self.config.window / 1000:
            since, count = now, 0
        self._counts[key] = (since, count + 1)
        while len(self._counts) > CLIENTS_MAX:
            self._counts.popitem(last=False)
        return count + 1 == self.config.connects + 1
