"""
The other end of a remoting connection, whatever carries it.

Both ends send requests: ``Peer`` numbers ours, matches their answers, and hands the rest to its
owner. ``server`` and ``client`` make peers on sockets, ``local`` makes a pair in memory.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from protocols.errors import Code, Refused
from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand

logger = logging.getLogger("tidegate.remoting")

PENDING_MAX: Final = 65_536
"""Requests without an answer on one connection; more are refused."""

Receive = Callable[["Peer", Sequence[RemotingCommand]], None]
Answered = Callable[[RemotingCommand | None], None]


class Wire(Protocol):
    """What carries commands to the other end."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_slow(self) -> bool:
        """The other end leaves much unread: send it nothing that can wait."""
        ...

    def send(self, commands: Sequence[RemotingCommand]) -> None:
        """Queue; everything queued in one tick leaves in one write."""
        ...

    def pause(self) -> None:
        """Read no more from the other end, until ``resume``."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """Send what is queued, then end."""
        ...

    def abort(self) -> None:
        """End at once."""
        ...


class _Gone:
    """A ``Wire`` that has ended."""

    is_open = False
    is_slow = False

    def send(self, commands: Sequence[RemotingCommand]) -> None:
        pass

    def pause(self) -> None:
        pass

    resume = close = abort = pause


GONE: Final = _Gone()


class Peer:
    """One connection, as its owner sees it."""

    def __init__(self, wire: Wire, receive: Receive, address: str = "") -> None:
        self.address = address
        """``ip:port`` of the other end."""

        self.local_address = ""
        """``ip:port`` of this end; empty in memory."""

        self._wire = wire
        self._receive = receive
        self._opaque = 0
        self._pending: dict[int, Answered] = {}
        self._lost: list[Callable[[Peer], None]] = []
        self._is_lost = False

    @property
    def is_open(self) -> bool:
        return not self._is_lost and self._wire.is_open

    @property
    def is_slow(self) -> bool:
        return self._wire.is_slow

    def send(self, commands: Sequence[RemotingCommand]) -> None:
        """Answers and oneway requests. To a peer that has gone: dropped."""
        if self.is_open:
            self._wire.send(commands)

    def call(self, command: RemotingCommand, answered: Answered) -> None:
        """
        Send a request without a task; *answered* gets the answer, or None if the peer is lost.

        There is no time limit here: the connection's own (silence, lost socket) ends the wait.
        """
        if not self.is_open or len(self._pending) >= PENDING_MAX:
            asyncio.get_running_loop().call_soon(answered, None)
            return
        opaque = command.opaque = self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        self._pending[opaque] = answered
        self._wire.send((command,))

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and wait for its answer, whatever its code. Raises Refused."""
        future: asyncio.Future[RemotingCommand | None] = asyncio.get_running_loop().create_future()

        def answered(answer: RemotingCommand | None) -> None:
            if not future.done():
                future.set_result(answer)

        self.call(command, answered)
        opaque = command.opaque
        try:
            async with asyncio.timeout(timeout_s):
                answer = await future
        except TimeoutError:
            raise Refused(
                Code.PROXY_TIMEOUT, self.address, f"no answer to {command.code} in {timeout_s} s"
            ) from None
        finally:
            if self._pending.get(opaque) is answered:
                del self._pending[opaque]
        if answer is None:
            raise Refused(Code.HA_NOT_AVAILABLE, self.address, "the connection was lost")
        return answer

    def send_oneway(self, command: RemotingCommand) -> None:
        """A request that wants no answer."""
        command.flag |= ONEWAY_FLAG
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        command.opaque = self._opaque
        self.send((command,))

    def on_lost(self, callback: Callable[["Peer"], None]) -> None:
        """Call *callback* once when the connection has ended; soon, if it already has."""
        if self._is_lost:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._lost.append(callback)

    def pause(self) -> None:
        """Back-pressure: leave what the peer sends unread."""
        self._wire.pause()

    def resume(self) -> None:
        self._wire.resume()

    def close(self) -> None:
        self._wire.close()

    def abort(self) -> None:
        self._wire.abort()

    # ── for the wire ────────────────────────────────────────────────────────────────────

    def received(self, commands: Sequence[RemotingCommand]) -> None:
        """All commands of one read, in order: answers go to their callers, the rest on."""
        requests: list[RemotingCommand] = []
        for command in commands:
            if not command.is_response:
                requests.append(command)
            elif (answered := self._pending.pop(command.opaque, None)) is not None:
                answered(command)
        if requests:
            self._receive(self, requests)

    def lost(self) -> None:
        """The wire has ended: fail what waits, tell those who asked. Once."""
        if self._is_lost:
            return
        self._is_lost = True
        self._wire = GONE  # it knows this peer too: neither is to wait until garbage is looked for
        pending, self._pending = self._pending, {}
        for answered in pending.values():
            answered(None)
        callbacks, self._lost = self._lost, []
        for callback in callbacks:
            callback(self)

    def __repr__(self) -> str:
        return f"<peer {self.address} {'open' if self.is_open else 'lost'}>"
