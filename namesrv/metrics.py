"""What a name server counts; Prometheus text on ``namesrv.metrics_bind``."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from protocols.remoting.codes import RequestCode
from protocols.remoting.private import PrivateCode


class Metrics:
    """Children are held: ``labels`` is called once per request code."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tidegate_namesrv_requests",
            "Requests by code.",
            ["code"],
            registry=self.registry,
        )
        self._children: dict[int, Callable[[], None]] = {}
        self.refused = Counter(
            "tidegate_namesrv_registrations_refused",
            "Registrations that were refused.",
            registry=self.registry,
        )
        self.expired = Counter(
            "tidegate_namesrv_brokers_expired",
            "Brokers whose lease ended without a goodbye.",
            registry=self.registry,
        )

    def request(self, code: int) -> None:
        child = self._children.get(code)
        if child is None:
            child = self._requests.labels(_name(code)).inc
            if _name(code) != "unknown":  # a peer's inventions must not grow this table
                self._children[code] = child
        child()

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        gauge = Gauge(f"tidegate_namesrv_{name}", help_text, registry=self.registry)
        gauge.set_function(read)


def _name(code: int) -> str:
    for kind in (RequestCode, PrivateCode):
        try:
            return str(kind(code).name).lower()
        except ValueError:
            continue
    return "unknown"
