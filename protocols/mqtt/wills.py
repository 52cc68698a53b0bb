"""
Wills of connections that are gone, as their sessions' records keep them until they are published.

A will leaves its record only once it is published or refused for good, and the record is taken
over before its wills are published: who loses a race, dies in between or finds the store away
neither loses one nor sends one that a DISCONNECT has taken back. Each carries a once-key of
(session, owner epoch), so that two who try publish it once.
"""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from protocols import clock
from protocols.canonical import Call, Identity
from protocols.errors import Code
from protocols.mqtt.records import OwedWill, SessionRecord, will_once_key
from protocols.pipeline import Services

logger = logging.getLogger("tidegate.mqtt")

AWAY: Final = frozenset((Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT))
"""It may be taken later."""

KEPT_MS_MAX: Final = 300_000
"""How long a will is tried again while its store is away."""

OWED_MAX: Final = 8
"""Wills of earlier connections that a record keeps; the oldest go first."""

AGAIN_MS: Final = 1000


def taken_over(old: SessionRecord, *, is_present: bool, wall_ms: int) -> tuple[OwedWill, ...]:
    """What the next connection owes: the will is cancelled by it, or due [MQTT-3.1.3-9]."""
    owed = old.owed
    if old.will is not None:
        is_cancelled = is_present and min(old.will.delay_s, old.expiry_s) > 0
        if not is_cancelled:
            owed = (*owed, OwedWill(will=old.will, owner_epoch=old.owner_epoch, due_ms=wall_ms))
    return owed[-OWED_MAX:]


def still_owed(left: Sequence[OwedWill], record: SessionRecord) -> SessionRecord:
    """*record* owes nothing but what is *left*."""
    owed = tuple([one for one in record.owed if one in left])
    return msgspec.structs.replace(record, owed=owed)


def with_due(record: SessionRecord, *, wall_ms: int) -> SessionRecord:
    """Its own will is among those that it owes, if it is due."""
    if record.will is None or record.will_at_ms > wall_ms:
        return record
    due = OwedWill(will=record.will, owner_epoch=record.owner_epoch, due_ms=record.will_at_ms)
    owed = (*record.owed, due)[-OWED_MAX:]
    return msgspec.structs.replace(record, will=None, will_at_ms=0, owed=owed)


async def publish_owed(services: Services, record: SessionRecord) -> SessionRecord:
    """The record without the wills that are settled; those whose store is away stay in it."""
    kept: list[OwedWill] = []
    for owed in record.owed:
        message = owed.will.message(
            record.client_id,
            once_key=will_once_key(record, owed.owner_epoch),
            wall_ms=clock.wall_ms(),
        )
        call = call_of(record)
        (result,) = await services.pipeline.send(call, [message])
        services.pipeline.forget(call)
        if result.is_stored:
            continue
        if result.code in AWAY and clock.wall_ms() < owed.due_ms + KEPT_MS_MAX:
            kept.append(owed)
            continue
        logger.warning(
            "will of %s not published: %s %s", record.client_id, result.code.name, result.hint
        )
    return msgspec.structs.replace(record, owed=tuple(kept)) if record.owed else record


def call_of(record: SessionRecord) -> Call:
    """For what is done in the name of a client that is gone."""
    identity = Identity(name=record.identity, roles=record.roles, is_anonymous=record.is_anonymous)
    return Call(
        protocol="mqtt",
        listener=record.listener,
        identity=identity,
        tenant=record.tenant,
        client_id=record.client_id,
        is_patient=False,
    )
