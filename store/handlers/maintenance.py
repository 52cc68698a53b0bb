"""What tools ask a broker to tidy up (306, 316, 329), and what it says of its replicas (907)."""

from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler


def nothing_to_do(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """
    Expired index files, unused topics' files, expired log: the store tidies up by itself.

    There are no files per queue here, and retention looks at the log all the time.
    """
    return request.answer()


def replicas(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """One copy, which is the master's (907)."""
    body = {
        "master": True,
        "masterCommitLogMaxOffset": context.engine.confirmed,
        "inSyncSlaveNums": 0,
        "haConnectionInfo": [],
        "haClientRuntimeInfo": {"activated": False},
    }
    return request.answer(body=bodies.encode_body(body))


HANDLERS: dict[int, Handler] = {
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: nothing_to_do,
    RequestCode.CLEAN_UNUSED_TOPIC: nothing_to_do,
    RequestCode.DELETE_EXPIRED_COMMITLOG: nothing_to_do,
    RequestCode.GET_BROKER_HA_STATUS: replicas,
}
