"""
Taking this gateway out of service: its clients go to other gateways, in steps.

``/readyz`` says no and the name servers hear of it first, new clients are told to go elsewhere,
those that are there are asked to leave evenly over a time; then the listeners close. The process
stays, with its admin listener, until it is ended or the drain is undone.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from itertools import count
from typing import Final

from gateway.clients import ClientTable
from protocols import clock
from protocols.errors import Code, Refused
from protocols.remoting.discovery import GatewayListener, GatewayRegister
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.draining")

STEP_S: Final = 0.5
"""Between two steps."""

GRACE_S: Final = 5.0
"""For the last ones to go by themselves before the listeners close."""

OTHERS_S: Final = 5.0
"""How old the list of other gateways may be."""

OVER_MS_MAX: Final = 24 * 3600 * 1000


class Stage(Enum):
    """Where it stands; the values are what the admin API says."""

    SERVING = "serving"
    DRAINING = "draining"
    DRAINED = "drained"


class Drain:
    """
    ``Draining`` of the services.

    Args:
        find_others: asks the name servers for all gateways.
        own: name → listener of this gateway, as the name servers are told.
        changed: tell the name servers now.
        close: close all listeners; *reopen* opens them again.
    """

    def __init__(
        self,
        clients: ClientTable,
        *,
        name: str,
        zone: Callable[[], str],
        find_others: Callable[[], Awaitable[Sequence[GatewayRegister]]],
        own: Callable[[], Mapping[str, GatewayListener]],
        changed: Callable[[], None],
        close: Callable[[], Awaitable[None]],
        reopen: Callable[[], Awaitable[None]],
    ) -> None:
        self.stage = Stage.SERVING
        self._clients = clients
        self._name = name
        self._zone = zone
        self._find_others = find_others
        self._own = own
        self._changed = changed
        self._close = close
        self._reopen = reopen
        self._tasks = Tasks("draining")
        self._running: asyncio.Task[None] | None = None
        self._others: list[GatewayRegister] = []
        self._to: dict[str, str] = {}
        self._turns = count()
        self._someone_left = asyncio.Event()
        clients.on_left(lambda info: self._someone_left.set())

    # ── for the adapters ────────────────────────────────────────────────────────────────

    @property
    def is_on(self) -> bool:
        return self.stage is not Stage.SERVING

    def another(self, listener: str) -> str:
        """In turn those that fit, of our zone if there are some."""
        own = self._own().get(listener)
        told = self._to.get(listener) or self._to.get(own.protocol if own else "")
        if told or own is None:
            return told or ""
        found = like(own, self._others, self._zone())
        return found[next(self._turns) % len(found)] if found else ""

    # ── for the operator ────────────────────────────────────────────────────────────────

    def begin(self, over_ms: int, to: Mapping[str, str]) -> None:
        """
        Clients leave evenly over *over_ms*; *to* says where, by protocol or listener, for those
        whose place the name servers do not know. Asked again: the new time counts.

        Raises Refused: *to* names what this gateway has no listener of.
        """
        own = self._own()
        known = {*own, *(listener.protocol for listener in own.values())}
        for name in to:
            if own and name not in known:  # none: they are closed already
                hint = f"neither a listener nor a protocol here: {', '.join(sorted(known))}"
                raise Refused(Code.BAD_REQUEST, name, hint)
        self._to = dict(to)
        if self.stage is Stage.DRAINED:
            return
        self._stop()
        self.stage = Stage.DRAINING
        logger.info("draining %d clients over %d ms", len(self._clients), over_ms)
        self._changed()
        self._running = self._tasks.start(self._run(over_ms / 1000), name="drain")

    async def undo(self) -> None:
        """Serve again."""
        self._stop()
        if self.stage is Stage.SERVING:
            return
        self.stage = Stage.SERVING
        self._clients.forget_asked()
        await self._reopen()
        logger.info("serving again")
        self._changed()

    def status(self) -> dict[str, object]:
        return {
            "gateway": self._name,
            "stage": self.stage.value,
            "clients": len(self._clients),
            "others": [item.gateway for item in self._others],
        }

    async def close(self) -> None:
        await self._tasks.close()

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None

    async def _run(self, over_s: float) -> None:
        await self._look()
        begun = looked = clock.monotonic()
        total, asked = len(self._clients), 0
        elapsed = 0.0
        while elapsed < over_s and len(self._clients):
            asked += self._clients.ask_to_leave(due(total, elapsed, over_s) - asked)
            await asyncio.sleep(min(STEP_S, over_s - elapsed))
            now = clock.monotonic()
            elapsed = now - begun
            if now - looked >= OTHERS_S:
                await self._look()
                looked = now
        self._clients.ask_to_leave(len(self._clients))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await self._all_left()
        await self._close()
        self.stage = Stage.DRAINED
        logger.info("drained")

    async def _all_left(self) -> None:
        while len(self._clients):
            self._someone_left.clear()
            await self._someone_left.wait()

    async def _look(self) -> None:
        found = await self._find_others()
        self._others = [
            item for item in found if item.gateway != self._name and not item.is_draining
        ]


def due(total: int, elapsed_s: float, over_s: float) -> int:
    """How many of *total* should have been asked by now: a first one at once, all at the end."""
    steps = max(math.ceil(over_s / STEP_S), 1)
    step = min(int(elapsed_s / STEP_S) + 1, steps)
    return math.ceil(total * step / steps)


def like(own: GatewayListener, others: Sequence[GatewayRegister], zone: str) -> list[str]:
    """Addresses of listeners that serve the same clients: same name, else protocol and TLS."""
    found: list[tuple[bool, str]] = []
    for gateway in others:
        fitting = [item for item in gateway.listeners if _fits(own, item)]
        named = [item for item in fitting if item.name == own.name]
        if fitting:
            found.append((gateway.zone == zone, (named or fitting)[0].address))
    near = [address for is_near, address in found if is_near]
    return near or [address for _, address in found]


def _fits(own: GatewayListener, other: GatewayListener) -> bool:
    return (own.protocol, own.is_tls) == (other.protocol, other.is_tls)
