"""
What the clients of all gateways share: who is in a group, queue locks, committed offsets.

Records of the directory. Members are bound to their gateway's lease. Locks count while their
holder is a member, so that a client that comes back by another gateway still has its queues.

========================================  =====================================
key                                       value
========================================  =====================================
``rmq/member/<group>/<client id>``        the client id
``rmq/lock/<group>/<topic>/<b>/<queue>``  the client id that holds it
``rmq/offset/<group>/<topic>/<b>/<q>``    the offset, decimal
========================================  =====================================
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from protocols.directory import Directory, Put, Record
from protocols.errors import GatewayError
from protocols.remoting.holdings import Queue

logger = logging.getLogger("tidegate.remoting")

_MEMBER: Final = "rmq/member/"
_LOCK: Final = "rmq/lock/"
_OFFSET: Final = "rmq/offset/"


class Members:
    """Groups and their clients, over all gateways."""

    def __init__(self, directory: Directory, changed: Callable[[str], None]) -> None:
        self._directory = directory
        self._changed = changed
        self._pending_offsets: dict[str, int] = {}
        self._undo = directory.watch(_MEMBER, self._news)

    def close(self) -> None:
        self._undo()

    def _news(self, records: Sequence[Record]) -> None:
        for group in {record.key[len(_MEMBER) :].partition("/")[0] for record in records}:
            self._changed(group)

    # ── members ─────────────────────────────────────────────────────────────────────────

    def of(self, group: str) -> list[str]:
        """Client ids, in the order that all clients sort them in."""
        prefix = f"{_MEMBER}{group}/"
        return sorted(record.key[len(prefix) :] for record in self._directory.items(prefix))

    def has(self, group: str, client_id: str) -> bool:
        record = self._directory.get(f"{_MEMBER}{group}/{client_id}")
        return record is not None and record.value is not None

    async def join(self, group: str, client_id: str) -> int:
        """The version to leave with. Raises Refused if the directory is away."""
        key = f"{_MEMBER}{group}/{client_id}"
        (result,) = await self._directory.put([Put(key, client_id.encode(), is_bound=True)])
        return result.record.version

    async def leave(self, group: str, client_id: str, version: int) -> bool:
        """False: it has joined again since, over another connection or gateway, and stays."""
        if not version:
            return True
        key = f"{_MEMBER}{group}/{client_id}"
        (result,) = await self._directory.put([Put(key, None, if_version=version)])
        return result.is_ours

    # ── locks ───────────────────────────────────────────────────────────────────────────

    async def lock(self, group: str, client_id: str, queues: Sequence[Queue]) -> list[Queue]:
        """Take each queue that is free, or whose holder is in the group no more; which."""
        members = set(self.of(group))
        mine: list[Queue] = []
        puts: list[tuple[Queue, Put]] = []
        for queue in queues:
            key = _queue_key(_LOCK, group, queue)
            record = self._directory.get(key)
            holder = None if record is None or record.value is None else record.value.decode()
            if holder == client_id:
                mine.append(queue)
            elif holder is None or holder not in members:
                version = 0 if record is None or record.value is None else record.version
                put = Put(key, client_id.encode(), if_version=version)
                puts.append((queue, put))
        if puts:
            results = await self._directory.put([put for _, put in puts])
            mine += [
                queue
                for (queue, _), result in zip(puts, results, strict=True)
                if result.is_ours or result.record.value == client_id.encode()
            ]
        return mine

    def locked_by(self, group: str, client_id: str) -> set[Queue]:
        """The queues that are this client's."""
        prefix = f"{_LOCK}{group}/"
        return {
            _queue_of(record.key, prefix)
            for record in self._directory.items(prefix)
            if record.value == client_id.encode()
        }

    async def unlock(self, group: str, client_id: str, queues: Sequence[Queue]) -> None:
        puts: list[Put] = []
        for queue in queues:
            record = self._directory.get(_queue_key(_LOCK, group, queue))
            if record is not None and record.value == client_id.encode():
                puts.append(Put(record.key, None, if_version=record.version))
        if puts:
            await self._directory.put(puts)

    # ── offsets ─────────────────────────────────────────────────────────────────────────

    def offset(self, group: str, queue: Queue) -> int | None:
        """Last committed by a consumer that reads by offset; None: never."""
        key = _queue_key(_OFFSET, group, queue)
        if key in self._pending_offsets:
            return self._pending_offsets[key]
        record = self._directory.get(key)
        return int(record.value) if record is not None and record.value else None

    def offsets_of(self, group: str) -> dict[Queue, int]:
        """All that consumers of *group* who read by offset have committed."""
        prefix = f"{_OFFSET}{group}/"
        keys = {record.key for record in self._directory.items(prefix)}
        keys |= {key for key in self._pending_offsets if key.startswith(prefix)}
        found: dict[Queue, int] = {}
        for key in keys:
            queue = _queue_of(key, prefix)
            offset = self.offset(group, queue)
            if offset is not None:
                found[queue] = offset
        return found

    def commit(self, group: str, queue: Queue, offset: int) -> None:
        """Remember; ``write_offsets`` makes it last."""
        if self.offset(group, queue) != offset:
            self._pending_offsets[_queue_key(_OFFSET, group, queue)] = offset

    async def write_offsets(self) -> None:
        """All that changed since the last call, in one write."""
        pending = dict(self._pending_offsets)
        if not pending:
            return
        try:
            await self._directory.put(
                [Put(key, str(offset).encode()) for key, offset in pending.items()]
            )
        except GatewayError as error:
            logger.warning("offsets not written, tried again: %s", error)
            return
        for key, offset in pending.items():
            if self._pending_offsets.get(key) == offset:
                del self._pending_offsets[key]


def _queue_key(prefix: str, group: str, queue: Queue) -> str:
    return f"{prefix}{group}/{queue.topic}/{queue.broker}/{queue.queue_id}"


def _queue_of(key: str, prefix: str) -> Queue:
    topic, broker, number = key[len(prefix) :].rsplit("/", 2)
    return Queue(topic, broker, int(number))
