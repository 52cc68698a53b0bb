"""
Which queues a client reads, decided here (400): server-side balancing, consumers that pop.

A client asks one store about a topic and keeps to the answer until the next round, so it is about
the queues of all stores that have the topic; name servers know them. All stores hear of all
members, and all of them divide the same sorted list. Source: ``QueryAssignmentProcessor``.
"""

from collections.abc import Sequence
from typing import Final

from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import Permission, RequestCode
from protocols.remoting.command import RemotingCommand
from store.answers import TopicConfig
from store.handlers.clients import MODES_TABLE
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler

_READ: Final = int(Permission.READ)


def query_assignment(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Answered when a name server has told where else the topic is, or does not answer."""
    asked = bodies.decode_body(bodies.QueryAssignmentBody, request.body)
    config = context.topic(asked.topic)
    if config is None:
        raise Refused(Code.TOPIC_NOT_FOUND, asked.topic, f"topic {asked.topic} does not exist")

    def tell(found: Sequence[bodies.QueueData]) -> None:
        body = _answer(context, asked, all_queues(context, config, found))
        connection.answer(request, request.answer(body=bodies.encode_body(body)))

    if context.find_queues is None:
        tell(())
    else:
        context.find_queues(asked.topic, tell)
    return None


def all_queues(
    context: Context, config: TopicConfig, found: Sequence[bodies.QueueData]
) -> list[bodies.MessageQueue]:
    """Of all stores, in one order: what is known here of our own, *found* of the others."""
    counts = {one.broker_name: one.read_queue_nums for one in found if one.perm & _READ}
    counts[context.config.name] = config.read_queue_count
    return [
        bodies.MessageQueue(topic=config.name, broker_name=name, queue_id=queue_id)
        for name in sorted(counts)
        for queue_id in range(counts[name])
    ]


def _answer(
    context: Context, asked: bodies.QueryAssignmentBody, queues: list[bodies.MessageQueue]
) -> bodies.AssignmentAnswer:
    modes = context.engine.catalog.settings(MODES_TABLE)
    told = modes.get(f"{asked.topic}@{asked.consumer_group}", b"")
    mode, _, share = told.decode().partition(" ")
    members = [client.client_id for client in context.clients.consumers(asked.consumer_group)]
    if mode == "POP":
        mine, word = pop_share_of(asked, members, queues, int(share or 0)), "POP"
    elif asked.message_model == "BROADCASTING":
        mine, word = queues, "PULL"
    else:
        mine, word = share_of(queues, members, asked.client_id, asked.strategy_name), "PULL"
    return bodies.AssignmentAnswer(
        message_queue_assignments=[
            bodies.QueueAssignment(message_queue=queue, mode=word) for queue in mine
        ]
    )


def pop_share_of(
    asked: bodies.QueryAssignmentBody,
    members: list[str],
    queues: list[bodies.MessageQueue],
    share: int,
) -> list[bodies.MessageQueue]:
    """
    What a client pops: all queues of each store at once (id -1), or its own and those of the
    *share* members that follow it. Source: ``allocate4Pop``.
    """
    if share <= 0 or share >= len(members) - 1:
        names = dict.fromkeys([queue.broker_name for queue in queues])
        return [
            bodies.MessageQueue(topic=asked.topic, broker_name=name, queue_id=-1) for name in names
        ]
    if asked.client_id not in members:
        return []
    index = members.index(asked.client_id)
    mine: dict[bodies.MessageQueue, None] = {}
    for step in range(share + 1):
        member = members[(index + step) % len(members)]
        mine |= dict.fromkeys(share_of(queues, members, member, asked.strategy_name))
    return list(mine)


def share_of(
    queues: list[bodies.MessageQueue], members: list[str], client_id: str, strategy: str
) -> list[bodies.MessageQueue]:
    """A member's queues; ``AllocateMessageQueueAveragely`` and its ``ByCircle``."""
    if client_id not in members:
        return []
    index, count = members.index(client_id), len(members)
    if strategy == "AVG_BY_CIRCLE":
        return queues[index::count]
    size, rest = divmod(len(queues), count)
    start = index * size + min(index, rest)
    return queues[start : start + size + (1 if index < rest else 0)]


HANDLERS: dict[int, Handler] = {RequestCode.QUERY_ASSIGNMENT: query_assignment}
