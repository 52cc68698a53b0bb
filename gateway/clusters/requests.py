"""Requests to one of our stores that are answered by one body, on the connection for messages."""

from typing import Final

import msgspec

from gateway.clusters.connection import StoreConnection, packed
from gateway.clusters.link import refusal_of
from protocols.errors import Code, Refused
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import PrivateCode

REQUEST_S_MAX: Final = 5.0


class StoreRequests:
    """Raise Refused where the store cannot be reached."""

    def __init__(self, connection: StoreConnection, broker: str) -> None:
        self._connection = connection
        self._broker = broker

    def client(self) -> RemotingClient:
        if self._connection.data is None:
            raise Refused(Code.HA_NOT_AVAILABLE, self._broker, "the store cannot be reached")
        return self._connection.data

    async def request(
        self, code: PrivateCode, body: msgspec.Struct | bytes, *, timeout_s: float = REQUEST_S_MAX
    ) -> RemotingCommand:
        return await self.client().request(packed(code, body), timeout_s)

    async def done(
        self, code: PrivateCode, body: msgspec.Struct | bytes, subject: str, *, but: Code = Code.OK
    ) -> None:
        """A request whose answer has no body; a refusal with the code *but* is fine too."""
        answer = await self.request(code, body)
        if answer.code != ResponseCode.SUCCESS:
            error = refusal_of(answer, subject)
            if error.code != but:
                raise error
