"""What a gateway says about itself: gauges of its parts, and the facts name servers are told."""

from collections.abc import Mapping
from functools import partial

from gateway.clusters.client import ClusterClient
from gateway.clusters.presence import GatewayPresence
from gateway.config import GatewayConfig
from gateway.metrics import Registry
from gateway.pipeline import GatewayPipeline
from gateway.registration import Facts
from protocols import unix_sockets
from protocols.remoting.discovery import GatewayListener


def count_core(metrics: Registry, pipeline: GatewayPipeline, presence: GatewayPresence) -> None:
    """Messages and lease."""
    metrics.count_from(
        "messages_in", "Messages that producers sent.", lambda: pipeline.message_count
    )
    mirrors = pipeline.mirrors
    metrics.count_from("mirrored", "Messages handed to mirrors.", lambda: mirrors.copied_count)
    metrics.count_from(
        "mirror_dropped",
        "Messages a mirror was too slow for, or had no topic for yet.",
        lambda: mirrors.dropped_count,
    )
    metrics.gauge(
        "auto_topics",
        "Topics that publishes brought into being.",
        lambda: pipeline.learner.made_count,
    )
    metrics.gauge(
        "publishers_waiting",
        "Publishers of which something waits for a store that is away.",
        lambda: pipeline.waits.call_count,
    )
    metrics.gauge("lease_epoch", "Epoch of this gateway; 0: no lease.", lambda: presence.epoch)


def count_cluster(metrics: Registry, name: str, cluster: ClusterClient) -> None:
    """Stores, name servers and topics of one broker cluster."""
    routes, gauge = cluster.routes, partial(metrics.gauge, cluster=name)
    gauge("cluster_stores_up", "Stores that take traffic.", lambda: len(cluster.up_links()))
    gauge("cluster_stores", "Stores known.", lambda: len(routes.brokers))
    gauge("cluster_topics", "Topics known.", lambda: routes.topic_count)
    gauge("cluster_name_servers_up", "Name servers that answer.", lambda: routes.live_count)


def reached_at(config: GatewayConfig, addresses: Mapping[str, str]) -> dict[str, str]:
    """Listener → ``host:port`` that clients of other machines reach it by."""
    listeners = config.listeners
    found = {
        name: (listeners[name].advertise or address) if name in listeners else address
        for name, address in addresses.items()
    }
    return {name: item for name, item in found.items() if not item.startswith(unix_sockets.PREFIX)}


def doors(config: GatewayConfig, addresses: Mapping[str, str]) -> dict[str, GatewayListener]:
    """Listeners as the name servers are told of them."""
    reached = reached_at(config, addresses)
    return {
        name: GatewayListener(
            name=name, protocol=item.protocol, address=reached[name], is_tls=item.tls is not None
        )
        for name, item in config.listeners.items()
        if name in reached
    }


def describe(
    config: GatewayConfig,
    addresses: Mapping[str, str],
    clusters: Mapping[str, ClusterClient],
    *,
    connection_count: int,
    message_count: int,
    is_draining: bool = False,
) -> Facts:
    """What clients choose a gateway by."""
    reached = reached_at(config, addresses)
    return Facts(
        gateway=config.name,
        zone=config.zone,
        protocols=reached,
        connection_count=connection_count,
        message_count=message_count,
        listeners=list(doors(config, addresses).values()),
        clusters=[cluster.routes.broker_cluster for cluster in clusters.values()],
        is_draining=is_draining,
    )
