"""
Publishes that may be stored already: the store that has the first attempt gets the next one too.

A QoS 2 publish goes to a store by its client id, and that store knows its once-key. Which store
that is changes when one is new, or was away until the name servers dropped it; so what a client
sends again after a reconnect is looked for everywhere first. Where nobody has it, it is stored
anew, but only once every store that may have it was asked: one that is away might come back with
the first.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gateway.clusters.client import ClusterClient
from gateway.clusters.items import once_hash
from gateway.clusters.link import ONCE_KEYS_MAX, LinkState
from gateway.decisions import Decider
from gateway.members import Place, StoreMembers, known_stores
from protocols import clock
from protocols.canonical import Call, Message
from protocols.errors import Code, GatewayError, Refused
from protocols.tasks import Tasks

Located = Callable[[Sequence[Message] | Refused], None]

AGAIN_S: Final = 0.1
"""Between questions to a store that was up a moment ago."""

LOST_S_MAX: Final = 5.0
"""How long such a store is waited for, should it be neither up nor down."""


class _Search:
    """Messages of one post, and who wants to know where they are."""

    __slots__ = ("call", "done", "keys", "messages")

    def __init__(self, call: Call, messages: Sequence[Message], done: Located) -> None:
        self.call = call
        self.messages = messages
        self.done = done
        self.keys = [once_hash(message.once_key) for message in messages if message.is_resend]


class Resends:
    """Of one gateway."""

    def __init__(self, clusters: Mapping[str, ClusterClient], decider: Decider) -> None:
        self._clusters = clusters
        self._decider = decider
        self._tasks = Tasks("resends")
        self._due: list[_Search] = []
        self.members: StoreMembers | None = None
        """Stores that may be away; None: those that this gateway has met."""

    async def close(self) -> None:
        await self._tasks.close()

    def locate(self, call: Call, messages: Sequence[Message], done: Located) -> None:
        """
        *done* gets *messages* later, those that a store has bound to go there; or a refusal: one
        that may have them cannot be asked. What is asked for in one tick is looked up together.
        """
        self._due.append(_Search(call, messages, done))
        if len(self._due) == 1:
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        searches, self._due = self._due, []
        self._tasks.start(self._find(searches), name="find")

    async def _find(self, searches: list[_Search]) -> None:
        found: dict[bytes, Place] = {}
        asked: set[Place] = set()
        until = clock.monotonic() + LOST_S_MAX
        while True:
            places = known_stores(self.members, self._clusters)
            keys = [key for one in searches for key in one.keys if key not in found]
            await asyncio.gather(
                *(self._ask(place, keys, found, asked) for place in places - asked)
            )
            silent = sorted(places - asked)
            left: list[_Search] = []
            for one in searches:
                is_over = not silent or all(key in found for key in one.keys)
                if is_over:
                    one.done([_bound(message, found) for message in one.messages])
                else:
                    left.append(one)
            searches = left
            if not searches:
                return
            if clock.monotonic() > until or any(self._is_down(place) for place in silent):
                self._give_up(searches, silent[0][1], found)
                return
            await asyncio.sleep(AGAIN_S)

    def _give_up(
        self, searches: Sequence[_Search], broker: str, found: Mapping[bytes, Place]
    ) -> None:
        """Refuse what may be at a store that is away, unless its route rather has it twice."""
        now_ms = clock.wall_ms()
        refused = Refused(Code.HA_NOT_AVAILABLE, broker, f"store {broker} may have it and is away")
        for one in searches:
            heads = {message.head for message in one.messages}
            if any(self._decider.keeps_order(one.call, head, now_ms=now_ms) for head in heads):
                one.done(refused)
            else:
                one.done([_bound(message, found) for message in one.messages])

    async def _ask(
        self, place: Place, keys: Sequence[bytes], found: dict[bytes, Place], asked: set[Place]
    ) -> None:
        link = self._clusters[place[0]].links.get(place[1])
        if link is None or link.state is not LinkState.UP:
            return
        known: list[int] = []
        try:
            for start in range(0, len(keys), ONCE_KEYS_MAX):
                known += await link.find_once(keys[start : start + ONCE_KEYS_MAX])
        except GatewayError:
            return  # it went away: asked again, or missed
        asked.add(place)
        found.update((key, place) for key, is_known in zip(keys, known, strict=True) if is_known)

    def _is_down(self, place: Place) -> bool:
        link = self._clusters[place[0]].links.get(place[1])
        return link is None or link.state is LinkState.DOWN


def _bound(message: Message, found: Mapping[bytes, Place]) -> Message:
    place = found.get(once_hash(message.once_key)) if message.is_resend else None
    if place is None:
        return message
    return message._replace(head=replace(message.head, broker=place[1]))
