"""Bodies of private requests and JSON bodies of standard ones, decoded or refused."""

from typing import TypeVar

import msgspec

from protocols.errors import MALFORMED, Code, Refused
from protocols.remoting.command import RemotingCommand

S = TypeVar("S")


def decode(request: RemotingCommand, kind: type[S]) -> S:
    """The msgpack body as *kind*. Raises Refused(BAD_REQUEST) if it is none."""
    try:
        return msgspec.msgpack.decode(request.body, type=kind)
    except MALFORMED as error:
        raise Refused(
            Code.BAD_REQUEST, f"request {request.code}", f"body is no {kind.__name__}: {error}"
        ) from error
