"""
HELLO, SEND, SETTLE, FENCE and once-keys: a gateway makes itself known and hands in frames.

Frames are numbered and run once; the engine judges (store page, rule 11). A fenced epoch is
told GO_AWAY, one whose presence has ended SERVICE_NOT_AVAILABLE until it says HELLO anew.
"""

from protocols import clock
from protocols.canonical import ONCE_BYTES
from protocols.errors import Code, PeerError, Refused
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import (
    Closing,
    Fence,
    Hello,
    HelloAnswer,
    PrivateCode,
    Settle,
    encode_body,
)
from protocols.remoting.records import RECORD_BYTES_MIN
from protocols.remoting.sending import decode_send, encode_send_answer
from store.handlers.bodies import decode
from store.handlers.checks import I64_MAX, check_name, require
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.presence import GatewayKey

FEATURES = ("streams", "pop", "retained", "directory")


def hello(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Who connects; repeated, it is a sign of life and tells the lease's age."""
    told = decode(request, Hello)
    check_name(told.gateway, "gateway")
    require(0 <= told.gateway_epoch <= I64_MAX, told.gateway, f"epoch {told.gateway_epoch}")
    now = clock.read()
    key = GatewayKey(told.gateway, told.gateway_epoch)
    if told.gateway_epoch:
        if context.engine.gateways.is_fenced(*key):
            return request.answer(ResponseCode.GO_AWAY, remark="this gateway epoch is fenced")
        renewed_at = now.monotonic - told.lease_renewed_ms_ago / 1000
        if not context.presences.may_enter(key, renewed_at=renewed_at, opened_at=connection.opened):
            return request.answer(
                ResponseCode.SERVICE_NOT_AVAILABLE, remark="renew the lease first"
            )
        before = connection.presence
        if before is not None and before.key != key:
            context.presences.leave(before, connection, now.monotonic)
        connection.presence = context.presences.enter(
            key, connection, is_control=told.is_control, now=now.monotonic
        )
    connection.gateway = key
    connection.is_control = told.is_control
    answer = HelloAnswer(
        cluster=context.config.cluster,
        broker=context.config.name,
        advertise=context.ip_address,
        log_id=context.engine.log_id,
        store_epoch=context.engine.epoch,
        is_directory_store=context.config.directory,
        last_frame=context.engine.gateways.last_frame(*key),
        features=FEATURES,
        now_ms=now.wall_ms,
    )
    return request.answer(body=encode_body(answer))


def send(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """A numbered frame of messages; answered when it is durable."""
    gateway = live_gateway(context, connection, request)
    if isinstance(gateway, RemotingCommand):
        return gateway
    frame = decode_send(request.body)
    if frame.gateway_epoch != gateway.epoch:
        raise Refused(Code.PRECONDITION_FAILED, gateway.gateway, "frame of another epoch")
    if frame.item_count and frame.length_min < RECORD_BYTES_MIN:
        raise PeerError(f"SEND frame: a record of {frame.length_min} bytes")
    pending = context.engine.send(gateway.gateway, frame, clock.read())
    context.when_durable(
        connection, request, pending, lambda answer: request.answer(body=encode_send_answer(answer))
    )
    return None


def settle(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """What became of a frame whose answer was lost."""
    asked = decode(request, Settle)
    require(0 < asked.frame <= I64_MAX, asked.gateway, f"frame {asked.frame}")
    require(0 < asked.gateway_epoch <= I64_MAX, asked.gateway, f"epoch {asked.gateway_epoch}")
    pending = context.engine.gateways.settle(
        asked.gateway, asked.gateway_epoch, asked.frame, clock.read()
    )
    context.when_durable(
        connection, request, pending, lambda answer: request.answer(body=encode_body(answer))
    )
    return None


def fence(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Refuse an epoch for good; its streams end at once, the answer waits for the disk."""
    told = decode(request, Fence)
    check_name(told.gateway, "gateway")
    require(0 < told.gateway_epoch <= I64_MAX, told.gateway, f"epoch {told.gateway_epoch}")
    now = clock.read()
    pending = context.engine.gateways.fence(told.gateway, told.gateway_epoch, now)
    context.end_gateway(
        GatewayKey(told.gateway, told.gateway_epoch), Code.PRECONDITION_FAILED, "fenced", now
    )
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def release_once(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Once-keys whose exchange is over; answered when that is on disk."""
    pending = context.engine.gateways.release_once(_once_keys(request), clock.read())
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def find_once(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Which once-keys have a message here; answered when those are on disk."""
    pending = context.engine.gateways.find_once(_once_keys(request), clock.read())
    context.when_durable(connection, request, pending, lambda found: request.answer(body=found))
    return None


def tell_closing(context: Context) -> None:
    """To gateways, when everything of theirs that has run is answered."""
    body = encode_body(Closing(exchange_count=context.engine.gateways.exchange_count))
    command = RemotingCommand(PrivateCode.CLOSING, None, body, is_binary=True)
    for presence in context.presences.live():
        for link in presence.data:
            if isinstance(link, Connection) and link.is_open:
                link.peer.send_oneway(command)


def _once_keys(request: RemotingCommand) -> list[bytes]:
    size = ONCE_BYTES
    require(len(request.body) % size == 0, "once-keys", f"{len(request.body)} bytes")
    body = bytes(request.body)
    return [body[at : at + size] for at in range(0, len(body), size)]


def live_gateway(
    context: Context, connection: Connection, request: RemotingCommand
) -> GatewayKey | RemotingCommand:
    """The gateway behind *connection*, or the answer that refuses it."""
    key = connection.gateway
    if key is None or not key.epoch:
        raise Refused(Code.FORBIDDEN, connection.address, "say HELLO with a gateway epoch first")
    if context.engine.gateways.is_fenced(*key):
        return request.answer(ResponseCode.GO_AWAY, remark="this gateway epoch is fenced")
    if connection.presence is None or connection.presence.is_ended:
        return request.answer(
            ResponseCode.SERVICE_NOT_AVAILABLE, remark="presence has ended: say HELLO again"
        )
    return key


HANDLERS: dict[int, Handler] = {
    PrivateCode.HELLO: hello,
    PrivateCode.SEND: send,
    PrivateCode.SETTLE: settle,
    PrivateCode.FENCE: fence,
    PrivateCode.ONCE_RELEASE: release_once,
    PrivateCode.ONCE_FIND: find_once,
}
