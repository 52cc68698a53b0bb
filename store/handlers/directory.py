"""
Leases and the directory: private codes 2005x, answered by the directory store alone.

RENEW is answered by every store: on those without a directory it is a sign of life, and says
whether the gateway's presence here still stands.
"""

from functools import partial

from protocols import clock
from protocols.errors import Code
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import (
    DirectoryPut,
    DirectoryPutAnswer,
    DirectoryRead,
    DirectoryRecords,
    DirectoryWait,
    DirectoryWaited,
    Join,
    Leave,
    PrivateCode,
    Renew,
    Renewed,
    encode_body,
)
from store.handlers.bodies import decode
from store.handlers.checks import check_name, require
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.presence import GatewayKey

DIRECTORY_WAKE = "directory"
"""What long reads of the directory wait for."""

APPLIED_WAKE = "applied"
"""What barriers wait for: a gateway has applied more, or a lease has ended."""

WAIT_MS_MAX = 60_000
RECORDS_MAX = 10_000


def join(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Grant a lease; the version of its record is the gateway's epoch."""
    context.require_directory()
    asked = decode(request, Join)
    check_name(asked.gateway, "gateway")
    pending = context.engine.gateways.join(asked, clock.read())
    context.when_durable(
        connection, request, pending, lambda joined: request.answer(body=encode_body(joined))
    )
    return None


def renew(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Prolong a lease; needs no disk."""
    told = decode(request, Renew)
    if not context.config.directory:
        presence = context.presences.find(GatewayKey(told.gateway, told.gateway_epoch))
        answer = Renewed(is_live=presence is not None, lease_ms=context.config.silence_ms_max)
        return request.answer(body=encode_body(answer))
    is_live = context.engine.gateways.renew(
        told.gateway, told.gateway_epoch, told.applied, clock.read()
    )
    context.waits.wake(APPLIED_WAKE)
    answer = Renewed(is_live=is_live, lease_ms=context.config.lease_ms if is_live else 0)
    return request.answer(body=encode_body(answer))


def leave(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Graceful end of a lease, and of the presence at this store."""
    told = decode(request, Leave)
    context.require_directory()
    now = clock.read()
    pending = context.engine.gateways.leave(told.gateway, told.gateway_epoch, now)
    key = GatewayKey(told.gateway, told.gateway_epoch)
    context.end_gateway(key, Code.HA_NOT_AVAILABLE, "the gateway has left", now)
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def put(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Conditional writes; a loser gets the winner's record."""
    context.require_directory()
    asked = decode(request, DirectoryPut)
    require(len(asked.writes) <= RECORDS_MAX, "directory", f"more than {RECORDS_MAX} writes")
    for write in asked.writes:
        check_name(write.key, "directory key")
    pending = context.engine.gateways.directory_put(
        asked.gateway, asked.gateway_epoch, asked.writes, clock.read()
    )
    context.when_durable(
        connection,
        request,
        pending,
        lambda results: request.answer(body=encode_body(DirectoryPutAnswer(results=results))),
    )
    return None


def read(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Records after a version; waits for one if asked to."""
    context.require_directory()
    asked = decode(request, DirectoryRead)

    def answer(is_final: bool) -> bool:
        count = max(1, min(asked.count_max, RECORDS_MAX))
        records, covered = context.engine.gateways.directory_read(asked.after, count)
        if not records and not is_final:
            return False
        body = DirectoryRecords(
            records=records, head=covered, is_more=covered < context.engine.gateways.directory_head
        )
        connection.answer(request, request.answer(body=encode_body(body)))
        return True

    if not answer(is_final=asked.wait_ms <= 0):
        context.waits.add(
            connection,
            (DIRECTORY_WAKE,),
            wait_s=min(asked.wait_ms, WAIT_MS_MAX) / 1000,
            wake=partial(answer, False),
            expire=partial(answer, True),
        )
    return None


def wait_applied(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """The barrier: answered when every gateway with a lease has applied a version."""
    context.require_directory()
    asked = decode(request, DirectoryWait)

    def answer(is_final: bool) -> bool:
        is_applied = not context.engine.gateways.not_applied(asked.version)
        if not is_applied and not is_final:
            return False
        ended = context.engine.gateways.leases_ended_since(asked.version)
        body = DirectoryWaited(is_applied=is_applied, ended=ended)
        connection.answer(request, request.answer(body=encode_body(body)))
        return True

    if not answer(is_final=asked.timeout_ms <= 0):
        context.waits.add(
            connection,
            (APPLIED_WAKE, DIRECTORY_WAKE),
            wait_s=min(asked.timeout_ms, WAIT_MS_MAX) / 1000,
            wake=partial(answer, False),
            expire=partial(answer, True),
        )
    return None


HANDLERS: dict[int, Handler] = {
    PrivateCode.JOIN: join,
    PrivateCode.RENEW: renew,
    PrivateCode.LEAVE: leave,
    PrivateCode.DIRECTORY_PUT: put,
    PrivateCode.DIRECTORY_READ: read,
    PrivateCode.DIRECTORY_WAIT: wait_applied,
}
