"""
What a session is in the middle of though no group keeps it: retained values, QoS 2 of shares.

A retained value was read and sent, not queued; a QoS 2 message of a shared subscription belongs to
the client it was sent to, whatever becomes of the connection [MQTT-4.8.2-4, -5]. Both are put
into the session's record when the connection is gone and taken up by the next one. A gateway
that is killed puts nothing aside: retained values of the last moments are sent anew by the next
(``subscribing.retained_again``), its shares' messages go back.
"""

from typing import Final

import msgspec

from protocols.errors import Refused
from protocols.mqtt.feed import Feed
from protocols.mqtt.opened import Opened
from protocols.mqtt.records import LeftoverRecord
from protocols.mqtt.session import Flight, Outgoing, Plan, Stage, Window

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
    window = opened.outbox.window
    found: tuple[LeftoverRecord, ...] = ()
    if is_lasting:
        found, flights = leftovers_of(window)
    else:
        flights = [flight for flight in window.flights.values() if _is_of_share(flight)]
    if found != opened.owned.record.leftovers:
        try:
            await opened.save(lambda old: msgspec.structs.replace(old, leftovers=found))
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
