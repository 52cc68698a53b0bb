"""Reads that give way to sends: when each has its turn."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.frame import encode_command
from store.committer import Committer
from store.disk import Disk, RealDisk
from store.handlers.backlog import PAUSE_S, QUIET_S, Backlog, Turns
from store.handlers.connection import Connection
from store.log.segments import WriteBatch
from store.server import StoreServer
from tests.support.store_server import WAIT_S, ask, connected, running_store

SEND = {"a": "p", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
OPEN = cast(Connection, SimpleNamespace(is_open=True))


class Machine:
    """What turns are judged by, and the reads that wait for theirs."""

    def __init__(self) -> None:
        self.now = 100.0
        self.is_committing = False
        self.tick_count = 0
        self.has_ticked = asyncio.Event()
        self.done: list[int] = []
        self.backlog = Backlog()
        self.turns = Turns(
            self.backlog,
            is_committing=lambda: self.is_committing,
            tick_soon=self._tick,
            monotonic=lambda: self.now,
        )

    def add(self, number: int, *, takes_s: float = 0.0) -> None:
        def read() -> None:
            self.done.append(number)
            self.now += takes_s

        self.backlog.add(OPEN, read)

    def read(self) -> list[int]:
        """The end of a tick; all that was read so far."""
        self.turns.read()
        return self.done

    def _tick(self) -> None:
        self.tick_count += 1
        self.has_ticked.set()


async def test_one_read_comes_with_a_commit() -> None:
    machine = Machine()
    for number in range(3):
        machine.add(number)
    for count in range(1, 3):
        machine.turns.commit_ended()
        assert machine.read() == list(range(count))
        assert machine.read() == list(range(count)), "the next one comes with the next commit"
    machine.turns.stop()


async def test_reads_have_a_share_of_the_loop() -> None:
    """After a long one, commits have none with them for some multiple of its time."""
    machine = Machine()
    machine.add(0, takes_s=0.010)
    machine.add(1)
    machine.turns.commit_ended()
    machine.read()
    machine.turns.commit_ended()
    assert machine.read() == [0]
    machine.now += 0.1
    machine.turns.commit_ended()
    assert machine.read() == [0, 1]
    machine.turns.stop()


async def test_who_comes_when_the_commit_has_passed_waits() -> None:
    """The next send is expected now; the turn that nobody took is over."""
    machine = Machine()
    machine.turns.commit_ended()
    machine.read()
    machine.add(0)
    assert machine.read() == []
    machine.now += PAUSE_S
    assert machine.read() == [0], "no send came"
    machine.turns.stop()


async def test_the_disk_may_have_the_turn() -> None:
    machine = Machine()
    machine.add(0)
    machine.turns.commit_ended()
    machine.turns.pass_by()
    assert machine.read() == []
    machine.turns.commit_ended()
    assert machine.read() == [0]
    machine.turns.stop()


async def test_beside_a_commit_of_the_kernel_who_comes_late_reads_too() -> None:
    machine = Machine()
    machine.is_committing = True
    machine.turns.commit_begun()
    machine.read()
    machine.add(0)
    assert machine.read() == [0]
    machine.turns.stop()


async def test_without_commits_nobody_takes_turns() -> None:
    machine = Machine()
    machine.turns.commit_ended()
    assert machine.turns.is_storing()
    machine.now += QUIET_S
    assert not machine.turns.is_storing()
    machine.add(0)
    machine.add(1)
    machine.read()
    assert machine.tick_count == 1, "the rest comes at once"
    assert machine.read() == [0, 1]


async def test_a_commit_that_takes_its_time_is_not_waited_for() -> None:
    machine = Machine()
    machine.is_committing = True
    machine.add(0)
    assert machine.read() == []
    await asyncio.wait_for(machine.has_ticked.wait(), WAIT_S)
    assert machine.read() == [0]


class AtOnce:
    """In a committer's place: the loop commits, and *between* happens meanwhile."""

    has_room, has_failed, out_count = True, False, 0

    def __init__(self, disk: Disk, server: StoreServer, between: Callable[[], None]) -> None:
        self._disk, self._server, self._between = disk, server, between

    def submit(self, batch: WriteBatch) -> bool:
        batch.execute(self._disk)
        self._between()
        self._server.committed(batch, 0.0)
        return False


async def test_an_answer_leaves_before_old_messages_are_read(tmp_path: Path) -> None:
    """Who sends has been told when the loop takes time for who catches up."""
    disk = RealDisk(str(tmp_path / "store"))
    was_told: list[bool] = []
    has_read = asyncio.Event()
    async with running_store(tmp_path, disk=disk) as store, connected(store) as client:
        assert (await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"0")).code == 0
        server = store.local_handler()
        assert isinstance(server, StoreServer)
        host, port = store.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as sender:
            sender.setblocking(False)

            def read() -> None:
                try:
                    was_told.append(bool(sender.recv(1, socket.MSG_PEEK)))
                except BlockingIOError:
                    was_told.append(False)
                has_read.set()

            def between() -> None:
                if not was_told and not server.context.backlog:
                    server.context.backlog.add(OPEN, read)

            committer = store._committer
            server.use(cast(Committer, AtOnce(disk, server, between)))
            sender.send(encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, SEND, b"1")))
            await asyncio.wait_for(has_read.wait(), WAIT_S)
            assert committer is not None
            server.use(committer)
    assert was_told == [True]


def test_old_messages_are_read_though_each_tick_commits(tmp_path: Path) -> None:
    """Several who send one after the other leave no tick without a commit, where the loop looks
    at its sockets before it goes on with what is due."""
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_commits_before_a_read(tmp_path, 100)) < 100


async def _commits_before_a_read(tmp_path: Path, count_max: int) -> int:
    disk = RealDisk(str(tmp_path / "store"))
    counts: list[int] = []
    has_read = asyncio.Event()
    async with running_store(tmp_path, disk=disk) as store, connected(store) as client:
        assert (await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"0")).code == 0
        server = store.local_handler()
        assert isinstance(server, StoreServer)
        host, port = store.address.rsplit(":", 1)
        send = encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, SEND, b"1"))
        with socket.create_connection((host, int(port))) as sender:

            def read() -> None:
                counts.append(commit_count)
                has_read.set()

            commit_count = 0

            def between() -> None:
                nonlocal commit_count
                commit_count += 1
                if commit_count == 1:
                    server.context.backlog.add(OPEN, read)
                if commit_count < count_max:
                    sender.send(send)

            committer = store._committer
            server.use(cast(Committer, AtOnce(disk, server, between)))
            sender.send(send)
            await asyncio.wait_for(has_read.wait(), WAIT_S)
            assert committer is not None
            server.use(committer)
    return counts[0]
