"""SIGHUP: reloads one after the other."""

import asyncio
import logging
from typing import cast

import pytest

from protocols.daemon.lifecycle import Daemon, Reloads
from protocols.errors import ConfigError
from protocols.tasks import Tasks


class Reloaded:
    """Counts; each reload lasts until it is let go on."""

    def __init__(self) -> None:
        self.begun = self.at_once = self.at_once_max = 0
        self.go_on = asyncio.Event()

    async def reload(self) -> None:
        self.begun += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await self.go_on.wait()
        self.at_once -= 1


async def tasks_end(tasks: Tasks) -> None:
    for _ in range(50):
        await asyncio.sleep(0)
    assert not len(tasks)


async def test_signals_during_a_reload_are_one_more() -> None:
    """Two at once would open the same listeners twice; the last file is read in any case."""
    daemon, tasks = Reloaded(), Tasks("test")
    reloads = Reloads(cast(Daemon, daemon), tasks)
    reloads.ask()
    await asyncio.sleep(0)
    for _ in range(5):
        reloads.ask()
        await asyncio.sleep(0)
    assert daemon.begun == 1
    daemon.go_on.set()
    await tasks_end(tasks)
    assert (daemon.begun, daemon.at_once_max) == (2, 1)


async def test_every_mistake_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """In one line: more than a few lines of a kind are folded."""

    class Refusing:
        async def reload(self) -> None:
            raise ConfigError([f"mistake {number}" for number in range(9)])

    tasks = Tasks("test")
    with caplog.at_level(logging.ERROR):
        Reloads(cast(Daemon, Refusing()), tasks).ask()
        await tasks_end(tasks)
    (line,) = caplog.messages
    assert "mistake 0; " in line
    assert "mistake 8" in line
