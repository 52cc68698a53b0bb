"""Which stores keep the retained value of an address."""

from collections.abc import Mapping
from typing import Final

from gateway.clusters.client import ClusterClient
from gateway.clusters.selector import rendezvous
from protocols.canonical import Head, QueueKind, QueueRef

RETAINED_QUEUE: Final = "$retained"


def keeper_of(clusters: Mapping[str, ClusterClient], cluster: ClusterClient) -> ClusterClient:
    """
    The cluster that keeps the retained values of what is sent to *cluster*.

    Apache's brokers keep none: the first of *clusters* with stores of ours, the directory's say.
    """
    for one in (cluster, *clusters.values()):
        links = one.links.values()
        if links and all(link.capabilities.is_tidegate for link in links):
            return one
    return cluster


def retained_queues(cluster: ClusterClient, tenant: str, head: Head) -> list[QueueRef]:
    """
    Where a retained publish goes, besides its topic.

    One store by the address, none that is being emptied. A value that is cleared may also be at a
    store that the address had before stores came or went: all that are up forget it.
    """
    names = cluster.open_stores(cluster.routes.brokers)
    home = rendezvous(f"{tenant}\x00{head.subject}", names)
    stores = [home]
    if head.clears_retained:
        stores += [link.broker for link in cluster.up_links() if link.broker != home]
    return [QueueRef(QueueKind.RETAINED, RETAINED_QUEUE, tenant, store=name) for name in stores]
