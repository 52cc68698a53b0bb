"""Groups of one of our stores: opened, dropped, popped from."""

from dataclasses import replace
from typing import Final

from gateway.clusters.connection import unpacked
from gateway.clusters.link import ASK_S_MAX, refusal_of
from gateway.clusters.receive import deliveries_by_stream, group_open
from gateway.clusters.requests import StoreRequests
from protocols import clock
from protocols.canonical import Delivery
from protocols.errors import Code
from protocols.groups import GroupSpec, PopRequest
from protocols.remoting.codes import ResponseCode
from protocols.remoting.headers import int_field
from protocols.remoting.private import (
    READY_COUNT,
    Adopt,
    GroupDrop,
    GroupOpened,
    Pop,
    PrivateCode,
)

GROUPS_KEPT_MAX: Final = 10_000
"""Groups whose number is remembered for pops."""


class StoreGroups:
    """The groups of ``StoreLink``; a pop knows its group by the number that opening it gave."""

    def __init__(self, requests: StoreRequests, cluster: str, broker: str) -> None:
        self._requests = requests
        self._cluster = cluster
        self._broker = broker
        self._opened: dict[str, tuple[GroupSpec, int]] = {}

    def forget(self, name: str) -> None:
        """The group is another one from now on, or none."""
        self._opened.pop(name, None)

    def clear(self) -> None:
        """Numbers are of one run of the store."""
        self._opened.clear()

    async def open(self, spec: GroupSpec, *, start: str = "") -> int:
        body = group_open(spec, start)
        answer = await self._requests.request(PrivateCode.GROUP_OPEN, body)
        return unpacked(answer, GroupOpened, spec.name).group

    async def drop(self, name: str, owner_epoch: int) -> None:
        self._opened.pop(name, None)
        body = GroupDrop(name=name, owner_epoch=owner_epoch)
        await self._requests.done(
            PrivateCode.GROUP_DROP, body, name, but=Code.CONSUMER_GROUP_NOT_FOUND
        )

    async def pop(self, request: PopRequest, *, count: int, wait_ms: int) -> list[Delivery]:
        spec = request.group
        known = self._opened.get(spec.name)
        if known is None or not _is_as_opened(spec, known[0]):
            known = await self._learn_group(spec)
        body = Pop(
            group=known[1],
            count=count,
            invisible_ms=request.invisible_ms,
            wait_ms=wait_ms,
            topic=spec.reads[0].topic if request.queue_id >= 0 else "",
            queue_id=request.queue_id,
            tags=list(request.tags),
            sql=request.sql,
            attempt_id=request.attempt_id,
            taker=request.taker,
            is_counted=request.is_counted,
        )
        return await self._take(PrivateCode.POP, body, spec.name, wait_ms / 1000 + 5.0)

    async def adopt(self, spec: GroupSpec, taker: str, invisible_ms: int) -> list[Delivery]:
        number = (await self._learn_group(spec))[1]
        found: list[Delivery] = []
        while True:
            above = found[-1].handle.position if found else -1
            body = Adopt(group=number, taker=taker, invisible_ms=invisible_ms, above=above)
            page = await self._take(PrivateCode.ADOPT, body, spec.name, ASK_S_MAX)
            if not page:
                return found
            found += page

    async def _take(
        self, code: PrivateCode, body: Pop | Adopt, group: str, timeout_s: float
    ) -> list[Delivery]:
        """Deliveries that are hidden from now on. Raises Refused."""
        now_ms = clock.wall_ms()
        answer = await self._requests.request(code, body, timeout_s=timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            self._opened.pop(group, None)
            error = refusal_of(answer, group)
            if error.code == Code.MESSAGE_NOT_FOUND:
                return []
            raise error
        by_stream = deliveries_by_stream(
            answer.body,
            self._cluster,
            self._broker,
            {0: group},
            popped_ms=now_ms,
            invisible_ms=body.invisible_ms,
        )
        found = [delivery for _, deliveries in by_stream for delivery in deliveries]
        if READY_COUNT in answer.fields:
            left_count = int_field(answer.fields, READY_COUNT)
            found = [delivery._replace(left_count=left_count) for delivery in found]
        return found

    async def _learn_group(self, spec: GroupSpec) -> tuple[GroupSpec, int]:
        number = await self.open(spec)
        if len(self._opened) >= GROUPS_KEPT_MAX:
            del self._opened[next(iter(self._opened))]
        known = self._opened[spec.name] = (spec, number)
        return known


def _is_as_opened(spec: GroupSpec, opened: GroupSpec) -> bool:
    """Where a group began is settled by its first opening."""
    return spec == opened or replace(spec, start=opened.start) == opened
