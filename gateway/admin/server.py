"""The admin listener: ``/healthz /readyz /metrics``, ``GET /api/clients`` and kick."""

import html
import logging
from collections.abc import Callable, Mapping
from typing import Final

from gateway.admin.access import COOKIE, SESSION_S, Access
from gateway.admin.clients import ClientRoutes
from gateway.admin.operations import OperationRoutes
from gateway.admin.routes import Route, find
from gateway.clients import ClientTable
from gateway.metrics import Registry
from protocols.daemon.http import HttpServer
from protocols.daemon.requests import Answer, Request, json_answer

logger = logging.getLogger("tidegate.admin")

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE = """<!doctype html><meta charset="utf-8"><title>Tidegate</title>
<style>body{{font:15px system-ui;margin:2em;max-width:60em}}td,th{{padding:.2em 1em .2em 0;
text-align:left}}</style><h1>Tidegate {name}</h1><table>{listeners}</table>
<h2>Clients</h2><table><tr><th>protocol<th>listener<th>client id<th>identity<th>peer</tr>
{clients}</table><p>GET /api/clients · /metrics · /healthz · /readyz</p>"""


class AdminServer:
    """One listener of protocol ``admin``."""

    def __init__(
        self,
        *,
        gateway: str,
        access: Access,
        metrics: Registry,
        clients: ClientTable,
        operations: OperationRoutes,
        unready: Callable[[], list[str]],
        listeners: Callable[[], dict[str, str]],
        explain: Callable[[Mapping[str, object]], dict[str, object]],
    ) -> None:
        self.access = access
        self._gateway = gateway
        self._metrics = metrics
        self._clients = clients
        self.client_routes = ClientRoutes(clients)
        self.operations = operations
        self._unready = unready
        self._listeners = listeners
        self._explain = explain
        malformed = metrics.counter("admin_malformed", "Requests that were no HTTP")
        self._http = HttpServer(self._respond, malformed.inc)
        self._routes: list[Route] = [
            Route("GET", "/healthz", self._healthz),
            Route("GET", "/readyz", self._readyz),
            Route("GET", "/metrics", self._get_metrics),
            Route("GET", "/api/clients", self._get_clients),
            Route("GET", "/api/explain", self._get_explain),
            *self.client_routes.routes(),
            *self.operations.routes(),
            Route("GET", "/", self._page),
        ]

    async def start(self, bind: str) -> tuple[str, int]:
        """Listen; the bound host and port. Raises OSError."""
        return await self._http.start(bind)

    async def stop(self) -> None:
        await self._http.stop()

    # ── access ──────────────────────────────────────────────────────────────────────────

    async def _respond(self, request: Request) -> Answer:
        """Common headers; a fault of ours is a 500 without its trace."""
        try:
            answer = await self._guard(request)
        except Exception:
            logger.exception("admin request failed")
            answer = json_answer({"error": "internal error"}, status=500)
        return answer._replace(headers={**answer.headers, **HEADERS})

    async def _guard(self, request: Request) -> Answer:
        if request.path in ("/healthz", "/readyz"):
            return await find(self._routes, request)
        token = request.wish("token")
        if token and request.path == "/":
            return self._log_in(token)
        is_reading = request.method in ("GET", "HEAD")
        if is_reading and self.access.may_read(request.headers.get("host", "")):
            return await find(self._routes, request)
        if await self.access.may_change(request.headers, request.cookies(), request.peer):
            return await find(self._routes, request)
        status = 403 if "authorization" in request.headers else 401
        challenge = {} if status == 403 else {"WWW-Authenticate": 'Basic realm="tidegate"'}
        return json_answer({"error": "not allowed"}, status=status, headers=challenge)

    def _log_in(self, token: str) -> Answer:
        session = self.access.open_session(token)
        if not session:
            return json_answer({"error": "this token is spent or wrong"}, status=403)
        cookie = f"{COOKIE}={session}; HttpOnly; Max-Age={int(SESSION_S)}; Path=/; SameSite=Strict"
        return Answer(status=303, headers={"Location": "/", "Set-Cookie": cookie})

    # ── answers ─────────────────────────────────────────────────────────────────────────

    async def _healthz(self, request: Request) -> Answer:
        return json_answer({"status": "ok", "gateway": self._gateway})

    async def _readyz(self, request: Request) -> Answer:
        reasons = self._unready()
        return json_answer(
            {"status": "ready" if not reasons else "not ready", "reasons": reasons},
            status=503 if reasons else 200,
        )

    async def _get_metrics(self, request: Request) -> Answer:
        page, content_type = self._metrics.expose()
        return Answer(page, kind=content_type)

    async def _get_clients(self, request: Request) -> Answer:
        wanted = request.wish("protocol")
        return json_answer(
            {
                "gateway": self._gateway,
                "clients": [
                    {
                        "number": number,
                        "protocol": info.protocol,
                        "listener": info.listener,
                        "client_id": info.client_id,
                        "identity": info.identity,
                        "peer": info.peer,
                        "connected_ms": info.connected_ms,
                    }
                    for number, info in self._clients.items()
                    if wanted in ("", info.protocol)
                ],
            }
        )

    async def _get_explain(self, request: Request) -> Answer:
        lists = {
            name: [value for key, value in request.query if key == name]
            for name in ("roles", "headers")
        }
        first = dict(reversed(request.query))
        return json_answer(self._explain({**first, **lists}))

    async def _page(self, request: Request) -> Answer:
        rows = "".join(
            f"<tr><th>{html.escape(name)}<td>{html.escape(address)}</tr>"
            for name, address in self._listeners().items()
        )
        clients = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(field))}" for field in info[:5]) + "</tr>"
            for _, info in list(self._clients.items())[:200]
        )
        page = PAGE.format(name=html.escape(self._gateway), listeners=rows, clients=clients)
        return Answer(page.encode(), kind="text/html; charset=utf-8")
