"""The store about itself (28)."""

from protocols import clock
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import VERSION, RemotingCommand
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.metrics import collect


def runtime_info(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """
    Name → text: what Apache's clusterList and brokerStatus read (28), and the store's own
    counters by their metric names (``commits_total`` is one fdatasync each).
    """
    engine = context.engine
    put_rate, get_rate = context.counters.rates()
    uptime_s = int(clock.monotonic() - context.started.monotonic)
    rates = f"{put_rate:.2f} {put_rate:.2f} {put_rate:.2f}"
    got = f"{get_rate:.2f} {get_rate:.2f} {get_rate:.2f}"
    own = collect(engine, context.counters)
    table = {
        **{name: f"{value:.10g}" for name, value in own.items()},
        "brokerVersionDesc": "V5_4_0",
        "brokerVersion": str(VERSION),
        "bootTimestamp": str(context.started.wall_ms),
        "runtime": f"[ {uptime_s // 86400} days, {uptime_s // 3600 % 24} hours, "
        f"{uptime_s // 60 % 60} minutes, {uptime_s % 60} seconds ]",
        "brokerActive": "true" if context.counters.is_healthy else "false",
        "putTps": rates,
        "getTotalTps": got,
        "getTransferredTps": got,
        "getFoundTps": got,
        "getMissTps": "0.00 0.00 0.00",
        "msgPutTotalTodayNow": str(engine.counters.records),
        "msgPutTotalTodayMorning": "0",
        "msgPutTotalYesterdayMorning": "0",
        "msgGetTotalTodayNow": str(engine.counters.granted + context.counters.pulled),
        "msgGetTotalTodayMorning": "0",
        "msgGetTotalYesterdayMorning": "0",
        "sendThreadPoolQueueSize": "0",
        "sendThreadPoolQueueCapacity": str(context.config.limits.pending_bytes_max),
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": str(len(context.waits)),
        "pullThreadPoolQueueCapacity": str(context.config.limits.waiting_max),
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "queryThreadPoolQueueSize": "0",
        "queryThreadPoolQueueCapacity": "0",
        "queryThreadPoolQueueHeadWaitTimeMills": "0",
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "0",
        "pageCacheLockTimeMills": "0",
        "commitLogDiskRatio": f"{engine.room.log_bytes / context.config.limits.log_bytes_max:.4f}",
        "commitLogMinOffset": "0",
        "commitLogMaxOffset": str(engine.end),
        "consumeQueueDiskRatio": "0.0",
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "earliestMessageTimeStamp": "-1",
        "remainTransientStoreBufferNumbs": "2147483647",
    }
    return request.answer(body=bodies.encode_body(bodies.KvTable(table=table)))


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
}
