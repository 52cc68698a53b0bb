"""
A few read-only pages over HTTP for a daemon that speaks something else: ``/metrics``, ``/healthz``.

A thread of its own on the standard library; what it tells is computed on the daemon's loop.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import TimeoutError as WaitTimeout
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from protocols.addresses import join_address, split_bind

REQUEST_S_MAX: Final = 5.0
JSON: Final = "application/json"

Start = Callable[[str, list[tuple[str, str]]], object]
Query = Mapping[str, str]


class Page(NamedTuple):
    """An answer."""

    body: bytes
    kind: str = JSON
    status: str = "200 OK"


class HttpPages:
    """
    Serves until ``close``.

    Args:
        pages: path → what is there; called on the loop that made this object.
    """

    def __init__(self, pages: Mapping[str, Callable[[Query], Page]]) -> None:
        self.address = ""
        self._pages = pages
        self._loop = asyncio.get_running_loop()
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def listen(self, bind: str) -> str:
        """The bound ``host:port``. Raises OSError."""
        host, port = split_bind(bind)
        kind = _Server6 if ":" in host else _Server
        server = make_server(host, port, self._answer, kind, _Requests)
        self.address = join_address(host, server.server_port)
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
        method = environ.get("REQUEST_METHOD")
        page = self._find(method, environ.get("PATH_INFO", "/"), environ.get("QUERY_STRING", ""))
        start(page.status, [("Content-Type", page.kind), ("Content-Length", str(len(page.body)))])
        return [page.body] if method != "HEAD" else []

    def _find(self, method: object, path: str, query: str) -> Page:
        make = self._pages.get(path)
        if method not in ("GET", "HEAD"):
            return Page(b'{"error":"GET only"}', status="405 Method Not Allowed")
        if make is None:
            known = ", ".join(self._pages)
            return Page(f'{{"error":"there is {known}"}}'.encode(), status="404 Not Found")
        wishes = {name: values[0] for name, values in parse_qs(query).items()}

        async def ask() -> Page:
            return make(wishes)

        asked: Coroutine[Any, Any, Page] = ask()
        try:
            return asyncio.run_coroutine_threadsafe(asked, self._loop).result(REQUEST_S_MAX)
        except (WaitTimeout, RuntimeError):
            asked.close()
            return Page(b'{"error":"busy"}', status="503 Service Unavailable")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Requests(WSGIRequestHandler):
    timeout = 10
    """Seconds: a request that is not whole by then is closed."""

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""
