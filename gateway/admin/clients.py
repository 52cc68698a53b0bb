"""Kick and ban, over the admin API: at every gateway at once."""

import logging
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway.bans import KICK_MS, Ban, Bans
from gateway.clients import ClientTable
from gateway.observing import Observer
from protocols import clock
from protocols.daemon.units import parse_duration_ms
from protocols.errors import Code, Refused

logger = logging.getLogger("tidegate.admin")

STATUS: Final = {Code.BAD_REQUEST: 400, Code.TOO_MANY_REQUESTS: 429}


class ClientRoutes:
    """``/api/clients/{id}/kick`` and ``/api/bans``."""

    def __init__(self, clients: ClientTable, bans: Bans, observer: Observer) -> None:
        self._clients = clients
        self._bans = bans
        self._observer = observer

    def routes(self) -> list[web.RouteDef]:
        return [
            web.delete("/api/clients/{client_id:.+}", self._kick),
            web.post("/api/clients/{client_id:.+}/kick", self._kick),
            web.get("/api/bans", self._list),
            web.post("/api/bans", self._add),
            web.delete("/api/bans/{kind}/{value:.+}", self._remove),
            web.get("/api/traces", self._list_traces),
            web.post("/api/traces", self._start_trace),
            web.get("/api/traces/{name}", self._read_trace),
            web.delete("/api/traces/{name}", self._stop_trace),
            web.get("/api/slow-subscriptions", self._slow),
        ]

    async def _kick(self, request: web.Request) -> web.StreamResponse:
        """Here; with ``everywhere`` at the other gateways too."""
        client_id = request.match_info["client_id"]
        count = self._clients.kick(client_id, protocol=request.query.get("protocol", ""))
        if "everywhere" in request.query:
            kick = Ban(kind="client", value=client_id, at_ms=clock.wall_ms(), until_ms=KICK_MS)
            return await self._answer(kick, {"kicked": count, "everywhere": True})
        if count:
            logger.info("kicked client %s by %s", client_id, request.remote)
        return web.json_response({"kicked": count}, status=200 if count else 404)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        bans = [msgspec.to_builtins(ban) for ban in self._bans or ()]
        return web.json_response({"bans": bans})

    async def _add(self, request: web.Request) -> web.StreamResponse:
        """``{kind, value, for, tenant, reason}``; ``for`` is ``10m`` or absent: for good."""
        now_ms = clock.wall_ms()
        try:
            body = await request.json()
            duration_ms = parse_duration_ms(body.get("for", 0))
            ban = Ban(
                kind=body["kind"],
                value=str(body["value"]),
                tenant=str(body.get("tenant", "")),
                until_ms=now_ms + int(str(duration_ms)) if duration_ms else 0,
                at_ms=now_ms,
                reason=str(body.get("reason", ""))[:200],
                by=str(request.remote),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return web.json_response({"error": f"wants kind and value: {error}"}, status=400)
        return await self._answer(ban, {})

    async def _answer(self, ban: Ban, more: dict[str, Any]) -> web.StreamResponse:
        try:
            written = await self._bans.add(ban)
        except Refused as error:
            return web.json_response({"error": str(error)}, status=STATUS.get(error.code, 503))
        what = "kicked" if ban.until_ms == KICK_MS else "banned"
        logger.info("%s %s %s by %s", ban.kind, ban.value, what, ban.by or "an admin")
        return web.json_response({**msgspec.to_builtins(written), **more})

    async def _remove(self, request: web.Request) -> web.StreamResponse:
        info = request.match_info
        try:
            is_gone = await self._bans.remove(
                info["kind"], info["value"], request.query.get("tenant", "")
            )
        except Refused as error:
            return web.json_response({"error": str(error)}, status=STATUS.get(error.code, 503))
        return web.json_response({"removed": int(is_gone)}, status=200 if is_gone else 404)

    # ── looking closer ──────────────────────────────────────────────────────────────────

    async def _list_traces(self, request: web.Request) -> web.StreamResponse:
        traces = self._observer.traces()
        return web.json_response({"traces": [trace._asdict() for trace in traces]})

    async def _start_trace(self, request: web.Request) -> web.StreamResponse:
        """``{kind: client|topic|ip, value, for}``."""
        try:
            body = await request.json()
            duration_ms = int(str(parse_duration_ms(body.get("for", "5m"))))
            trace = await self._observer.start_trace(
                str(body["kind"]), str(body["value"]), duration_ms
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return web.json_response({"error": f"wants kind and value: {error}"}, status=400)
        except Refused as error:
            return web.json_response({"error": str(error)}, status=STATUS.get(error.code, 503))
        return web.json_response(trace._asdict())

    async def _read_trace(self, request: web.Request) -> web.StreamResponse:
        """The file of a trace that runs."""
        traces = self._observer.traces()
        name = request.match_info["name"]
        found = next((trace for trace in traces if trace.name == name), None)
        if found is None:
            return web.json_response({"error": "no trace of that name is running"}, status=404)
        return web.FileResponse(found.file)

    async def _stop_trace(self, request: web.Request) -> web.StreamResponse:
        is_known = self._observer.stop_trace(request.match_info["name"])
        return web.json_response({"stopped": int(is_known)}, status=200 if is_known else 404)

    async def _slow(self, request: web.Request) -> web.StreamResponse:
        """Subscribers that got messages late, the worst first."""
        found = self._observer.slowest(100)
        return web.json_response({"slow": [entry._asdict() for entry in found]})
