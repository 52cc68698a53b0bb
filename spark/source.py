"""
``spark.readStream.format("tidegate")``: message queues by offset, replayable, bounded.

A partition is an offset range of one message queue, which is Spark's own model: a batch that
runs again reads the same messages. Offsets are ``{"<broker>/<queue id>": offset}``, keys
sorted. Sockets live in the driver's reader (offsets) and inside ``read`` (data), never in what
is pickled.

Options: ``namesrv`` and ``topic`` (required), ``group`` (shown as the consumer of the topic),
``startingOffsets`` (``earliest``, ``latest`` or ``timestamp:<ms>``), ``maxOffsetsPerTrigger``,
``failOnDataLoss`` (default true).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark.client import MessageQueue, SourceClient, SourceError
from spark.schema import MESSAGE_SCHEMA, Row, row_of

Offsets = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one ``format("tidegate")``, checked."""

    namesrv: str
    topic: str
    group: str
    starting_offsets: str
    rows_max: int | None
    """``maxOffsetsPerTrigger``; None: all that is there."""

    fails_on_data_loss: bool

    @classmethod
    def parse(cls, options: dict[str, str]) -> "SourceOptions":
        """Raises ValueError naming the option, its value and the remedy."""
        for name in ("namesrv", "topic"):
            if not options.get(name):
                raise ValueError(f"option '{name}' is missing: .option('{name}', …)")
        starting = options.get("startingOffsets", "earliest")
        kind, _, stamp = starting.partition(":")
        if starting not in ("earliest", "latest") and not (kind == "timestamp" and stamp.isdigit()):
            raise ValueError(
                f"option 'startingOffsets' is '{starting}': earliest, latest or timestamp:<ms>"
            )
        limit = options.get("maxOffsetsPerTrigger")
        if limit is not None and (not limit.isdigit() or int(limit) == 0):
            raise ValueError(f"option 'maxOffsetsPerTrigger' is '{limit}': a number above 0")
        return cls(
            namesrv=options["namesrv"],
            topic=options["topic"],
            group=options.get("group", "spark"),
            starting_offsets=starting,
            rows_max=int(limit) if limit else None,
            fails_on_data_loss=options.get("failOnDataLoss", "true").lower() != "false",
        )


@dataclass
class QueueRange(InputPartition):
    """One task's share: offsets [start, end) of one message queue. Pickled to the worker."""

    queue: MessageQueue
    start: int
    end: int


class TidegateDataSource(DataSource):
    """Register once per session: ``spark.dataSource.register(TidegateDataSource)``."""

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    def schema(self) -> StructType:
        return MESSAGE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return QueueReader(SourceOptions.parse(dict(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return QueueStreamReader(SourceOptions.parse(dict(self.options)))


class QueueReader(DataSourceReader):
    """A batch read: everything between the starting offsets and the end at planning time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[QueueRange]:
        options = self._options
        with SourceClient(options.namesrv) as client:
            return [
                QueueRange(queue, starting_offset(client, options, queue), end)
                for queue in client.queues(options.topic)
                if (end := client.max_offset(options.topic, queue)) > 0
            ]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        return read_range(self._options, partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of offset ranges with admission control."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: SourceClient | None = None
        self._fixed_end: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers get the options only: sockets stay in the driver."""
        return {"_options": self._options, "_client": None, "_fixed_end": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def initialOffset(self) -> Offsets:
        options, client = self._options, self._connected()
        return {
            queue.name: starting_offset(client, options, queue)
            for queue in client.queues(options.topic)
        }

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.rows_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        end = self._fixed_end if self._fixed_end is not None else self._ends()
        if isinstance(limit, ReadMaxRows):
            return admit(start, end, limit.max_rows)
        return dict(sorted({**start, **end}.items()))

    def prepareForTriggerAvailableNow(self) -> None:
        self._fixed_end = self._ends()

    def reportLatestOffset(self) -> Offsets:
        return self._ends()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[QueueRange]:
        queues = {queue.name: queue for queue in self._connected().queues(self._options.topic)}
        ranges = []
        for name, stop in end.items():
            begin = start.get(name, 0)  # a queue that appeared since: from its beginning
            if stop > begin:
                if name not in queues:
                    raise SourceError(f"queue {name} of '{self._options.topic}' has no route now")
                ranges.append(QueueRange(queues[name], begin, stop))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Row]:
        return read_range(self._options, partition)

    def commit(self, end: Offsets) -> None:
        """Show the job's progress as a consumer group; the checkpoint remains the truth."""
        options, client = self._options, self._connected()
        for queue in client.queues(options.topic):
            if queue.name in end:
                client.commit(options.group, options.topic, queue, end[queue.name])

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> SourceClient:
        if self._client is None:
            self._client = SourceClient(self._options.namesrv)
        return self._client

    def _ends(self) -> Offsets:
        topic, client = self._options.topic, self._connected()
        return {queue.name: client.max_offset(topic, queue) for queue in client.queues(topic)}


def starting_offset(client: SourceClient, options: SourceOptions, queue: MessageQueue) -> int:
    """Where a new query begins in *queue*."""
    if options.starting_offsets == "latest":
        return client.max_offset(options.topic, queue)
    if options.starting_offsets == "earliest":
        return client.min_offset(options.topic, queue)
    stamp = int(options.starting_offsets.partition(":")[2])
    return client.offset_at(options.topic, queue, stamp)


def admit(start: Offsets, end: Offsets, rows_max: int) -> Offsets:
    """
    End offsets of a batch of about *rows_max* rows: each lagging queue gets a share by its lag,
    and at least one row, so that none starves.
    """
    lags = {name: stop - start.get(name, 0) for name, stop in end.items()}
    lag = sum(count for count in lags.values() if count > 0)
    admitted = {
        name: end[name] - count + max(1, count * rows_max // lag)
        if count > 0 and lag > rows_max
        else end[name]
        for name, count in lags.items()
    }
    return dict(sorted({**start, **admitted}.items()))


def read_range(options: SourceOptions, partition: InputPartition) -> Iterator[Row]:
    """Rows of one range. Raises SourceError when messages of it are gone (data loss)."""
    assert isinstance(partition, QueueRange)
    queue, offset = partition.queue, partition.start
    with SourceClient(options.namesrv) as client:
        while offset < partition.end:
            result = client.read(options.group, options.topic, queue, offset)
            if not result.messages and result.next_offset <= offset:
                raise SourceError(
                    f"queue {queue.name} of '{options.topic}' ends at {offset}, "
                    f"before the planned end {partition.end}"
                )
            if not result.messages and options.fails_on_data_loss:
                raise SourceError(
                    f"messages {offset} to {result.next_offset} of queue {queue.name} of "
                    f"'{options.topic}' are no longer kept; failOnDataLoss=false skips them"
                )
            for message in result.messages:
                if partition.start <= message.queue_offset < partition.end:
                    yield row_of(message, queue.broker)
            offset = max(offset + 1 if result.messages else offset, result.next_offset)
