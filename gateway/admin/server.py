"""
The admin API (aiohttp): ``/healthz /readyz /metrics``, ``GET /api/clients`` and kick.

aiohttp is imported with this module, which is imported when somebody calls (``door``).
"""

import asyncio
import html
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from gateway.admin.access import COOKIE, SESSION_S, Access
from gateway.admin.clients import ClientRoutes
from gateway.admin.operations import OperationRoutes
from gateway.clients import ClientTable
from gateway.metrics import Registry
from protocols.cloudevents.guard import Doors, Guard, NoTracebacks

logger = logging.getLogger("tidegate.admin")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
BODY_BYTES_MAX: Final = 1 << 20
HANDSHAKE_S_MAX: Final = 10.0
"""A connection whose first request head is not whole by then is closed."""

PAGE = """<!doctype html><meta charset="utf-8"><title>Tidegate</title>
<style>body{{font:15px system-ui;margin:2em;max-width:60em}}td,th{{padding:.2em 1em .2em 0;
text-align:left}}</style><h1>Tidegate {name}</h1><table>{listeners}</table>
<h2>Clients</h2><table><tr><th>protocol<th>listener<th>client id<th>identity<th>peer</tr>
{clients}</table><p>GET /api/clients · /metrics · /healthz · /readyz</p>"""


class AdminServer:
    """Answers the connections of a listener of protocol ``admin``."""

    def __init__(
        self,
        *,
        gateway: str,
        access: Access,
        metrics: Registry,
        clients: ClientTable,
        client_routes: ClientRoutes,
        operations: OperationRoutes,
        unready: Callable[[], list[str]],
        listeners: Callable[[], dict[str, str]],
        explain: Callable[[Mapping[str, object]], dict[str, object]],
    ) -> None:
        self.access = access
        self._gateway = gateway
        self._metrics = metrics
        self._clients = clients
        self._client_routes = client_routes
        self._operations = operations
        self._unready = unready
        self._listeners = listeners
        self._explain = explain
        self._runner: web.AppRunner | None = None
        self._doors: Doors = {}
        self._malformed = metrics.counter("admin_malformed", "Requests that were no HTTP")

    async def set_up(self) -> None:
        """Before the first connection."""
        app = web.Application(
            middlewares=[_answer_safely, self._guard], client_max_size=BODY_BYTES_MAX
        )
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._get_metrics),
                web.get("/api/clients", self._get_clients),
                web.get("/api/explain", self._get_explain),
                *self._client_routes.routes(),
                *self._operations.routes(),
                web.get("/", self._page),
            ]
        )
        log = logging.getLogger("tidegate.admin.http")
        log.addFilter(NoTracebacks(self._malformed.inc))
        self._runner = runner = web.AppRunner(
            app, access_log=None, logger=log, handle_signals=False, shutdown_timeout=2.0
        )
        await runner.setup()

    def connection(self) -> asyncio.Protocol:
        """One more."""
        assert self._runner is not None
        assert self._runner.server is not None
        return Guard(self._runner.server(), self._doors, HANDSHAKE_S_MAX)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    # ── access ──────────────────────────────────────────────────────────────────────────

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        door = self._doors.get(request.transport) if request.transport is not None else None
        if door is not None:
            door.is_awake = True
        if request.path in ("/healthz", "/readyz"):
            return await handler(request)
        token = request.query.get("token")
        if token is not None and request.path == "/":
            return self._log_in(token)
        is_reading = request.method in ("GET", "HEAD")
        if is_reading and self.access.may_read(request.host):
            return await handler(request)
        if await self.access.may_change(request.headers, request.cookies, str(request.remote)):
            return await handler(request)
        status = 403 if "Authorization" in request.headers else 401
        challenge = {} if status == 403 else {"WWW-Authenticate": 'Basic realm="tidegate"'}
        return web.json_response({"error": "not allowed"}, status=status, headers=challenge)

    def _log_in(self, token: str) -> web.StreamResponse:
        session = self.access.open_session(token)
        if not session:
            return web.json_response({"error": "this token is spent or wrong"}, status=403)
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.set_cookie(
            COOKIE, session, max_age=int(SESSION_S), httponly=True, samesite="Strict", path="/"
        )
        return answer

    # ── answers ─────────────────────────────────────────────────────────────────────────

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok", "gateway": self._gateway})

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        reasons = self._unready()
        return web.json_response(
            {"status": "ready" if not reasons else "not ready", "reasons": reasons},
            status=503 if reasons else 200,
        )

    async def _get_metrics(self, request: web.Request) -> web.StreamResponse:
        page, content_type = self._metrics.expose()
        return web.Response(body=page, headers={"Content-Type": content_type})

    async def _get_clients(self, request: web.Request) -> web.StreamResponse:
        wanted = request.query.get("protocol")
        return web.json_response(
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
                    if wanted in (None, info.protocol)
                ],
            }
        )

    async def _get_explain(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        lists = {name: query.getall(name, []) for name in ("roles", "headers")}
        return web.json_response(self._explain({**query, **lists}))

    async def _page(self, request: web.Request) -> web.StreamResponse:
        rows = "".join(
            f"<tr><th>{html.escape(name)}<td>{html.escape(address)}</tr>"
            for name, address in self._listeners().items()
        )
        clients = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(field))}" for field in info[:5]) + "</tr>"
            for _, info in list(self._clients.items())[:200]
        )
        page = PAGE.format(name=html.escape(self._gateway), listeners=rows, clients=clients)
        return web.Response(text=page, content_type="text/html")


@web.middleware
async def _answer_safely(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Common headers; a fault of ours is a 500 without its trace."""
    try:
        answer = await handler(request)
    except web.HTTPException as error:
        answer = web.json_response({"error": error.reason}, status=error.status)
    except Exception:
        logger.exception("admin request failed")
        answer = web.json_response({"error": "internal error"}, status=500)
    answer.headers.update(HEADERS)
    return answer
