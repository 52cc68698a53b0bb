"""
The in-memory transport of LOCAL mode: two peers, joined; commands pass as objects.

What one end sends in a tick arrives at the other in the next, in one batch, as on a socket; so
both ends keep their code and their order of events.
"""

import asyncio
from collections.abc import Sequence

from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Peer, Receive


class LocalWire:
    """One direction's end; ``other`` is where its commands go."""

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.other: LocalWire | None = None
        self.is_open = True
        self.is_slow = False
        self._queued: list[RemotingCommand] = []
        self._is_paused = False
        self._is_due = False
        self._is_ending = False
        self._loop = asyncio.get_running_loop()

    def send(self, commands: Sequence[RemotingCommand]) -> None:
        self._queued.extend(commands)
        self._schedule()

    def pause(self) -> None:
        """Leave what the other end sends in its queue."""
        if self.other is not None:
            self.other._is_paused = True

    def resume(self) -> None:
        if self.other is not None:
            self.other._is_paused = False
            if self.other._queued:
                self.other._schedule()

    def close(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._loop.call_soon(self._end)

    def abort(self) -> None:
        self._queued.clear()
        self.close()

    def _schedule(self) -> None:
        if not self._is_due and not self._is_paused:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        other = self.other
        if self._is_paused or other is None or other.peer is None or not other.is_open:
            return
        commands, self._queued = self._queued, []
        if commands:
            other.peer.received(commands)

    def _end(self) -> None:
        self._flush()
        for wire in (self, self.other):
            if wire is not None and wire.is_open:
                wire.is_open = False
                if wire.peer is not None:
                    wire.peer.lost()


def local_peers(near: Receive, far: Receive, *, name: str = "local") -> tuple[Peer, Peer]:
    """Two joined peers; *near* and *far* get the requests that arrive at each."""
    wires = LocalWire(), LocalWire()
    wires[0].other, wires[1].other = wires[1], wires[0]
    wires[0].peer = Peer(wires[0], near, address=name)
    wires[1].peer = Peer(wires[1], far, address=name)
    return wires[0].peer, wires[1].peer
