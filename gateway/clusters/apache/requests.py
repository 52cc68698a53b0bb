"""
The standard requests the link makes, as commands.

Field names: ``SendMessageRequestHeaderV2``, ``PullMessageRequestHeader``,
``UpdateConsumerOffsetRequestHeader`` and their like of Apache RocketMQ 5.
"""

import base64
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from protocols.canonical import QueueRef, StoredMessage
from protocols.remoting.codes import PullFlag, RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.inner_batches import packed

PRODUCER_GROUP: Final = "TIDEGATE"
LIGHT_TOPIC: Final = "tidegate_light"
"""Holds messages that only light queues want; a record must stand in some topic."""

LIGHT_PREFIX: Final = "%LMQ%"
EXTRA: Final = "extData"
"""Where nodes of rocketmq-mqtt look for the QoS of a publish."""

TEMPLATE_TOPIC: Final = "TBW102"
QUEUE_COUNT: Final = 4
PULL_COUNT_MAX: Final = 32
"""``maxTransferCountOnMessageInMemory``: Apache gives no more at once."""

PULL_BYTES_MAX: Final = 256 << 10
PULL_SUSPEND_MS: Final = 15_000
COMMIT_BIAS: Final = 1 << 40
"""Added to committed offsets of light queues. A broker answers 0 for a group that has none while
the queue's head is in memory; with the bias "none" and "at 0" are different answers."""


def light_topic(queue: QueueRef) -> str:
    """The name under which Apache keeps a light queue."""
    return LIGHT_PREFIX + _base32(queue.key())


def light_group(name: str) -> str:
    """The consumer group of our group *name*; ``%LMQ%`` groups need no configuration there."""
    return f"{LIGHT_PREFIX}G{_base32(blake2b(name.encode(), digest_size=16).digest())}"


def _base32(value: bytes) -> str:
    return base64.b32encode(value).decode().rstrip("=")


def send(
    broker: str, message: StoredMessage, dispatch: Sequence[str], extra: str = ""
) -> RemotingCommand:
    """SEND_MESSAGE_V2 of an encoded record; *dispatch*: light queues that list it too."""
    properties = message.properties_text.decode("utf-8", "replace")
    if dispatch:
        properties += f"INNER_MULTI_DISPATCH\x01{','.join(dispatch)}\x02"
    if extra:
        properties += f"{EXTRA}\x01{extra}\x02"
    fields = _send_fields(broker, message, properties)
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, message.body)


def send_batch(broker: str, members: Sequence[StoredMessage], batch_id: str) -> RemotingCommand:
    """SEND_BATCH_MESSAGE of encoded records, to a topic that keeps them together."""
    properties = f"UNIQ_KEY\x01{batch_id}\x02WAIT\x01true\x02"
    fields = _send_fields(broker, members[0], properties) | {"f": "0", "h": "0", "m": "true"}
    return RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, fields, packed(members))


def _send_fields(broker: str, message: StoredMessage, properties: str) -> dict[str, str]:
    return {
        "a": PRODUCER_GROUP,
        "b": message.topic,
        "c": TEMPLATE_TOPIC,
        "d": str(QUEUE_COUNT),
        "e": str(message.queue_id),
        "f": str(message.sys_flag),
        "g": str(message.born_ms),
        "h": str(message.flag),
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": broker,
    }


def heart_beat(client_id: str) -> RemotingCommand:
    """HEART_BEAT as a producer: keeps the connection from being taken for idle."""
    body = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": PRODUCER_GROUP}],
        "consumerDataSet": [],
        "heartbeatFingerprint": 0,
        "withoutSub": False,
    }
    return RemotingCommand(RequestCode.HEART_BEAT, None, msgspec.json.encode(body))


def pull(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    count: int,
    *,
    broker: str,
    suspend_ms: int = 0,
) -> RemotingCommand:
    """PULL_MESSAGE without a filter; *suspend_ms*: long poll."""
    flag = PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if suspend_ms else 0)
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "maxMsgBytes": str(PULL_BYTES_MAX),
        "sysFlag": str(int(flag)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        "bname": broker,
    }
    return RemotingCommand(RequestCode.PULL_MESSAGE, fields)


def offset(code: RequestCode, topic: str, queue_id: int, broker: str) -> RemotingCommand:
    """GET_MIN_OFFSET or GET_MAX_OFFSET."""
    return RemotingCommand(
        code, {"topic": topic, "queueId": str(queue_id), "bname": broker, "committed": "true"}
    )


def query_committed(group: str, topic: str, broker: str) -> RemotingCommand:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "setZeroIfNotFound": "false",
        "bname": broker,
    }
    return RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def commit(group: str, topic: str, value: int, broker: str) -> RemotingCommand:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "commitOffset": str(value),
        "bname": broker,
    }
    return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
