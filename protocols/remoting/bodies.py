"""
JSON bodies of remoting commands, as structs with Java's member names.

Java's writer (fastjson 1) is not always JSON: maps with numeric keys come unquoted
(``{0:"1.2.3.4:10911"}``) and maps with object keys have the object in key position
(``{{"brokerName":"b",…}:{…}}``). ``nearly_json`` reads both; ``encode_object_map`` writes the
second form, which is what Java's tools are known to read.

Source: ``org.apache.rocketmq.remoting.protocol`` (``route``, ``body``, ``heartbeat``).
"""

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from protocols.errors import MALFORMED, PeerError
from protocols.remoting.nearly_json import parse


class _Body(msgspec.Struct, rename="camel", kw_only=True):
    """Unknown members are ignored, missing ones default, as fastjson has it."""


B = TypeVar("B", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode


def encode_body(body: msgspec.Struct | dict[str, Any] | list[Any]) -> bytes:
    """Plain JSON; integer keys are quoted, which Java's readers accept."""
    return _encode(body)


def decode_body(kind: type[B], data: bytes | memoryview) -> B:
    """*data* as *kind*. Raises PeerError."""
    try:  # nearly always plain JSON of the right types: ten times as fast, in one pass
        return msgspec.json.decode(data, type=kind, strict=False)
    except MALFORMED:
        pass
    try:
        return msgspec.convert(_as_fastjson(parse(data)), kind, strict=False, str_keys=True)
    except msgspec.MsgspecError as error:
        raise PeerError(f"body of {kind.__name__}: {error}") from error


_ORDINALS: Final[dict[str, tuple[str, ...]]] = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
}
"""Enums of a heartbeat in their order: the C++ client sends numbers."""


