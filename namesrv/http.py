"""
HTTP of a name server: ``/metrics``, ``/healthz``, and ``/gateways`` for clients that look for one.

A thread of its own on the standard library; what it tells of the registry is computed on the
name server's loop.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import TimeoutError as WaitTimeout
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from namesrv.server import NameServerHandler
from protocols import clock
from protocols.driver import split_bind
from protocols.remoting.discovery import GatewayList

REQUEST_S_MAX: Final = 5.0

Start = Callable[[str, list[tuple[str, str]]], object]


class HttpServer:
    """Serves until ``close``."""

    def __init__(self, metrics: CollectorRegistry, handler: NameServerHandler) -> None:
        self.address = ""
        self._metrics = metrics
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def listen(self, bind: str) -> str:
        """The bound ``host:port``. Raises OSError."""
        host, port = split_bind(bind)
        server = make_server(host, port, self._answer, _Server, _Requests)
        self.address = f"{host}:{server.server_port}"
        self._server = server
        self._thread = Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        return self.address

    def close(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(1.0)
            self._server = None

    # ── answers, in the server's threads ────────────────────────────────────────────────

    def _answer(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        status, kind, body = "200 OK", "application/json", b""
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b'{"error":"GET only"}'
        elif path == "/metrics":
            kind, body = CONTENT_TYPE_LATEST, generate_latest(self._metrics)
        elif path == "/healthz":
            body = b'{"status":"ok"}'
        elif path == "/gateways":
            status, body = self._gateways(parse_qs(environ.get("QUERY_STRING", "")))
        else:
            status, body = "404 Not Found", b'{"error":"/metrics, /healthz or /gateways"}'
        start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body] if environ.get("REQUEST_METHOD") != "HEAD" else []

    def _gateways(self, query: dict[str, list[str]]) -> tuple[str, bytes]:
        wishes = {name: query.get(name, [""])[0] for name in ("protocol", "zone", "topic")}

        async def find() -> GatewayList:
            handler = self._handler
            return handler.gateways.find(clock.monotonic(), handler.registry.routes, **wishes)

        asked: Coroutine[Any, Any, GatewayList] = find()
        try:
            found = asyncio.run_coroutine_threadsafe(asked, self._loop).result(REQUEST_S_MAX)
        except (WaitTimeout, RuntimeError):
            return "503 Service Unavailable", b'{"error":"busy"}'
        return "200 OK", json.dumps(gateways_as_json(found)).encode()


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


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Requests(WSGIRequestHandler):
    timeout = 10
    """Seconds: a request that is not whole by then is closed."""

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""
