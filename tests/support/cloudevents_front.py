"""A CloudEvents listener on services in memory, and how tests talk to it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp

from protocols.cloudevents.adapter import CloudEventsAdapter
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S

EVENT = {
    "ce-specversion": "1.0",
    "ce-id": "1",
    "ce-source": "/plant",
    "ce-type": "station.up",
    "ce-subject": "s/7",
}


class Listener:
    """One adapter on one gateway of a fake cluster."""

    def __init__(self, services: FakeServices, **section: Any) -> None:
        self.services = services
        bind = {"protocol": "cloudevents", "bind": "127.0.0.1:0"}
        self.adapter = CloudEventsAdapter.from_config("events", bind | section)
        self.url = ""
        self.address = ("", 0)

    async def __aenter__(self) -> "Listener":
        self.serving = asyncio.ensure_future(self.adapter.serve(self.services))
        self.address = await self.services.address("events")
        self.url = f"http://{self.address[0]}:{self.address[1]}"
        return self

    async def __aexit__(self, *args: object) -> None:
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)


async def post(
    client: aiohttp.ClientSession, url: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    """POST a JSON document; (status, JSON answer)."""
    async with client.post(url, json=body or {}, headers=headers) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text else None


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110  the fake has no event for it
            await asyncio.sleep(0.01)
