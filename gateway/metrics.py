"""
Counters and gauges, cheap where they are counted, Prometheus text where they are read.

A meter is one float held by its user: counting is an addition. Only a scrape builds the
families, so ``prometheus_client`` is imported with the first one.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX: Final = "tidegate_"
CHILDREN_MAX: Final = 10_000
"""Label combinations of one metric; further ones share the child ``…``, so that what clients
send can never fill memory."""

Labels = tuple[tuple[str, str], ...]


class Counter:
    """One child of a counter; ``Meter`` of the services."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount


class Registry:
    """All metrics of one process; ``Metrics`` of the services."""

    def __init__(self) -> None:
        self._counters: dict[str, tuple[str, dict[Labels, Counter]]] = {}
        self._gauges: dict[str, tuple[str, dict[Labels, Callable[[], float]]]] = {}
        self._counts: dict[str, tuple[str, Callable[[], float]]] = {}
        self._collectors: list[Callable[[], Iterable[tuple[str, str, float]]]] = []

    def counter(self, name: str, help_text: str, **labels: str) -> Counter:
        """``tidegate_<name>_total`` with these labels; hold it, do not ask per message."""
        _, children = self._counters.setdefault(name, (help_text, {}))
        key = tuple(sorted(labels.items()))
        if key not in children and len(children) >= CHILDREN_MAX:
            key = tuple((label, "…") for label, _ in key)
        return children.setdefault(key, Counter())

    def gauge(self, name: str, help_text: str, read: Callable[[], float], **labels: str) -> None:
        """``tidegate_<name>``, read when scraped; a second one of these labels replaces it."""
        _, children = self._gauges.setdefault(name, (help_text, {}))
        children[tuple(sorted(labels.items()))] = read

    def count_from(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """``tidegate_<name>_total``, read when scraped from what its owner counts anyway."""
        self._counts[name] = (help_text, read)

    def collect_from(self, collect: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        """Take (name, help, value) from *collect* at each scrape; ``_total`` is a counter's."""
        self._collectors.append(collect)

    def value(self, name: str, **labels: str) -> float:
        """What a counter stands at; 0 if it was never made."""
        _, children = self._counters.get(name, ("", {}))
        found = children.get(tuple(sorted(labels.items())))
        return 0.0 if found is None else found.value

    def expose(self) -> tuple[bytes, str]:
        """The page for Prometheus and its content type."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def collect(self) -> "Iterable[Metric]":
        """Called by ``prometheus_client`` during a scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, (help_text, counters) in self._counters.items():
            names = [label for label, _ in next(iter(counters))]
            family = CounterMetricFamily(PREFIX + name, help_text, labels=names)
            for labels, child in counters.items():
                family.add_metric([value for _, value in labels], child.value)
            yield family
        for name, (help_text, read_count) in self._counts.items():
            yield CounterMetricFamily(PREFIX + name, help_text, value=read_count())
        for name, (help_text, gauges) in self._gauges.items():
            names = [label for label, _ in next(iter(gauges))]
            gauge = GaugeMetricFamily(PREFIX + name, help_text, labels=names)
            for labels, read in gauges.items():
                gauge.add_metric([value for _, value in labels], read())
            yield gauge
        for collect in self._collectors:
            for name, help_text, value in collect():
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                yield kind(PREFIX + name, help_text, value=value)
