"""The sessions of one gateway over a directory in memory, without sockets and without time."""

import asyncio

from protocols.canonical import Call, Identity
from protocols.directory import Put
from protocols.mqtt.records import SessionRecord, decode_session, encode_session
from protocols.mqtt.sessions import Opening, Sessions
from tests.support.fake_services import FakeServices


class Holder:
    """A connection, and how often it was told that another one has the session."""

    def __init__(self) -> None:
        self.taken_count = 0
        self.gone = asyncio.Event()
        self.gone.set()

    def take_over(self) -> None:
        self.taken_count += 1

    async def left(self) -> None:
        await self.gone.wait()


def opening(
    *, expiry_s: int = 0, identity: str = "x", clean: bool | None = None, guarded: bool = False
) -> Opening:
    """A CONNECT of the client id ``c``; *clean* None: it resumes what is kept."""
    call = Call(protocol="mqtt", listener="mqtt", identity=Identity(name=identity), client_id="c")
    clean_start = not expiry_s if clean is None else clean
    return Opening(call, clean_start, expiry_s, None, is_guarded=guarded)


class World:
    """One gateway's sessions over a record that is there."""

    def __init__(self, record: SessionRecord) -> None:
        self.services = FakeServices()
        self.broker, self.key = self.services.broker, record.key
        self.write(record)
        self.sessions = Sessions(self.services)

    def write(self, record: SessionRecord) -> None:
        """As another gateway would, whatever was there."""
        self.broker.write(Put(record.key, encode_session(record)), "gw-2", 1)

    @property
    def record(self) -> SessionRecord:
        value = self.broker.records[self.key].value
        assert value is not None
        return decode_session(value)

    @property
    def is_over(self) -> bool:
        """The session has ended."""
        return self.key not in self.broker.records

    @property
    def sent(self) -> list[bytes]:
        """Bodies of what was published, or tried to be."""
        return [bytes(message.body) for message in self.services.pipeline.sent]
