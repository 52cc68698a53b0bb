"""A CONNECT that is here before the last connection, elsewhere, has written down how it ended."""

import asyncio
from typing import cast

import msgspec
import pytest

from protocols.directory import Directory, Record
from protocols.mqtt import lastwords
from protocols.mqtt.lastwords import LastWords
from protocols.mqtt.records import SessionRecord, WillRecord, encode_session

CONNECTED = SessionRecord(
    tenant="",
    client_id="c",
    gateway="gw-1",
    gateway_epoch=1,
    owner_epoch=1,
    incarnation=1,
    is_connected=True,
    expiry_s=60,
    will=WillRecord(topic="w", payload=b"x"),
)
ENDED = msgspec.structs.replace(CONNECTED, is_connected=False, will=None)


class Table:
    """A directory of one record."""

    def __init__(self, record: SessionRecord, *, is_live: bool = True) -> None:
        self.record, self._is_live = record, is_live
        self.looked = asyncio.Event()

    def get(self, key: str) -> Record:
        self.looked.set()
        return Record(self.record.key, encode_session(self.record), 1)

    def is_live(self, gateway: str, epoch: int) -> bool:
        return self._is_live


def words(table: Table) -> LastWords:
    return LastWords(cast(Directory, table))


async def test_an_orderly_end_is_waited_for() -> None:
    """Whatever else is written meanwhile."""
    table = Table(CONNECTED)
    last_words = words(table)
    hearing = asyncio.create_task(last_words.hear("k", clean_start=False))
    await table.looked.wait()
    for record in (msgspec.structs.replace(CONNECTED, next_id=7), ENDED):
        assert not hearing.done()
        table.record = record
        last_words.changed("another")
        last_words.changed("k")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await hearing


async def test_one_that_is_connected_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lastwords, "HEARD_S_MAX", 0.0)
    await words(Table(CONNECTED)).hear("k", clean_start=False)


@pytest.mark.parametrize(
    ("record", "is_live", "clean_start"),
    [
        (ENDED, True, True),
        (ENDED, True, False),
        (msgspec.structs.replace(CONNECTED, will=None), True, True),
        (msgspec.structs.replace(CONNECTED, will=None, expiry_s=0), True, False),
        (CONNECTED, False, True),  # its gateway is dead: others speak for it
    ],
)
async def test_nobody_waits_where_nothing_is_at_stake(
    record: SessionRecord, is_live: bool, clean_start: bool
) -> None:
    hearing = words(Table(record, is_live=is_live)).hear("k", clean_start=clean_start)
    with pytest.raises(StopIteration):
        hearing.send(None)
