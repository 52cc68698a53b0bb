"""``POST /topics/{topic}``: events in, answered when the stores have them."""

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from protocols.canonical import SendResult
from protocols.cloudevents import mapping, modes
from protocols.cloudevents.access import Access
from protocols.cloudevents.config import CloudEventsConfig
from protocols.cloudevents.modes import BadEvent, Event
from protocols.cloudevents.problems import Problem, status_of
from protocols.pipeline import Services

ALLOW: Final = "POST, OPTIONS"
FAILED_LISTED_MAX: Final = 100
"""Failed events of a batch that the problem document names."""


class Ingest:
    """Takes events for topics; also a target of other people's webhooks."""

    def __init__(self, config: CloudEventsConfig, services: Services, access: Access) -> None:
        self._config = config
        self._services = services
        self._access = access
        self._heads = mapping.Heads()

    async def post(self, request: web.Request) -> web.Response:
        """202 after every event is stored; a batch is validated whole before any is sent."""
        call = await self._access.call_of(request)
        topic = request.match_info["topic"]
        body = await read_body(request, self._config.body_s_max)
        events = modes.decode_request(
            request.headers.get("Content-Type", ""),
            request.headers.items(),
            body,
            batch_max=self._config.batch_max,
        )
        self._check_sizes(events)
        await self._access.topic(call, topic, may_create=True)
        if events:
            messages = [mapping.to_message(event, topic, self._heads) for event in events]
            results = await self._services.pipeline.send(call, messages)
            _check_results(events, results)
        return web.Response(status=202)

    def _check_sizes(self, events: Sequence[Event]) -> None:
        limit = self._config.body_bytes_max
        for index, event in enumerate(events):
            size = len(event.data or b"")
            if size > limit:
                name = "data" if len(events) == 1 else f"[{index}].data"
                raise BadEvent(name, f"{size} bytes, limit {limit}", status=413)

    async def options(self, request: web.Request) -> web.Response:
        """Consent to whoever asks to push here (webhook specification, section 4)."""
        headers = {"Allow": ALLOW}
        origin = request.headers.get("WebHook-Request-Origin")
        if origin:
            headers["WebHook-Allowed-Origin"] = origin
            headers["WebHook-Allowed-Rate"] = request.headers.get("WebHook-Request-Rate", "*")
        return web.Response(status=200, headers=headers)


def _check_results(events: Sequence[Event], results: Sequence[SendResult]) -> None:
    """Raises Problem naming the events that no store took; the others are stored."""
    failed = [
        {"index": index, "id": event.attributes["id"], "code": result.code.name}
        for index, (event, result) in enumerate(zip(events, results, strict=True))
        if not result.is_stored
    ]
    if not failed:
        return
    first = next(result for result in results if not result.is_stored)
    more = {"code": first.code.name, "stored": len(events) - len(failed)}
    if len(events) > 1:
        more |= {"failed": failed[:FAILED_LISTED_MAX], "failedCount": len(failed)}
    raise Problem(status_of(first.code), first.hint or first.code.name, **more)


async def read_body(request: web.Request, seconds_max: float) -> bytes:
    """The whole body. Raises Problem(408) for a peer that dribbles."""
    try:
        async with asyncio.timeout(seconds_max):
            return await request.read()
    except TimeoutError as error:
        raise Problem(408, f"the body was not whole after {seconds_max:g} s") from error
