"""How far a group has read a light queue, as the Apache broker keeps it for all gateways."""

from collections.abc import Awaitable, Callable

from gateway.clusters.apache import requests
from gateway.clusters.apache.light import LightGroup
from gateway.clusters.apache.requests import COMMIT_BIAS
from gateway.clusters.link import refusal_of
from protocols.groups import GroupSpec, Start
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import int_field


class Offsets:
    """
    At one broker.

    Args:
        ask: a request and its answer. Raises Refused, PeerError.
    """

    def __init__(
        self, broker: str, ask: Callable[[RemotingCommand], Awaitable[RemotingCommand]]
    ) -> None:
        self._broker = broker
        self._ask = ask

    async def committed(self, group: str, topic: str) -> int:
        """Everything below is done; -1: the group has never read it."""
        name = requests.light_group(group)
        answer = await self._ask(requests.query_committed(name, topic, self._broker))
        committed = int_field(answer.fields, "offset", 0) - COMMIT_BIAS
        return committed if answer.code == ResponseCode.SUCCESS and committed >= 0 else -1

    async def start_of(self, spec: GroupSpec, topic: str) -> int:
        """The committed offset, or for a group without one the start it asks for, committed."""
        if (committed := await self.committed(spec.name, topic)) >= 0:
            return committed
        earliest = spec.start is Start.EARLIEST
        code = RequestCode.GET_MIN_OFFSET if earliest else RequestCode.GET_MAX_OFFSET
        start = await self.bound(code, topic)
        name = requests.light_group(spec.name)
        await self._done(requests.commit(name, topic, start + COMMIT_BIAS, self._broker), topic)
        return start

    async def bound(self, code: RequestCode, topic: str) -> int:
        """Where the queue begins or ends: GET_MIN_OFFSET, GET_MAX_OFFSET. Raises Refused."""
        found = await self._done(requests.offset(code, topic, 0, self._broker), topic)
        return max(0, int_field(found.fields, "offset"))

    async def was_elsewhere(self, group: LightGroup, spec: GroupSpec) -> bool:
        """
        Another gateway has had the session meanwhile: what is open here is done there, and more.
        (Less is there when a broker was killed: it writes offsets down every five seconds.)
        """
        if spec.owner_epoch <= group.spec.owner_epoch:
            return False
        for queue in list(group.queues.values()):
            if await self.committed(spec.name, queue.topic) > queue.committed:
                return True
        return False

    async def _done(self, command: RemotingCommand, subject: str) -> RemotingCommand:
        answer = await self._ask(command)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, subject)
        return answer
