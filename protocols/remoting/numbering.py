"""
One number for each message queue of a topic, over all brokers.

Clients whose requests name no broker (Go's rocketmq-client-go v2, the C++ one, Java's before 4.9.8)
tell brokers apart by their addresses, which here are all the gateway's. They are shown one broker
that has all queues of a topic. A number stays that queue's as long as the gateway runs: queues that
come later get the next ones, whatever their names.
"""

from collections import OrderedDict
from functools import reduce
from operator import or_
from typing import Final

from protocols.canonical import SendResult
from protocols.pipeline import TopicInfo
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
"""Topics that are numbered; one that was not asked for longest is numbered anew."""

Place = tuple[str, int]
"""(broker, queue id)."""


def names_no_broker(command: RemotingCommand) -> bool:
    """Whether the client that sent it is such a one."""
    is_old = command.language == "JAVA" and command.version < JAVA_NAMES_BROKERS
    return is_old or command.language in NAMELESS


class Numbering:
    """Of all topics that were asked for at one listener."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, list[Place]] = OrderedDict()

    def places(self, info: TopicInfo) -> list[Place]:
        """All queues that the topic has, or had, by number."""
        found = sorted([(broker, queue_id) for broker, queue_id, _ in info.queues])
        known = self._places.setdefault(info.name, [])
        if len(found) > len(known) or not set(found) <= set(known):
            known += [place for place in found if place not in known]
        self._places.move_to_end(info.name)
        if len(self._places) > TOPICS_MAX:
            self._places.popitem(last=False)
        return known

    def route(self, info: TopicInfo, address: str) -> RouteData | None:
        """None: the topic's brokers need not be hidden, there is but one."""
        places = self.places(info)
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
        places = self._places.get(topic, ())
        if 0 <= header.queue_id < len(places):
            broker, queue_id = places[header.queue_id]
            return header._replace(broker=broker, queue_id=queue_id)
        return header._replace(broker="", queue_id=-1) if header.broker else header

    def number(self, topic: str, result: SendResult) -> int:
        """Of the queue that a message of such a client is in."""
        place = (result.broker, result.queue_id)
        places = self._places.get(topic, ())
        return places.index(place) if place in places else result.queue_id

    def meant(self, topic: str, asked: MessageQueue) -> Queue:
        """A queue that is to be locked; *topic* as it is stored."""
        places = self._places.get(topic, ())
        if asked.broker_name == ALL_BROKERS and 0 <= asked.queue_id < len(places):
            return Queue(asked.topic, *places[asked.queue_id])
        return Queue(asked.topic, asked.broker_name, asked.queue_id)
