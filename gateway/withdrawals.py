"""
Publishes under once-keys that are not to be stored any more: their client sends them again at
another gateway, and may have ended the exchange there.

One client may be gone, or all of them: while this gateway has no lease others serve them, and the
end of an exchange waits for no gateway without one.
"""

from collections.abc import Mapping
from typing import Final

from gateway.clusters.batches import Lanes
from gateway.clusters.client import ClusterClient
from gateway.storewaits import StoreWaits
from protocols.canonical import Call
from protocols.errors import Code

WITHDRAWN: Final = "its publisher is gone"


class Withdrawals:
    """Of one gateway; a batch that is withdrawn while it is in a frame is not sent again."""

    def __init__(
        self, clusters: Mapping[str, ClusterClient], lanes: Lanes, waits: StoreWaits
    ) -> None:
        self._clusters = clusters
        self._lanes = lanes
        self._waits = waits

    def withdraw(self, call: Call, *, is_taken: bool) -> None:
        """See ``Pipeline.withdraw``."""
        if self._lanes.of(call).withdraw(is_taken=is_taken):
            self._refuse()
            self._waits.again(call)

    def lease_ended(self) -> None:
        """Also what was posted in this tick, and what comes until there is a lease again."""
        self._lanes.withdraw_all()
        self._refuse()

    def lease_joined(self) -> None:
        """Its table is read: it knows who serves whom."""
        self._lanes.is_out = False

    def _refuse(self) -> None:
        for cluster in self._clusters.values():
            for link in cluster.links.values():
                for run in link.take_withdrawn():
                    run.fail(Code.HA_NOT_AVAILABLE, WITHDRAWN)
