"""Writes are answered once the gateway's own table has them, or when that takes too long."""

import asyncio

import pytest

from gateway.applied import Applied
from protocols.directory import PutResult, Record
from protocols.errors import Code, Refused


def away() -> Refused:
    return Refused(Code.HA_NOT_AVAILABLE, "directory", "away")


def written(version: int) -> list[PutResult]:
    return [PutResult(True, Record("k", b"v", version, "gw", 1))]


async def test_a_write_is_answered_when_it_is_applied() -> None:
    """Each by its own version; what is applied already is answered at once."""
    applied = Applied(60.0, away)
    loop = asyncio.get_running_loop()
    early, late = loop.create_future(), loop.create_future()
    applied.rise(1)
    applied.written([(early, written(1)), (late, written(3))])
    assert early.result() == written(1)
    reached = asyncio.ensure_future(applied.reached(2))
    await asyncio.sleep(0)
    assert not late.done()
    applied.rise(2)
    await reached
    assert not late.done()
    applied.rise(3)
    assert late.result() == written(3)
    applied.close()


async def test_a_table_that_does_not_come_refuses() -> None:
    """After the time that was set; who waits without an end goes on waiting."""
    applied = Applied(0.01, away)
    future = asyncio.get_running_loop().create_future()
    applied.written([(future, written(1))])
    reached = asyncio.ensure_future(applied.reached(1))
    with pytest.raises(Refused):
        await future
    assert not reached.done()
    applied.rise(1)
    await reached
    applied.close()
