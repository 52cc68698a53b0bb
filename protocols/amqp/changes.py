"""
How a change of the topology is written: records and rows of the directory.

What the directory refuses is a fault in AMQP's words; what it took is known to the own table when
the call returns.
"""

from collections.abc import Sequence

import msgspec

from protocols.amqp import replies
from protocols.amqp.replies import FROM_CODE, AmqpFault
from protocols.amqp.topology import Topology
from protocols.directory import Directory, Put, Record, Subscription
from protocols.errors import Refused


def fault_of(refused: Refused) -> AmqpFault:
    """A refusal of the gateway in AMQP's words."""
    code = FROM_CODE.get(refused.code, replies.RESOURCE_ERROR)
    return AmqpFault(code, f"{refused.subject}: {refused.hint}")


class TopologyChanges:
    """To one directory, for one table of it. All raise AmqpFault."""

    def __init__(self, directory: Directory, topology: Topology) -> None:
        self._directory = directory
        self._topology = topology

    async def put(
        self,
        key: str,
        value: msgspec.Struct,
        *,
        if_version: int | None = None,
        is_bound: bool = False,
    ) -> bool:
        data = msgspec.msgpack.encode(value)
        (is_ours,) = await self.write([Put(key, data, if_version, is_bound)])
        return is_ours

    async def write(self, puts: Sequence[Put]) -> list[bool]:
        try:
            results = await self._directory.put(puts)
        except Refused as refused:
            raise fault_of(refused) from refused
        # the watcher has told the topology already, or this does: either way it is known now
        records: list[Record] = [result.record for result in results]
        self._topology.apply(records)
        return [result.is_ours for result in results]

    async def subscribe(
        self,
        add: Sequence[Subscription],
        remove: Sequence[Subscription],
        tenant: str,
        *,
        is_bound: bool = False,
    ) -> int:
        try:
            return await self._directory.subscribe(
                tuple(add), tuple(remove), tenant=tenant, is_bound=is_bound
            )
        except Refused as refused:
            raise fault_of(refused) from refused

    async def barrier(self, version: int) -> None:
        try:
            await self._directory.barrier(version)
        except Refused as refused:
            raise fault_of(refused) from refused

    async def catch_up(self) -> None:
        try:
            await self._directory.catch_up()
        except Refused as refused:
            raise fault_of(refused) from refused
