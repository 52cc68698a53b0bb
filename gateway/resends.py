"""
Publishes that may be stored already: the store that has the first attempt gets the next one too.

A QoS 2 publish goes to a store by its client id, and that store knows its once-key. Which store
that is changes when one is new, or was away until the name servers dropped it; so what a client
sends again after a reconnect is looked for everywhere first. Where nobody has it, it is stored
anew, but only once every store that may have it was asked: one that is away might come back with
the first.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gateway.clusters.client import ClusterClient
from gateway.clusters.frames import once_hash
from gateway.clusters.link import LinkState
from gateway.decisions import Decider
from gateway.members import StoreMembers, known_links
from protocols import clock
from protocols.canonical import Call, Message
from protocols.errors import Code, GatewayError, Refused

Place = tuple[str, str]
"""Cluster and store."""

AGAIN_S: Final = 0.1
"""Between questions to a store that was up a moment ago."""

LOST_S_MAX: Final = 5.0
"""How long such a store is waited for, should it be neither up nor down."""


class Resends:
    """Of one gateway."""

    def __init__(self, clusters: Mapping[str, ClusterClient], decider: Decider) -> None:
        self._clusters = clusters
        self._decider = decider
        self.members: StoreMembers | None = None
        """Stores that may be away; None: those that this gateway has met."""

    async def located(self, call: Call, messages: Sequence[Message]) -> list[Message]:
        """
        *messages*, those that a store has bound to go there.

        Raises Refused: one that may have them cannot be asked.
        """
        keys = [once_hash(message.once_key) for message in messages if message.is_resend]
        try:
            found = await self._find(keys)
        except Refused:
            now_ms = clock.wall_ms()
            heads = {message.head for message in messages}
            if any(self._decider.keeps_order(call, head, now_ms=now_ms) for head in heads):
                raise
            found = {}
        return [self._bound(message, found) for message in messages]

    def _bound(self, message: Message, found: Mapping[bytes, Place]) -> Message:
        place = found.get(once_hash(message.once_key)) if message.is_resend else None
        if place is None:
            return message
        return message._replace(head=replace(message.head, broker=place[1]))

    async def _find(self, keys: Sequence[bytes]) -> dict[bytes, Place]:
        """Key → who has it. Raises Refused."""
        found: dict[bytes, Place] = {}
        asked: set[Place] = set()
        until = clock.monotonic() + LOST_S_MAX
        while True:
            places = self._known()
            left = [key for key in keys if key not in found]
            await asyncio.gather(
                *(self._ask(place, left, found, asked) for place in places - asked)
            )
            silent = sorted(places - asked)
            if not silent or all(key in found for key in keys):
                return found
            if clock.monotonic() > until or any(self._is_down(place) for place in silent):
                raise Refused(
                    Code.HA_NOT_AVAILABLE,
                    silent[0][1],
                    f"store {silent[0][1]} may have it and is away",
                )
            await asyncio.sleep(AGAIN_S)

    async def _ask(
        self, place: Place, keys: Sequence[bytes], found: dict[bytes, Place], asked: set[Place]
    ) -> None:
        link = self._clusters[place[0]].links.get(place[1])
        if link is None or link.state is not LinkState.UP:
            return
        try:
            known = await link.find_once(keys)
        except GatewayError:
            return  # it went away: asked again, or missed
        asked.add(place)
        found.update((key, place) for key, is_known in zip(keys, known, strict=True) if is_known)

    def _known(self) -> set[Place]:
        if self.members is not None:
            return self.members.known()
        return known_links(self._clusters)

    def _is_down(self, place: Place) -> bool:
        link = self._clusters[place[0]].links.get(place[1])
        return link is None or link.state is LinkState.DOWN
