"""
Counts for tools: 315 (a statistic), 317 (all consumers), 328 (all producers).

What was put into a topic is read from the log itself (offsets by time), so that it is exact, is
there after a restart and costs nothing on the way in; what was handed out is counted.
"""

from typing import Final

from protocols import clock
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import bool_field, text_field
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.rates import DAY_S, HOUR_S, MINUTE_S
from store.handlers.subscription_groups import consume_offsets, group_config

SPANS: Final = (("statsMinute", MINUTE_S), ("statsHour", HOUR_S), ("statsDay", DAY_S))
TOPIC_PUT: Final = "TOPIC_PUT_NUMS"
GROUP_SIZE: Final = "GROUP_GET_SIZE"
GROUP_STATS: Final = {
    "GROUP_GET_NUMS": "get",
    "GROUP_ACK_NUMS": "ack",
    "SNDBCK_PUT_NUMS": "back",
}
"""``BrokerStatsManager``'s names and what they are called in ``Context.rates``."""

BROKER_STATS: Final = {"BROKER_PUT_NUMS": "put", "BROKER_GET_NUMS": "get"}
"""The same of all that the store does; their key is the cluster."""


def sample(context: Context, now: float) -> None:
    """Remember where the counts stand; called about once a second."""
    context.counters.sample(context.engine, now)
    _, stored, taken = context.counters.recent[-1]
    context.rates.note("put", stored, now)
    context.rates.note("get", taken, now)


def view_statistic(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """One statistic over the last minute, hour and day (315)."""
    name, key = text_field(request.fields, "statsName"), text_field(request.fields, "statsKey")
    now = clock.monotonic()
    if name == TOPIC_PUT and context.topic(key) is not None:
        sums = [put_count(context, key, span) for _, span in SPANS]
    elif name in BROKER_STATS and key == context.config.cluster:
        sums = [context.rates.since(BROKER_STATS[name], now - span) for _, span in SPANS]
    elif name == GROUP_SIZE and context.rates.has(f"get {key}"):
        sums = [context.rates.size_since(f"get {key}", now - span) for _, span in SPANS]
    elif name in GROUP_STATS and context.rates.has(f"{GROUP_STATS[name]} {key}"):
        sums = [context.rates.since(f"{GROUP_STATS[name]} {key}", now - span) for _, span in SPANS]
    else:
        return request.answer(
            ResponseCode.SYSTEM_ERROR, remark=f"The stats <{name[:60]}> <{key[:255]}> not exist"
        )
    body = {
        span_name: {"sum": count, "tps": round(count / span, 2), "avgpt": 0.0}
        for (span_name, span), count in zip(SPANS, sums, strict=True)
    }
    return request.answer(body=bodies.encode_body(body))


def put_count(context: Context, topic: str, span_s: float) -> int:
    """Messages stored in *topic* within the last *span_s* seconds."""
    config = context.topic(topic)
    start_ms = clock.wall_ms() - int(span_s * 1000)
    count = 0
    for queue_id in range(config.write_queue_count if config is not None else 0):
        _, high = context.engine.offset_range(topic, queue_id)
        count += high - context.engine.offset_by_time(topic, queue_id, start_ms)
    return count


def all_consumers(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Progress of every group on every topic (317)."""
    only_ordered = bool_field(request.fields, "isOrder")
    parts: list[bytes] = []
    behind = in_flight = 0
    for group in context.groups_seen():
        config = group_config(context, group)
        if only_ordered and (config is None or not config.consume_message_orderly):
            continue
        items = consume_offsets(context, group)
        if not items:
            continue
        behind += sum([wrapper.broker_offset - wrapper.consumer_offset for _, wrapper in items])
        in_flight += sum([wrapper.pull_offset - wrapper.consumer_offset for _, wrapper in items])
        stats = bodies.encode_object_map("offsetTable", items, consumeTps=0.0)
        parts.append(b"{" + bodies.encode_text(group) + b":[" + stats + b"]}")
    head = bodies.encode_body(
        {
            "brokerAddr": context.address,
            "totalDiff": behind,
            "totalInflightDiff": in_flight,
        }
    )
    body = head[:-1] + b',"consumeStatsList":[' + b",".join(parts) + b"]}"
    return request.answer(body=body)


def all_producers(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Every producer that sends heartbeats, by group (328)."""
    now = clock.read()
    data = {
        group: [
            {
                "clientId": client.client_id,
                "remoteIP": f"/{client.link.address}",
                "language": client.language,
                "version": client.version,
                "lastUpdateTimestamp": now.wall_ms - int((now.monotonic - client.heard) * 1000),
            }
            for client in context.clients.producers(group)
        ]
        for group in context.clients.producer_groups()
    }
    return request.answer(body=bodies.encode_body({"data": data}))


HANDLERS: dict[int, Handler] = {
    RequestCode.VIEW_BROKER_STATS_DATA: view_statistic,
    RequestCode.GET_BROKER_CONSUME_STATS: all_consumers,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
}
