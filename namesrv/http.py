"""HTTP of a name server: ``/metrics``, ``/healthz``, and ``/gateways`` for who looks for one."""

import json
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from namesrv.server import NameServerHandler
from protocols import clock
from protocols.daemon.pages import HttpPages, Page, Query
from protocols.remoting.discovery import GatewayList


def http_pages(metrics: CollectorRegistry, handler: NameServerHandler) -> HttpPages:
    """Not listening yet."""

    def gateways(query: Query) -> Page:
        wishes = {name: query.get(name, "") for name in ("protocol", "zone", "topic")}
        found = handler.gateways.find(clock.monotonic(), handler.registry.routes, **wishes)
        return Page(json.dumps(gateways_as_json(found)).encode())

    return HttpPages(
        {
            "/metrics": lambda query: Page(generate_latest(metrics), CONTENT_TYPE_LATEST),
            "/healthz": lambda query: Page(b'{"status":"ok"}'),
            "/gateways": gateways,
        }
    )


def gateways_as_json(found: GatewayList) -> dict[str, Any]:
    """What ``/gateways`` answers and ``tidegate namesrv gateways --json`` is made of."""
    return {
        "gateways": [
            {
                "gateway": item.gateway,
                "zone": item.zone,
                "protocols": item.protocols,
                "listeners": [
                    {
                        "name": listener.name,
                        "protocol": listener.protocol,
                        "address": listener.address,
                        "is_tls": listener.is_tls,
                    }
                    for listener in item.listeners
                ],
                "clusters": item.clusters,
                "connection_count": item.connection_count,
                "messages_per_s": item.messages_per_s,
                "is_draining": item.is_draining,
            }
            for item in found.gateways
        ],
        "partitions": [
            {"cluster": cluster, "broker": broker, "queues": count}
            for cluster, broker, count in found.partitions
        ],
    }
