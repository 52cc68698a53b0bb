"""JSON bodies: as Java writes them, read; as Java reads them, written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import PeerError
from protocols.remoting import bodies, handles
from protocols.remoting.nearly_json import parse

# Captured from a 5.4.0 name server and broker.
CLUSTER = (
    b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:20911"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}},'
    b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
)
OFFSETS = (
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":1,'
    b'"maxOffset":4,"minOffset":0}}}'
)
HEARTBEAT = (
    b'{"clientID":"10.0.0.2@i4","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"G","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2669],"expressionType":"TAG",'
    b'"subString":"TA","subVersion":5,"tagsSet":["TA"],"topic":"T","filterClassSource":null}],'
    b'"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"P"}],'
    b'"withoutSub":false}'
)


def test_unquoted_numeric_keys() -> None:
    """Java's cluster info is read though its keys are no JSON."""
    info = bodies.decode_body(bodies.ClusterInfo, CLUSTER)
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "127.0.0.1:20911"}
    assert info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}


def test_object_keys() -> None:
    """Maps with object keys are read with the key as its sorted members."""
    table = parse(OFFSETS)["offsetTable"]
    key = (("brokerName", "b"), ("queueId", "0"), ("topic", "T"))
    assert table[key]["maxOffset"] == 4


def test_object_keys_are_written_as_java_does() -> None:
    queue = bodies.MessageQueue(topic="T", broker_name="b", queue_id=0)
    offset = bodies.TopicOffset(min_offset=0, max_offset=4, last_update_timestamp=1)
    data = bodies.encode_object_map("offsetTable", [(queue, offset)], topicPutTps=0.5)
    assert data.startswith(b'{"offsetTable":{{"topic":"T","brokerName":"b","queueId":0}:{')
    assert data.endswith(b',"topicPutTps":0.5}')
    assert parse(data)["topicPutTps"] == 0.5


def test_heartbeat() -> None:
    """A Java heartbeat; null and unknown members are ignored."""
    beat = bodies.decode_body(bodies.HeartbeatData, HEARTBEAT)
    assert (beat.client_id, beat.producer_data_set[0].group_name) == ("10.0.0.2@i4", "P")
    (consumer,) = beat.consumer_data_set
    assert consumer.subscription_data_set[0].tags_set == ["TA"]


def test_a_heartbeat_of_the_cpp_client() -> None:
    """It writes enums as numbers and a version as text, as fastjson reads them."""
    data = b"""{"clientID":"1@2","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,
        "groupName":"g","messageModel":0,"subscriptionDataSet":[{"codeSet":[97],"subString":"a",
        "subVersion":"1732","tagsSet":["a"],"topic":"t"}]}],"producerDataSet":[{"groupName":"p"}]}"""
    (group,) = bodies.decode_body(bodies.HeartbeatData, data).consumer_data_set
    assert (group.consume_type, group.message_model) == ("CONSUME_PASSIVELY", "BROADCASTING")
    assert group.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert group.subscription_data_set[0].sub_version == 1732
    with pytest.raises(PeerError):
        bodies.decode_body(bodies.HeartbeatData, data.replace(b'Model":0', b'Model":2'))


def test_route_has_all_members() -> None:
    """Keys in quotes, lists always there, absent texts absent."""
    route = bodies.RouteData(
        queue_datas=[bodies.QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=4)],
        broker_datas=[bodies.BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:1"})],
    )
    assert json.loads(bodies.encode_route(route)) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "h:1"},
                "brokerName": "b",
                "cluster": "c",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "b",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }
    assert bodies.decode_body(bodies.RouteData, bodies.encode_route(route)) == route


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(json_values, st.integers(0, 99))
def test_tolerant_parser_agrees_with_json(value: object, number: int) -> None:
    """What is JSON reads the same by the tolerant parser (forced by an unquoted key)."""
    text = json.dumps(value)
    found = parse(f'{{{number}:1, "v" : {text} }}'.encode())
    assert found == {str(number): 1, "v": json.loads(text)}


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(st.text(alphabet='{}[]:,"01a \\', max_size=40))
def test_garbage_is_a_peer_error(text: str) -> None:
    try:
        parse(text.encode())
    except PeerError:
        return


def test_text_that_is_no_text_is_a_peer_error() -> None:
    """Found by mutation: msgspec raises UnicodeDecodeError, which is none of its own errors."""
    for data in (b'{"a\xd7": nope}', b'{"clientID": "\xd7 "}', b"\xd7"):
        with pytest.raises(PeerError):
            bodies.decode_body(bodies.HeartbeatData, data)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(PeerError):
        parse(b"[" * 100_000)


def test_wrong_types_are_a_peer_error() -> None:
    with pytest.raises(PeerError, match="HeartbeatData"):
        bodies.decode_body(bodies.HeartbeatData, b'{"clientID":{}}')


def test_pop_handle() -> None:
    """The example of the fact sheet, there and back."""
    text = "0 1795248311648 60000 4 0 broker-a 1 0"
    handle = handles.parse_pop_handle(text)
    assert handle is not None
    assert (handle.popped_ms, handle.revive_queue_id, handle.broker) == (
        1795248311648,
        4,
        "broker-a",
    )
    assert handle.encode() == text
    assert handles.parse_pop_handle(f"{text} 7454") == handle  # as Apache's proxy has it
    assert handles.parse_pop_handle("1 2 3") is None
    assert handles.parse_pop_handle("x 2 3 4 0 b 1 0") is None


def test_pop_offset_tables() -> None:
    """As seen: ``0 1 0,1,3;0 0 1,2;0 3 1``."""
    text = "0 1 0,1,3;0 0 1,2;0 3 1"
    table = handles.decode_message_offsets(text)
    assert table == {("0", 1): [0, 1, 3], ("0", 0): [1, 2], ("0", 3): [1]}
    assert handles.encode_message_offsets(table) == text
    starts = handles.decode_start_offsets("0 1 0;1 0 7")
    assert starts == {("0", 1): 0, ("1", 0): 7}
    assert handles.encode_start_offsets([("0", 1, 0), ("1", 0, 7)]) == "0 1 0;1 0 7"


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(st.sets(st.integers(0, 200)))
def test_bit_set(bits: set[int]) -> None:
    """Java's BitSet.toByteArray in base64."""
    assert set(handles.decode_bit_set(handles.encode_bit_set(bits))) == bits
