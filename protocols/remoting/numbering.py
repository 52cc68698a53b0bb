"""
One number for each message queue of a topic, over all brokers.

Clients whose requests name no broker (Go's rocketmq-client-go v2, the C++ one, Java's before 4.9.8)
tell brokers apart by their addresses, which here are all the gateway's. They are shown one broker
that has all queues of a topic. A number stays its queue's for good, at every gateway: the directory
has it before a client sees it (``rmq/queues/<topic>``: msgpack rows of broker, first queue id, how
many). Queues that come later get the next ones, whatever their names.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

import msgspec

from protocols.canonical import SendResult
from protocols.directory import Directory, Put
from protocols.errors import Code, Refused
from protocols.pipeline import TopicInfo, Topics
from protocols.remoting.bodies import BrokerData, MessageQueue, QueueData, RouteData
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import SendHeader
from protocols.remoting.holdings import Queue

ALL_BROKERS: Final = "tidegate"
"""The broker that they are shown."""

NAMELESS: Final = frozenset(("GO", "CPP"))
JAVA_NAMES_BROKERS: Final = 409
"""Ordinal of 4.9.8 in ``MQVersion``, which does; who names ``ALL_BROKERS`` is served, too."""

TOPICS_MAX: Final = 10_000
"""Topics of several brokers that such clients may use."""

Place = tuple[str, int]
"""(broker, queue id)."""


def names_no_broker(command: RemotingCommand) -> bool:
    """Whether the client that sent it is such a one."""
    is_old = command.language == "JAVA" and command.version < JAVA_NAMES_BROKERS
    return is_old or command.language in NAMELESS


TRIES_MAX: Final = 8
"""Gateways that number a topic's new queues at once; who loses goes on from what won."""

_QUEUES: Final = "rmq/queues/"


class _Known(NamedTuple):
    version: int
    """Of the record; 0: there is none."""

    queues: tuple[tuple[str, int, int], ...]
    """``TopicInfo.queues`` that all have a number, as they were asked for last."""

    places: Sequence[Place]
    numbers: Mapping[Place, int]


_NOTHING: Final = _Known(0, (), (), {})


def _runs(places: Sequence[Place]) -> list[tuple[str, int, int]]:
    """Neighbouring queues of one broker as one: (broker, first, how many)."""
    runs: list[tuple[str, int, int]] = []
    for broker, queue_id in places:
        if runs and runs[-1][0] == broker and runs[-1][1] + runs[-1][2] == queue_id:
            runs[-1] = (broker, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((broker, queue_id, 1))
    return runs


class Numbering:
    """Of all topics that such clients use; ``Front`` has one."""

    def __init__(self, directory: Directory, topics: Topics) -> None:
        self._directory = directory
        self._topics = topics
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def places(self, info: TopicInfo) -> Sequence[Place]:
        """All queues that the topic has, or had, by number. Raises Refused: none can be given."""
        for _ in range(TRIES_MAX):
            known = self._recorded(info.name)
            if known.queues == info.queues:
                return known.places
            found = sorted([(broker, queue_id) for broker, queue_id, _ in info.queues])
            late = [place for place in found if place not in known.numbers]
            places = (*known.places, *late)
            if late and (known.version or len({broker for broker, _ in places}) > 1):
                await self._write(info.name, known.version, places)
                continue  # as it is written now: another gateway may have won
            return self._keep(info.name, known.version, info.queues, places).places
        raise Refused(Code.HA_NOT_AVAILABLE, info.name, "its queues are being numbered elsewhere")

    async def _write(self, topic: str, version: int, places: Sequence[Place]) -> None:
        """Unless another was faster. Raises Refused."""
        if not version:
            await self._make_room(topic)
        value = msgspec.msgpack.encode(_runs(places))
        await self._directory.put([Put(_QUEUES + topic, value, if_version=version)])

    async def _make_room(self, topic: str) -> None:
        """Topics that are no more give way."""
        records = list(self._directory.items(_QUEUES))
        if len(records) < TOPICS_MAX:
            return
        names = set(self._topics.names())
        gone = [record for record in records if record.key[len(_QUEUES) :] not in names]
        if not gone:
            raise Refused(Code.TOO_MANY_REQUESTS, topic, f"{TOPICS_MAX} topics are numbered")
        await self._directory.put([Put(item.key, None, if_version=item.version) for item in gone])

    def _recorded(self, topic: str) -> "_Known":
        """What is written of it; of a topic that has one broker, what was seen last."""
        record = self._directory.get(_QUEUES + topic)
        version = record.version if record is not None and record.value is not None else 0
        known = self._known.get(topic, _NOTHING)
        if known.version == version:
            return known
        if record is None or record.value is None:
            return _NOTHING
        runs = msgspec.msgpack.decode(record.value, type=list[tuple[str, int, int]])
        places = [
            (broker, first + number) for broker, first, count in runs for number in range(count)
        ]
        return self._keep(topic, version, (), places)

    def _keep(
        self,
        topic: str,
        version: int,
        queues: tuple[tuple[str, int, int], ...],
        places: Sequence[Place],
    ) -> "_Known":
        numbers = {place: number for number, place in enumerate(places)}
        known = self._known[topic] = _Known(version, queues, places, numbers)
        self._known.move_to_end(topic)
        if len(self._known) > TOPICS_MAX:
            self._known.popitem(last=False)
        return known

    async def route(self, info: TopicInfo, address: str) -> RouteData | None:
        """None: the topic's brokers need not be hidden, there is but one. Raises Refused."""
        places = await self.places(info)
        if len({broker for broker, _ in places}) < 2:
            return None
        queues = QueueData(
            broker_name=ALL_BROKERS,
            read_queue_nums=len(places),
            write_queue_nums=len(places),
            perm=reduce(or_, [permission for _, _, permission in info.queues]),
        )
        broker = BrokerData(
            cluster=info.cluster, broker_name=ALL_BROKERS, broker_addrs={0: address}
        )
        return RouteData(queue_datas=[queues], broker_datas=[broker])

    def sent_to(self, topic: str, header: SendHeader) -> SendHeader:
        """A send to the broker that is meant; anywhere if that was asked for elsewhere."""
        places = self._recorded(topic).places
        if 0 <= header.queue_id < len(places):
            broker, queue_id = places[header.queue_id]
            return header._replace(broker=broker, queue_id=queue_id)
        return header._replace(broker="", queue_id=-1) if header.broker else header

    def number(self, topic: str, result: SendResult) -> int:
        """Of the queue that a message of such a client is in."""
        numbers = self._recorded(topic).numbers
        return numbers.get((result.broker, result.queue_id), result.queue_id)

    def meant(self, topic: str, asked: MessageQueue) -> Queue:
        """A queue that is to be locked; *topic* as it is stored."""
        places = self._recorded(topic).places
        if asked.broker_name == ALL_BROKERS and 0 <= asked.queue_id < len(places):
            return Queue(asked.topic, *places[asked.queue_id])
        return Queue(asked.topic, asked.broker_name, asked.queue_id)