def _as_fastjson(value: Any) -> Any:
    """As fastjson takes it: a null member is an absent one, a number may stand for an enum."""
    if isinstance(value, dict):
        return {
            key: _named(key, _as_fastjson(item)) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [_as_fastjson(item) for item in value]
    return value


def _named(key: Any, value: Any) -> Any:
    names = _ORDINALS.get(key, ()) if type(value) is int and isinstance(key, str) else ()
    return names[value] if names and 0 <= value < len(names) else value


def encode_text(text: str) -> bytes:
    """A JSON text, for bodies put together by hand."""
    return _encode(text)


class KVTable(_Body):
    """Key-value configuration of one namespace."""

    table: dict[str, str] = {}


# ── route and registration ──────────────────────────────────────────────────────────────


class DataVersion(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Version of a broker's topic table; equal only if all three are."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class TopicConfig(_Body):
    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}


class TopicConfigWrapper(_Body):
    """``TopicConfigAndMappingSerializeWrapper``."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, Any] = {}
    topic_queue_mapping_detail_map: dict[str, Any] = {}
    mapping_data_version: DataVersion = DataVersion()


class RegisterBody(_Body):
    """``RegisterBrokerBody``."""

    topic_config_serialize_wrapper: TopicConfigWrapper = msgspec.field(
        default_factory=TopicConfigWrapper
    )
    filter_server_list: list[str] = []


class QueueData(_Body):
    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 6
    topic_sys_flag: int = 0


class BrokerData(_Body):
    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = {}
    """Broker id → address; 0 is the master."""

    enable_acting_master: bool = False
    zone_name: str | None = None


class RouteData(_Body, omit_defaults=True):
    """``TopicRouteData``."""

    queue_datas: list[QueueData] = msgspec.field(default_factory=list)
    broker_datas: list[BrokerData] = msgspec.field(default_factory=list)
    filter_server_table: dict[str, list[str]] = msgspec.field(default_factory=dict)
    order_topic_conf: str | None = None


def encode_route(route: RouteData, is_standard: bool = True) -> bytes:
    """
    Byte for byte as Apache's name server writes it: members sorted, absent texts left out.

    Not *is_standard*: broker ids unquoted, as clients before 4.9.4 have always been answered.
    """
    brokers = b",".join([_broker_data(item, is_standard) for item in route.broker_datas])
    queues = b",".join([_queue_data(item) for item in route.queue_datas])
    tail = b"]}"
    if route.order_topic_conf is not None:
        order = b',"orderTopicConf":' + _encode(route.order_topic_conf)
    else:
        order = b""
    servers = _encode(route.filter_server_table)
    return (
        b'{"brokerDatas":['
        + brokers
        + b'],"filterServerTable":'
        + servers
        + order
        + b',"queueDatas":['
        + queues
        + tail
    )


def _queue_data(item: QueueData) -> bytes:
    return (
        b'{"brokerName":%b,"perm":%d,"readQueueNums":%d,"topicSysFlag":%d,"writeQueueNums":%d}'
        % (
            _encode(item.broker_name),
            item.perm,
            item.read_queue_nums,
            item.topic_sys_flag,
            item.write_queue_nums,
        )
    )


def _broker_data(item: BrokerData, is_standard: bool) -> bytes:
    zone = b"" if item.zone_name is None else b',"zoneName":' + _encode(item.zone_name)
    return b'{"brokerAddrs":%b,"brokerName":%b,"cluster":%b,"enableActingMaster":%b%b}' % (
        _addresses(item.broker_addrs, is_standard),
        _encode(item.broker_name),
        _encode(item.cluster),
        b"true" if item.enable_acting_master else b"false",
        zone,
    )


def _addresses(addresses: dict[int, str], is_standard: bool) -> bytes:
    """A map with numeric keys; fastjson leaves them unquoted unless told otherwise."""
    form = b'"%d":%b' if is_standard else b"%d:%b"
    return b"{" + b",".join([form % (key, _encode(addresses[key])) for key in addresses]) + b"}"


class ClusterInfo(_Body):
    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


def encode_cluster_info(info: ClusterInfo) -> bytes:
    """Broker ids unquoted, whoever asks (as Apache's name server has it)."""
    brokers = [
        _encode(name) + b":" + _broker_data(item, is_standard=False)
        for name, item in info.broker_addr_table.items()
    ]
    clusters = _encode(info.cluster_addr_table)
    return b'{"brokerAddrTable":{' + b",".join(brokers) + b'},"clusterAddrTable":' + clusters + b"}"


class TopicList(_Body):
    topic_list: list[str] = []
    broker_addr: str | None = None


class KvTable(_Body):
    table: dict[str, str] = {}


class BrokerMemberGroup(_Body):
    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = {}


def encode_member_group(group: BrokerMemberGroup) -> bytes:
    """Answer of GET_BROKER_MEMBER_GROUP; broker ids unquoted."""
    return b'{"brokerMemberGroup":{"brokerAddrs":%b,"brokerName":%b,"cluster":%b}}' % (
        _addresses(group.broker_addrs, is_standard=False),
        _encode(group.broker_name),
        _encode(group.cluster),
    )


# ── clients ─────────────────────────────────────────────────────────────────────────────


class SubscriptionData(_Body):
    topic: str = ""
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ConsumerData(_Body):
    group_name: str = ""
    consume_type: str = "CONSUME_PASSIVELY"
    """CONSUME_ACTIVELY (pull), CONSUME_PASSIVELY (push), CONSUME_POP."""

    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(_Body):
    group_name: str = ""


class HeartbeatData(_Body):
    client_id: str = msgspec.field(name="clientID", default="")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class CheckClientBody(_Body):
    """``CheckClientRequestBody`` (46)."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData = msgspec.field(default_factory=SubscriptionData)


class ConsumerList(_Body):
    consumer_id_list: list[str] = []


class MessageQueue(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A message queue as Java names it."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0


class LockBody(_Body):
    """``LockBatchRequestBody`` and ``UnlockBatchRequestBody``."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: list[MessageQueue] = []
    only_this_broker: bool = False


class LockAnswer(_Body):
    lock_ok_mq_set: list[MessageQueue] = msgspec.field(name="lockOKMQSet", default_factory=list)


class QueryAssignmentBody(_Body):
    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class QueueAssignment(_Body):
    message_queue: MessageQueue
    mode: str = "PULL"
    """POP or PULL."""


class AssignmentAnswer(_Body):
    message_queue_assignments: list[QueueAssignment] = []


class RequestModeBody(_Body):
    """``SetMessageRequestModeRequestBody`` (401)."""

    topic: str = ""
    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: int = 0


class BatchAck(_Body, rename=None):
    """One entry of ``BatchAckMessageRequestBody``; one-letter names as Java has them."""

    c: str = ""
    t: str = ""
    r: str = "0"
    so: int = 0
    q: int = 0
    rq: int = 0
    pt: int = 0
    it: int = 0
    b: str = ""
    """base64 of a Java BitSet: bit i says that offset so + i is acked."""


class BatchAckBody(_Body):
    broker_name: str = ""
    acks: list[BatchAck] = []


# ── administration ──────────────────────────────────────────────────────────────────────


class ExponentialRetry(_Body):
    """``ExponentialRetryPolicy``, in ms."""

    initial: int = 5000
    max: int = 7_200_000
    multiplier: int = 2


class CustomizedRetry(_Body):
    """``CustomizedRetryPolicy``: waits in ms; empty: the default ones."""

    next: list[int] = []


class GroupRetryPolicy(_Body):
    """How long a message waits between two attempts."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetry | None = None
    customized_retry_policy: CustomizedRetry | None = None


class GroupConfig(_Body):
    """``SubscriptionGroupConfig``."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: GroupRetryPolicy = msgspec.field(default_factory=GroupRetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = {}


class GroupConfigTable(_Body):
    """``SubscriptionGroupWrapper`` (201)."""

    subscription_group_table: dict[str, GroupConfig] = {}
    forbidden_table: dict[str, dict[str, int]] = {}
    data_version: DataVersion = DataVersion()


class TopicConfigList(_Body):
    topic_config_list: list[TopicConfig] = []


class GroupConfigList(_Body):
    group_config_list: list[GroupConfig] = []


class TopicOffset(_Body):
    """Value of ``TopicStatsTable`` (202); the keys are ``MessageQueue``s."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class OffsetWrapper(_Body):
    """Value of ``ConsumeStats`` (208); the keys are ``MessageQueue``s."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


class Connection(_Body):
    client_id: str = ""
    client_addr: str = ""
    language: str = "JAVA"
    version: int = 0


class ConsumerConnection(_Body):
    connection_set: list[Connection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class ProducerConnection(_Body):
    connection_set: list[Connection] = []


def encode_object_map(
    name: str, items: Iterable[tuple[object, object]], /, **members: object
) -> bytes:
    """
    ``{"name":{ {key object}:value, … }, members…}``: a Java map whose keys are objects.

    Used by 202, 208 (``offsetTable``), 220, 221 and 222.
    """
    table = b",".join([_encode(key) + b":" + _encode(value) for key, value in items])
    rest = b"".join(
        [b"," + _encode(key) + b":" + _encode(member) for key, member in members.items()]
    )
    return b"{" + _encode(name) + b":{" + table + b"}" + rest + b"}"
