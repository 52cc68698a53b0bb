"""
A blocking remoting client for Spark's worker processes: routes, offsets and reads.

Spark calls the reader from plain Python processes without an event loop, so this is the one
place where the shared codec meets a blocking socket. One connection per address, opened on
first use, re-opened once when a request finds it dead.
"""

import socket
from typing import NamedTuple, Self

import msgspec

from protocols.canonical import StoredMessage
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.frame import encode_command, take_commands
from protocols.remoting.records import decode_records

CONNECT_S_MAX = 5.0
REQUEST_S_MAX = 15.0
READ_COUNT_MAX = 512
"""Messages asked for per pull; Apache brokers cut it to 32 themselves."""

READ_BYTES_MAX = 2 << 20
SUBSCRIPTION_IN_HEADER = 4  # PullSysFlag.FLAG_SUBSCRIPTION
PERMISSION_READ = 4


class SourceError(RuntimeError):
    """The store or name server declined, or a queue no longer holds what was asked for."""


class MessageQueue(NamedTuple):
    """One shard of a topic; ``name`` is its key in Spark's offset dictionaries."""

    broker: str
    address: str
    queue_id: int

    @property
    def name(self) -> str:
        return f"{self.broker}/{self.queue_id}"


class ReadResult(NamedTuple):
    messages: list[StoredMessage]
    next_offset: int
    """Where to read on; past the end of *messages* when offsets were skipped."""

    min_offset: int


class _BrokerData(msgspec.Struct, kw_only=True):
    brokerName: str
    brokerAddrs: dict[str, str] = {}


class _QueueData(msgspec.Struct, kw_only=True):
    brokerName: str
    readQueueNums: int = 0
    perm: int = 0


class _Route(msgspec.Struct, kw_only=True):
    brokerDatas: list[_BrokerData] = []
    queueDatas: list[_QueueData] = []


class Connection:
    """One request at a time on one socket."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), CONNECT_S_MAX)
        self._socket.settimeout(REQUEST_S_MAX)
        self._received = bytearray()
        self._opaque = 0

    def request(self, command: RemotingCommand) -> RemotingCommand:
        """The answer; what the peer says unasked in between is dropped. Raises OSError."""
        self._opaque += 1
        command.opaque = self._opaque
        self._socket.sendall(encode_command(command))
        while True:
            while answers := take_commands(self._received):
                for answer in answers:
                    if answer.is_response and answer.opaque == self._opaque:
                        return answer
            chunk = self._socket.recv(1 << 20)
            if not chunk:
                raise ConnectionResetError("the peer closed the connection")
            self._received += chunk

    def close(self) -> None:
        self._socket.close()


class SourceClient:
    """Name servers and stores as a Spark task sees them. Close it, or use it in ``with``."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = [part.strip() for part in namesrv.replace(",", ";").split(";") if part]
        self._connections: dict[str, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def queues(self, topic: str) -> list[MessageQueue]:
        """The readable message queues of *topic*, sorted by name. Raises SourceError."""
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = self._ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise SourceError(f"topic '{topic}' is unknown at {';'.join(self._namesrv)}")
        route = msgspec.json.decode(_checked(answer, topic).body, type=_Route)
        masters = {data.brokerName: data.brokerAddrs.get("0", "") for data in route.brokerDatas}
        found = [
            MessageQueue(data.brokerName, masters[data.brokerName], queue_id)
            for data in route.queueDatas
            if data.perm & PERMISSION_READ and masters.get(data.brokerName)
            for queue_id in range(data.readQueueNums)
        ]
        return sorted(found, key=lambda queue: (queue.broker, queue.queue_id))

    def min_offset(self, topic: str, queue: MessageQueue) -> int:
        return self._offset(RequestCode.GET_MIN_OFFSET, topic, queue)

    def max_offset(self, topic: str, queue: MessageQueue) -> int:
        """One past the last readable message."""
        return self._offset(RequestCode.GET_MAX_OFFSET, topic, queue)

    def offset_at(self, topic: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after *timestamp_ms*."""
        return self._offset(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic, queue, timestamp=str(timestamp_ms)
        )

    def commit(self, group: str, topic: str, queue: MessageQueue, offset: int) -> None:
        """Tell the store how far *group* has come, for lag displays; not a source of truth."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(offset),
        }
        _checked(self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields), topic)

    def read(self, group: str, topic: str, queue: MessageQueue, offset: int) -> ReadResult:
        """Messages from *offset* on, at most one pull's worth; empty at the end of the queue."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(READ_COUNT_MAX),
            "maxMsgBytes": str(READ_BYTES_MAX),
            "sysFlag": str(SUBSCRIPTION_IN_HEADER),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        answer = self._ask(queue, RequestCode.PULL_MESSAGE, fields)
        next_offset = int(answer.fields.get("nextBeginOffset", offset))
        min_offset = int(answer.fields.get("minOffset", 0))
        if answer.code == ResponseCode.SUCCESS:
            return ReadResult(decode_records(answer.body), next_offset, min_offset)
        if answer.code in (
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            return ReadResult([], next_offset, min_offset)
        raise SourceError(_complaint(answer, topic))

    def _offset(self, code: RequestCode, topic: str, queue: MessageQueue, **extra: str) -> int:
        fields = {"topic": topic, "queueId": str(queue.queue_id), **extra}
        return int(_checked(self._ask(queue, code, fields), topic).fields["offset"])

    def _ask(self, queue: MessageQueue, code: int, fields: dict[str, str]) -> RemotingCommand:
        return self._request(
            queue.address, RemotingCommand(code, {**fields, "bname": queue.broker})
        )

    def _ask_namesrv(self, code: int, fields: dict[str, str]) -> RemotingCommand:
        error: OSError | None = None
        for address in self._namesrv:
            try:
                return self._request(address, RemotingCommand(code, fields))
            except OSError as failure:
                error = failure
        raise SourceError(f"no name server answers at {';'.join(self._namesrv)}") from error

    def _request(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Ask; a connection that was idle too long is opened again, once."""
        connection = self._connections.get(address)
        if connection is not None:
            try:
                return connection.request(command)
            except OSError:
                connection.close()
                del self._connections[address]
        connection = Connection(address)
        self._connections[address] = connection
        return connection.request(command)


def _checked(answer: RemotingCommand, topic: str) -> RemotingCommand:
    if answer.code != ResponseCode.SUCCESS:
        raise SourceError(_complaint(answer, topic))
    return answer


def _complaint(answer: RemotingCommand, topic: str) -> str:
    return f"the store refused to read '{topic}': code {answer.code}, {answer.remark}"
