"""Reading light queues of an Apache broker: one task per queue while somebody has room for more."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.clusters.apache import requests
from gateway.clusters.apache.light import LightGroup, LightQueue
from gateway.clusters.link import refusal_of
from protocols.errors import PeerError, Refused
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import int_field
from protocols.remoting.records import decode_records
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.clusters")

AGAIN_S: Final = 1.0
"""After a refusal."""

NOTHING: Final = frozenset((ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY))


class LightFetching:
    """
    At one broker.

    Args:
        ask: a request that may be answered late. Raises Refused, PeerError.
        is_read: whether the group is still one of the link's.
        fetched: called when a group has more than before.
    """

    def __init__(
        self,
        cluster: str,
        broker: str,
        ask: Callable[[RemotingCommand], Awaitable[RemotingCommand]],
        *,
        is_read: Callable[[LightGroup], bool],
        fetched: Callable[[LightGroup], None],
    ) -> None:
        self._cluster = cluster
        self._broker = broker
        self._ask = ask
        self._is_read = is_read
        self._fetched = fetched
        self._tasks = Tasks(f"light/{cluster}/{broker}")
        self._under_way: set[tuple[int, str]] = set()
        self.is_open = False
        """The link has a connection."""

        self.arrived = asyncio.Event()
        """Set whenever something has come, for whichever group."""

    async def close(self) -> None:
        await self._tasks.close()

    def begin(self, group: LightGroup) -> None:
        """Read on where the group has room."""
        if not self.is_open:
            return
        for queue in group.queues.values():
            key = (group.number, queue.topic)
            if key not in self._under_way and group.wants_more(queue):
                self._under_way.add(key)
                self._tasks.start(self._fetch(group, queue), name=queue.topic)

    async def _fetch(self, group: LightGroup, queue: LightQueue) -> None:
        """Long-poll one light queue until it has no room, no reader, or the link is gone. What
        fails is tried again: nobody else does that for a reader who has nothing to acknowledge."""
        last_error = ""
        try:
            while self._is_wanted(group, queue):
                try:
                    await self._pull(group, queue)
                except (Refused, PeerError) as error:
                    if str(error) != last_error:
                        last_error = str(error)
                        logger.info("light queue %s of %s: %s", queue.topic, self._broker, error)
                    await asyncio.sleep(AGAIN_S)
        finally:
            self._under_way.discard((group.number, queue.topic))

    async def _pull(self, group: LightGroup, queue: LightQueue) -> None:
        """Once. Raises Refused, PeerError."""
        command = requests.pull(
            requests.light_group(group.spec.name),
            queue.topic,
            0,
            queue.next_offset,
            requests.PULL_COUNT_MAX,
            broker=self._broker,
            suspend_ms=requests.PULL_SUSPEND_MS,
        )
        self._take(group, queue, await self._ask(command))
        self._fetched(group)
        self.arrived.set()

    def _is_wanted(self, group: LightGroup, queue: LightQueue) -> bool:
        return (
            self.is_open
            and group.wants_more(queue)
            and self._is_read(group)
            and group.queues.get(queue.topic) is queue
        )

    def _take(self, group: LightGroup, queue: LightQueue, answer: RemotingCommand) -> None:
        next_offset = int_field(answer.fields, "nextBeginOffset", queue.next_offset)
        if answer.code == ResponseCode.SUCCESS:
            messages = decode_records(answer.body, cluster=self._cluster, broker=self._broker)
            group.fetched(queue, messages, next_offset)
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            group.fetched(queue, (), next_offset)
        elif answer.code not in NOTHING:
            raise refusal_of(answer, queue.topic)
