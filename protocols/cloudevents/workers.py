"""
Which gateway delivers which subscription: one owner each, by a record bound to its lease.

When a gateway's lease ends, the directory store deletes its records, and whoever writes the
owner record first takes the subscription over.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from protocols.cloudevents import subscriptions
from protocols.cloudevents.config import CloudEventsConfig
from protocols.cloudevents.subscriptions import OWNERS, RECORDS, Stored
from protocols.cloudevents.webhook import Worker
from protocols.directory import Put, Record
from protocols.errors import Refused
from protocols.pipeline import Services
from protocols.tasks import Tasks

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger("tidegate.webhook")

LOOK_S: Final = 5.0
"""How often the records are looked at without a change, in seconds."""

LEAVE_S_MAX: Final = 2.0


class Workers:
    """The webhook workers of one listener."""

    def __init__(
        self,
        name: str,
        config: CloudEventsConfig,
        services: Services,
        session: "aiohttp.ClientSession",
    ) -> None:
        self._name = name
        self._config = config
        self._services = services
        self._session = session
        self._tasks = Tasks(f"webhooks/{name}")
        self._running: dict[str, tuple[Worker, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._unwatch = [
            services.directory.watch(prefix, self._note) for prefix in (RECORDS, OWNERS)
        ]

    def start(self) -> None:
        self._tasks.start(self._follow(), name="follow")

    async def close(self) -> None:
        """Stop delivering and let others take over at once."""
        for undo in self._unwatch:
            undo()
        owned = list(self._running)
        await self._tasks.close()
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                for worker, _ in self._running.values():
                    await worker.close()
                if owned:
                    puts = [Put(OWNERS + name, None) for name in owned]
                    await self._services.directory.put(puts)
        except (TimeoutError, Refused) as error:
            logger.warning("webhooks left to the lease's end: %s", error)

    def _note(self, records: Sequence[Record]) -> None:
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._reconcile()
            except Refused as refusal:
                logger.warning("webhooks: %s", refusal)
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _reconcile(self) -> None:
        """Own what nobody owns; run what is ours, at its newest version; stop the rest."""
        wanted: dict[str, tuple[Stored, int]] = {}
        claims: list[Put] = []
        for record in list(self._services.directory.items(RECORDS)):
            if record.value is None:
                continue
            stored = subscriptions.decode(record.value)
            if stored.status != subscriptions.ACTIVE:
                continue
            wanted[stored.name] = (stored, record.version)
            if self._owner(stored.name) is None:
                key = OWNERS + stored.name
                claims.append(Put(key, self._name.encode(), 0, is_bound=True))
        if claims:
            await self._services.directory.put(claims)
        mine = {name: found for name, found in wanted.items() if self._is_mine(name)}
        for name in [name for name in self._running if name not in mine]:
            await self._stop(name)
            if name not in wanted and self._is_mine(name):
                await self._services.directory.put([Put(OWNERS + name, None)])
        for name, (stored, version) in mine.items():
            await self._run(name, stored, version)

    def _owner(self, name: str) -> Record | None:
        record = self._services.directory.get(OWNERS + name)
        return record if record is not None and record.value is not None else None

    def _is_mine(self, name: str) -> bool:
        directory, owner = self._services.directory, self._owner(name)
        return (
            owner is not None
            and owner.value == self._name.encode()
            and (owner.gateway, owner.gateway_epoch) == (directory.gateway, directory.gateway_epoch)
        )

    async def _run(self, name: str, stored: Stored, version: int) -> None:
        running = self._running.get(name)
        if running is not None and running[0].version == version and not running[1].done():
            return
        if running is not None:
            await self._stop(name)
        worker = Worker(
            stored,
            version,
            listener=self._name,
            config=self._config,
            services=self._services,
            session=self._session,
        )
        self._running[name] = (worker, self._tasks.start(worker.run(), name=name))

    async def _stop(self, name: str) -> None:
        worker, task = self._running.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await worker.close()
