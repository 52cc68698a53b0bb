"""What a name server counts; Prometheus text on ``namesrv.metrics_bind``."""

from collections.abc import Callable
from http.server import ThreadingHTTPServer
from threading import Thread

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from protocols.driver import split_bind
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
        self._server: tuple[ThreadingHTTPServer, Thread] | None = None

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

    def listen(self, bind: str) -> str:
        """Serve ``/metrics`` from a thread of its own; the bound address."""
        host, port = split_bind(bind)
        server, thread = start_http_server(port, host, self.registry)
        self._server = (server, thread)  # type: ignore[assignment] # WSGIServer is one
        return f"{host}:{server.server_port}"

    def close(self) -> None:
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join(1.0)
            self._server = None


def _name(code: int) -> str:
    for kind in (RequestCode, PrivateCode):
        try:
            return str(kind(code).name).lower()
        except ValueError:
            continue
    return "unknown"
