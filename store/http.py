"""HTTP of a store: ``/metrics`` and ``/healthz`` on ``store.metrics_bind``."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from protocols.daemon.pages import HttpPages, Page, Query
from store.metrics import TEXTS

PREFIX: Final = "tidegate_store_"
COUNTER_ENDING: Final = "_total"


class _Values(Collector):
    """Families made from the store's own counts at each scrape."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is read before the first scrape

    def collect(self) -> Iterable[Metric]:
        for name, value in self._read().items():
            kind = CounterMetricFamily if name.endswith(COUNTER_ENDING) else GaugeMetricFamily
            yield kind(PREFIX + name, TEXTS[name], value=value)


def http_pages(
    read: Callable[[], Mapping[str, float]], is_healthy: Callable[[], bool]
) -> HttpPages:
    """Not listening yet."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Values(read))

    def health(query: Query) -> Page:
        if is_healthy():
            return Page(b'{"status":"ok"}')
        return Page(b'{"status":"cannot write"}', status="503 Service Unavailable")

    return HttpPages(
        {
            "/metrics": lambda query: Page(generate_latest(registry), CONTENT_TYPE_LATEST),
            "/healthz": health,
        }
    )
