"""Drain, weights and stores that are gone, over the admin API."""

import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from gateway.config import GatewayConfig
from gateway.draining import OVER_MS_MAX, Drain
from gateway.members import StoreMembers
from gateway.weights import Weights
from protocols.addresses import split_bind
from protocols.daemon.units import parse_duration_ms
from protocols.errors import Code, Refused

logger = logging.getLogger("tidegate.admin")

STATUS: Final = {Code.BAD_REQUEST: 400, Code.NOT_FOUND: 404, Code.PRECONDITION_FAILED: 409}
OVER_DEFAULT: Final = "30s"


class OperationRoutes:
    """``/api/drain``, ``/api/weights`` and ``/api/stores``."""

    def __init__(
        self,
        drain: Drain,
        weights: Weights,
        members: StoreMembers,
        config: Callable[[], GatewayConfig],
    ) -> None:
        self._drain = drain
        self._weights = weights
        self._members = members
        self._config = config

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/drain", self._status),
            web.post("/api/drain", self._begin),
            web.delete("/api/drain", self._undo),
            web.get("/api/weights", self._list_weights),
            web.put("/api/weights/{route}", self._set_weights),
            web.delete("/api/weights/{route}", self._reset_weights),
            web.get("/api/stores", self._list_stores),
            web.delete("/api/stores/{cluster}/{store}", self._forget_store),
        ]

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._drain.status())

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        """``{over: 30s, to: {mqtt: host:port}}``, both optional."""
        try:
            body = await request.json() if request.can_read_body else {}
            over_ms = int(str(parse_duration_ms(body.get("over", OVER_DEFAULT))))
            to = {str(name): str(address) for name, address in body.get("to", {}).items()}
            for address in to.values():
                split_bind(address)
        except (ValueError, TypeError, AttributeError) as error:
            return _wrong(f"wants over, to: {error}")
        if not 0 <= over_ms <= OVER_MS_MAX:
            return _wrong("over is at most a day")
        try:
            self._drain.begin(over_ms, to)
        except Refused as error:
            return _refused(error)
        logger.info("drain over %d ms by %s", over_ms, request.remote)
        return web.json_response(self._drain.status(), status=202)

    async def _undo(self, request: web.Request) -> web.StreamResponse:
        await self._drain.undo()
        logger.info("drain undone by %s", request.remote)
        return web.json_response(self._drain.status())

    async def _list_weights(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"weights": self._weights.table(self._config())})

    async def _set_weights(self, request: web.Request) -> web.StreamResponse:
        """``{<cluster>: <weight>, …}``."""
        route = request.match_info["route"]
        try:
            body: Any = await request.json()
        except ValueError as error:
            return _wrong(str(error))
        if not isinstance(body, dict) or not body:
            return _wrong("wants {cluster: weight}")
        try:
            await self._weights.set(self._config(), route, body)
        except Refused as error:
            return _refused(error)
        logger.info("weights of %s set to %s by %s", route, body, request.remote)
        return await self._list_weights(request)

    async def _reset_weights(self, request: web.Request) -> web.StreamResponse:
        try:
            is_gone = await self._weights.reset(request.match_info["route"])
        except Refused as error:
            return _refused(error)
        return web.json_response({"reset": int(is_gone)}, status=200 if is_gone else 404)

    async def _list_stores(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"stores": self._members.table()})

    async def _forget_store(self, request: web.Request) -> web.StreamResponse:
        store = request.match_info["store"]
        try:
            await self._members.forget(request.match_info["cluster"], store)
        except Refused as error:
            return _refused(error)
        logger.info("store %s forgotten by %s", store, request.remote)
        return await self._list_stores(request)


def _wrong(text: str) -> web.StreamResponse:
    return web.json_response({"error": text}, status=400)


def _refused(error: Refused) -> web.StreamResponse:
    return web.json_response({"error": str(error)}, status=STATUS.get(error.code, 503))
