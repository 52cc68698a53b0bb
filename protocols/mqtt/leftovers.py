"""
What a session is in the middle of though no group keeps it: retained values, QoS 2 of shares.

A retained value was read and sent, not queued; a QoS 2 message of a shared subscription belongs to
the client it was sent to, whatever becomes of the connection [MQTT-4.8.2-4, -5]. Both are put
into the session's record when the connection is gone and taken up by the next one, which strikes
out what is settled. A gateway that is killed puts nothing aside: retained values of the last
moments are sent anew by the next (``subscribing``), its shares' messages go back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from protocols.errors import Refused
from protocols.mqtt.feed import Feed
from protocols.mqtt.opened import Opened
from protocols.mqtt.records import LeftoverRecord, SessionRecord
from protocols.mqtt.session import Flight, Outgoing, Plan, Stage, Window

logger = logging.getLogger("tidegate.mqtt")

SAVE_AGAIN_S: Final = 1.0
"""Between attempts to strike something out while the directory is away."""

LEFTOVERS_MAX: Final = 100
LEFTOVER_BYTES_MAX: Final = 256 * 1024
"""Of one session in the directory; what is beyond is lost (retained) or goes back (shared)."""


def leftovers_of(window: Window) -> tuple[tuple[LeftoverRecord, ...], list[Flight]]:
    """What is to be put aside, and the flights it came from."""
    found: list[LeftoverRecord] = []
    flights: list[Flight] = []
    left_bytes = LEFTOVER_BYTES_MAX
    for packet_id, flight in window.flights.items():
        if flight.message is None or (flight.source is not None and flight.qos != 2):
            continue  # the store knows it; QoS 1 of a share goes to another member
        rendering, plan = flight.message
        record = b""
        if rendering is not None and flight.stage != Stage.RECEIVED:
            record = rendering.message.record
        left_bytes -= len(record)
        if left_bytes < 0 or len(found) == LEFTOVERS_MAX:
            return tuple(found), flights
        found.append(_leftover(packet_id, flight.stage, plan, record))
        flights.append(flight)
    for item in window.waiting:
        if not isinstance(item, Outgoing) or item.source is not None:
            continue
        record = item.rendering.message.record
        left_bytes -= len(record)
        if left_bytes < 0 or len(found) == LEFTOVERS_MAX:
            break
        found.append(_leftover(0, Stage.WAITING, item.plan, record))
    return tuple(found), flights


def _leftover(packet_id: int, stage: int, plan: Plan, record: bytes) -> LeftoverRecord:
    return LeftoverRecord(
        packet_id=packet_id,
        stage=stage,
        qos=plan.qos,
        retain=plan.retain,
        identifiers=plan.identifiers,
        record=record,
    )


async def put_aside(opened: Opened, *, is_lasting: bool) -> None:
    """
    Write down what the lost connection had under way; call before its streams are closed.

    Not *is_lasting*: the session ends now, and what a share had sent to it with it.
    """
    if not opened.has_outbox:
        return
    if opened.outbox.remaining is not None:
        opened.outbox.remaining.end()
    window = opened.outbox.window
    found: tuple[LeftoverRecord, ...] = ()
    if is_lasting:
        found, flights = leftovers_of(window)
    else:
        flights = [flight for flight in window.flights.values() if _is_of_share(flight)]
    if found != opened.owned.record.leftovers:
        try:
            await opened.save(_with_leftovers(found))
        except Refused:
            return  # taken over by another gateway: what is unacknowledged goes back
    for flight in flights:
        flight.finish()
        flight.source = None


def _is_of_share(flight: Flight) -> bool:
    source = flight.source
    return (
        flight.qos == 2
        and isinstance(source, Feed)
        and not source.is_marked
        and not source.is_auto_ack
    )


def take_up(opened: Opened) -> None:
    """Send on what an earlier connection put aside."""
    leftovers = opened.owned.record.leftovers
    if leftovers:
        opened.outbox.remaining = Taken(opened)
        opened.outbox.take_up(leftovers)


class Taken:
    """
    Leftovers in hand: one that is settled is struck from the session's record.

    Else the next gateway, should this one be killed, would send it once more, under a packet id
    that names something else by then. Implements ``session.Remaining``.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        leftovers = opened.owned.record.leftovers
        self._items = {item.packet_id: item for item in leftovers if item.packet_id}
        self._waiting = tuple([item for item in leftovers if not item.packet_id])
        self._pubrels: list[bytes] = []
        self._is_stale = self._is_saving = self._is_over = False

    def received(self, packet_id: int, pubrel: bytes) -> bool:
        item = self._items.get(packet_id)
        if item is None or item.stage == Stage.RECEIVED:
            return False
        self._items[packet_id] = msgspec.structs.replace(item, stage=Stage.RECEIVED, record=b"")
        self._pubrels.append(pubrel)
        self._save_soon()
        return True

    def done(self, packet_ids: Iterable[int]) -> None:
        for packet_id in packet_ids:
            if self._items.pop(packet_id, None) is not None:
                self._save_soon()

    def end(self) -> None:
        """The connection writes the record anew."""
        self._is_over = True

    def _save_soon(self) -> None:
        self._is_stale = True
        if not self._is_saving and not self._is_over:
            self._is_saving = True
            self._opened.front.tasks.start(self._save(), name="strike out")

    async def _save(self) -> None:
        while self._is_stale and not self._is_over:
            self._is_stale = False
            pubrels, self._pubrels = self._pubrels, []
            left = (*self._items.values(), *self._waiting)
            try:
                await self._opened.save(_with_leftovers(left))
            except Refused as error:
                logger.info("client %s: %s; again", self._opened.call.client_id, error)
                self._is_stale, self._pubrels = True, pubrels + self._pubrels
                await asyncio.sleep(SAVE_AGAIN_S)
                continue
            for pubrel in pubrels:
                self._opened.outbox.send_marked(pubrel)
        self._is_saving = False


def _with_leftovers(
    left: tuple[LeftoverRecord, ...],
) -> Callable[[SessionRecord], SessionRecord]:
    return lambda old: msgspec.structs.replace(old, leftovers=left)
