"""The HTTP application: paths, and refusals turned into problem documents."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from protocols import clock
from protocols.cloudevents.access import Access
from protocols.cloudevents.config import CloudEventsConfig
from protocols.cloudevents.guard import Door, Doors
from protocols.cloudevents.ingest import Ingest
from protocols.cloudevents.modes import BadEvent
from protocols.cloudevents.problems import Problem, problem_of
from protocols.cloudevents.pull import Pull
from protocols.cloudevents.subscription_api import SubscriptionsApi
from protocols.errors import Refused
from protocols.observing import ClientInfo, Meter
from protocols.pipeline import Services
from protocols.tasks import LongPolls

logger = logging.getLogger("tidegate.events")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CLIENT_GONE: Final = 499
"""Nobody is there to answer, as nginx has it in its logs."""

PULL_VERBS: Final = "receive|acknowledge|release|reject|renewLock"


def make_app(
    name: str, config: CloudEventsConfig, services: Services, doors: Doors, polls: LongPolls
) -> web.Application:
    """All paths of a listener."""
    access = Access(name, config, services, doors)
    ingest = Ingest(config, services, access)
    pull = Pull(config, services, access, polls)
    subscriptions = SubscriptionsApi(config, services, access)
    app = web.Application(
        client_max_size=config.request_bytes_max,
        middlewares=[_middleware(_Refusals(name, services, doors))],
    )
    one, many = "/subscriptions/{id}", "/subscriptions"
    pulled = "/topics/{topic}/subscriptions/{group}:{verb:" + PULL_VERBS + "}"
    app.router.add_post("/topics/{topic}", ingest.post)
    app.router.add_options("/topics/{topic}", ingest.options)
    app.router.add_post(pulled, pull.post)
    app.router.add_options(pulled, ingest.options)
    app.router.add_post(many, subscriptions.create)
    app.router.add_get(many, subscriptions.list_all, allow_head=False)
    app.router.add_options(many, subscriptions.options)
    app.router.add_get(one, subscriptions.show, allow_head=False)
    app.router.add_put(one, subscriptions.replace)
    app.router.add_delete(one, subscriptions.delete)
    app.router.add_options(one, subscriptions.options)
    return app


def _middleware(refusals: "_Refusals") -> Middleware:
    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await refusals.handle(request, handler)

    return handle


class _Refusals:
    """Notes that a connection speaks, turns refusals into answers, counts them."""

    def __init__(self, name: str, services: Services, doors: Doors) -> None:
        self._name = name
        self._services = services
        self._doors = doors
        self._meters: dict[int, Meter] = {}

    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        door = self._doors.get(request.transport) if request.transport else None
        if door is None:
            response = await self._answer(request, handler)
        else:
            response = await self._answer_at(door, request, handler)
        self._count(response.status)
        return response

    async def _answer_at(
        self, door: Door, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        door.is_awake = True
        door.busy_count += 1
        try:
            response = await self._answer(request, handler)
        finally:
            door.busy_count -= 1
        if door.call is not None and door.left is None:
            door.left = self._joined(door)
        if door.is_leaving and not response.prepared:
            response.force_close()
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Problem as problem:
            return _response(problem)
        except Refused as refusal:
            return _response(problem_of(refusal))
        except BadEvent as error:
            hint = f"{error.attribute}: {error.hint}"
            return _response(Problem(error.status, hint, attribute=error.attribute))
        except web.HTTPException as error:
            allow = error.headers.get("Allow")
            more = {"Allow": allow} if allow else {}
            return _response(Problem(error.status, error.reason), more)
        except ConnectionError:
            return web.Response(
                status=CLIENT_GONE
            )  # aiohttp writes none; it would log what is raised
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            return _response(Problem(500, "the gateway has a fault"))

    def _joined(self, door: Door) -> Callable[[], None]:
        call = door.call
        assert call is not None
        info = ClientInfo(
            call.protocol,
            call.listener,
            call.client_id,
            call.identity.name,
            call.peer,
            clock.wall_ms(),
            call.tenant,
        )
        left = self._services.clients.joined(info, door.close, door.leave)

        def over() -> None:
            left()
            if door.call is not None:
                self._services.pipeline.forget(door.call)

        return over

    def _count(self, status: int) -> None:
        meter = self._meters.get(status)
        if meter is None:
            meter = self._meters[status] = self._services.metrics.counter(
                "http_requests",
                "HTTP requests of the events listeners, by status",
                listener=self._name,
                status=str(status),
            )
        meter.inc()


def _response(problem: Problem, more: Mapping[str, str] | None = None) -> web.Response:
    headers = problem.headers() | dict(more or {})
    return web.Response(body=problem.body(), status=problem.status, headers=headers)
