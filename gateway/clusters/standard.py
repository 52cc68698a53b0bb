"""Requests that any RocketMQ broker or name server answers, ours and Apache's alike."""

from collections.abc import Mapping
from typing import Final

from gateway.clusters.link import refusal_of
from protocols.canonical import StoredMessage
from protocols.remoting.bodies import (
    ClusterInfo,
    KVTable,
    RouteData,
    TopicConfig,
    TopicList,
    decode_body,
)
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import PullFlag, RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import int_field
from protocols.remoting.inner_batches import unpacked
from protocols.remoting.private import IF_ABSENT
from protocols.remoting.records import decode_records

REQUEST_S_MAX: Final = 3.0
READ_GROUP: Final = "TIDEGATE_READER"
"""Reads by offset have no group; brokers want a name."""

NODES_NAMESPACE: Final = "LMQ"
"""Of key-value configuration (``MetaPersistManagerSample``): first level → filters and commas."""

_EMPTY_READS: Final = frozenset(
    (
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)


async def request(
    client: RemotingClient,
    code: RequestCode,
    fields: Mapping[str, str],
    subject: str,
    *,
    timeout_s: float = REQUEST_S_MAX,
) -> RemotingCommand:
    """A standard request with a JSON header; the successful answer. Raises Refused."""
    answer = await client.request(RemotingCommand(code, dict(fields)), timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer, subject)
    return answer


async def cluster_info(client: RemotingClient) -> ClusterInfo:
    answer = await request(client, RequestCode.GET_BROKER_CLUSTER_INFO, {}, "cluster info")
    return decode_body(ClusterInfo, answer.body)


async def topics_of_cluster(client: RemotingClient, broker_cluster: str) -> list[str]:
    fields = {"cluster": broker_cluster}
    answer = await request(client, RequestCode.GET_TOPICS_BY_CLUSTER, fields, broker_cluster)
    return decode_body(TopicList, answer.body).topic_list


async def node_filters(client: RemotingClient) -> Mapping[str, tuple[str, ...]]:
    """What is configured for nodes of Apache rocketmq-mqtt; most name servers have nothing."""
    command = RemotingCommand(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": NODES_NAMESPACE})
    answer = await client.request(command, REQUEST_S_MAX)
    if answer.code != ResponseCode.SUCCESS:
        return {}
    table = decode_body(KVTable, answer.body).table
    return {first: tuple(text.split(",")) for first, text in table.items() if text}


async def route_of(client: RemotingClient, topic: str) -> RouteData | None:
    """None: no broker has the topic."""
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
    answer = await client.request(command, REQUEST_S_MAX)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer, topic)
    return decode_body(RouteData, answer.body)


async def create_topic(client: RemotingClient, topic: str, queue_count: int) -> int:
    """
    On this broker, unless it is there: how many queues it has.

    Somebody may have made it just now, and told how: the name servers need not know it yet. Ours
    decides in one step (``IF_ABSENT``), an Apache broker is asked before. Raises Refused.
    """
    known = await client.request(ask_topic(topic), REQUEST_S_MAX)
    if known.code == ResponseCode.SUCCESS:
        return decode_body(TopicConfig, known.body).write_queue_nums
    fields = {
        IF_ABSENT: "true",
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    answer = await request(client, code, fields, topic, timeout_s=5.0)
    return int_field(answer.fields, "writeQueueNums", queue_count)


def ask_topic(topic: str) -> RemotingCommand:
    """How a broker has a topic configured (351)."""
    return RemotingCommand(RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"})


async def pull(
    client: RemotingClient,
    topic: str,
    queue_id: int,
    offset: int,
    count: int,
    wait_ms: int,
    cluster: str,
    broker: str,
) -> tuple[list[StoredMessage], int, int]:
    """Read a message queue by offset: (messages, smallest offset, end offset)."""
    fields = {
        "consumerGroup": READ_GROUP,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": str(int(PullFlag.SUBSCRIPTION) | (int(PullFlag.SUSPEND) if wait_ms else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    command = RemotingCommand(RequestCode.PULL_MESSAGE, fields)
    answer = await client.request(command, wait_ms / 1000 + 5.0)
    if answer.code != ResponseCode.SUCCESS and answer.code not in _EMPTY_READS:
        raise refusal_of(answer, topic)
    messages: list[StoredMessage] = []
    if answer.code == ResponseCode.SUCCESS:
        messages = unpacked(decode_records(answer.body, cluster=cluster, broker=broker), offset)
    smallest = int_field(answer.fields, "minOffset", 0)
    return messages, smallest, int_field(answer.fields, "maxOffset", smallest)


async def search_offset(client: RemotingClient, topic: str, queue_id: int, at_ms: int) -> int:
    """Offset of the first message stored at or after *at_ms*; -1: the end; 0: the smallest."""
    fields = {"topic": topic, "queueId": str(queue_id)}
    if at_ms > 0:
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        fields["timestamp"] = str(at_ms)
    else:
        code = RequestCode.GET_MAX_OFFSET if at_ms < 0 else RequestCode.GET_MIN_OFFSET
    answer = await request(client, code, fields, topic)
    return int_field(answer.fields, "offset")
