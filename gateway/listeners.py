"""
The open doors: one task for each adapter, opened, closed and opened again together.

A gateway whose lease has ended closes all of them, with every client connection, and opens them
on the same ports when it has joined again. A reload touches only listeners that changed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from protocols import unix_sockets
from protocols.adapter import ProtocolAdapter, Refreshable
from protocols.addresses import join_address, split_bind
from protocols.errors import GatewayError
from protocols.pipeline import Services
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.listeners")

OPEN_S_MAX: Final = 15.0
CLOSE_S_MAX: Final = 15.0
AGAIN_S: Final = 1.0
"""Between attempts to open what could not be opened when the gateway joined again."""

Section = Mapping[str, Any]
Make = Callable[[str, Section], ProtocolAdapter]


class CannotListen(GatewayError):
    """A socket could not be opened."""


class _Door(NamedTuple):
    section: Section
    adapter: ProtocolAdapter
    task: asyncio.Task[None]


class Listeners:
    """All protocol listeners of a gateway."""

    def __init__(self, make: Make) -> None:
        self.addresses: dict[str, str] = {}
        """Listener → ``host:port`` that is bound now."""

        self._make = make
        self._tasks = Tasks("listeners")
        self._doors: dict[str, _Door] = {}
        self._sections: dict[str, Section] = {}
        self._ports: dict[str, str] = {}
        self._errors: dict[str, BaseException] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # adapters that tell their clients; until they end a name is not opened again
        self._opened = asyncio.Event()
        self._is_shut = False

    def opened(self, name: str, host: str, port: int) -> None:
        """For adapters: ``Services.listening``."""
        address = host if host.startswith(unix_sockets.PREFIX) else join_address(host, port)
        self.addresses[name] = self._ports[name] = address
        self._opened.set()

    @property
    def closed_names(self) -> list[str]:
        """Listeners that should be open and are not."""
        return sorted(set(self._sections) - set(self.addresses))

    async def apply(self, sections: Mapping[str, Section], services: Services) -> None:
        """
        Make *sections* the open ones: close what went or changed, open what is new.

        Raises CannotListen; what is open by then stays open.
        """
        old = [name for name in self._doors if self._doors[name].section != sections.get(name)]
        for name in old:
            self._ports.pop(name, None)
            await self._close(name)
        if changed := [name for name in old if name in sections]:
            logger.info("opening anew, with what changed: listener %s", ", ".join(changed))
        for door in self._doors.values():
            if isinstance(door.adapter, Refreshable):
                door.adapter.refresh()
        self._sections = dict(sections)
        await self.open(services)

    async def open(self, services: Services) -> None:
        """Open every listener that is not. Raises CannotListen for the first that cannot be."""
        while self._closing:
            await asyncio.wait(self._closing)
        if self._is_shut:
            return
        wanted = [name for name in self._sections if name not in self._doors]
        for name in wanted:
            section = self._section_with_port(name)
            adapter = self._make(name, section)
            task = self._tasks.start(self._serve(name, adapter, services), name=name)
            self._doors[name] = _Door(self._sections[name], adapter, task)
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                while missing := self._unopened(wanted):
                    await self._next_opened(missing)
        except TimeoutError:
            raise CannotListen(f"listener {missing[0]} did not open") from None

    async def open_again(self, services: Services, is_wanted: Callable[[], bool]) -> None:
        """Close all, then open all; again and again as long as *is_wanted*: somebody may have the
        port for a moment, or a door that takes its time to close."""
        await self.close()
        while is_wanted():
            try:
                return await self.open(services)
            except CannotListen as error:
                logger.error("%s: tried again in %d s", error, AGAIN_S)
            await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        """Close all; each adapter answers what is in flight and tells its clients."""
        await asyncio.gather(*(self._close(name) for name in list(self._doors)))

    async def shut(self) -> None:
        """Close all, and open none, whoever asks, until ``unshut``."""
        self._is_shut = True
        await self.close()

    async def unshut(self, services: Services) -> None:
        """Open all again. Raises CannotListen."""
        self._is_shut = False
        await self.open(services)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _section_with_port(self, name: str) -> Section:
        """Port 0 is taken once: when a listener opens again, its clients look where it was."""
        section = self._sections[name]
        bind = str(section["bind"])
        if name in self._ports and not unix_sockets.path_of(bind) and split_bind(bind)[1] == 0:
            return {**section, "bind": self._ports[name]}
        return section

    def _unopened(self, wanted: list[str]) -> list[str]:
        """Those still to come; what was closed meanwhile is not."""
        return [name for name in wanted if name in self._doors and name not in self.addresses]

    async def _next_opened(self, missing: list[str]) -> None:
        """Wait until a listener opened. Raises CannotListen if one of *missing* has ended."""
        self._opened.clear()
        tasks = {name: self._doors[name].task for name in missing}
        waiter = self._tasks.start(self._opened.wait(), name="opened")
        await asyncio.wait({waiter, *tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        for name, task in tasks.items():
            door = self._doors.get(name)
            is_ours = door is not None and door.task is task
            if task.done() and is_ours and name not in self.addresses:
                bind = self._sections[name].get("bind")
                self._doors.pop(name)
                error = self._errors.pop(name, None)
                if error is None and not task.cancelled():
                    error = task.exception()
                raise CannotListen(f"listener {name} cannot listen on {bind}: {error}")

    async def _serve(self, name: str, adapter: ProtocolAdapter, services: Services) -> None:
        try:
            await adapter.serve(services)
        except OSError as error:
            if name in self.addresses:
                raise
            self._errors[name] = error  # a port in use: whoever opens it reports it
        finally:
            door = self._doors.get(name)
            if door is None or door.task is asyncio.current_task():  # not its successor's
                self.addresses.pop(name, None)

    async def _close(self, name: str) -> None:
        door = self._doors.pop(name)
        door.task.cancel()
        self._closing.add(door.task)
        try:
            _, pending = await asyncio.wait({door.task}, timeout=CLOSE_S_MAX)
        finally:
            self._closing.discard(door.task)
        if pending:
            logger.warning("listener %s did not close within %d s", name, CLOSE_S_MAX)
