"""
Who owns which client id, over all gateways; what becomes of a session that lost its connection.

State lives in the directory, one record per client id, written only with the version last seen:
whoever loses the race reads the winner and tries again. An owner that sees its record taken
by a higher owner epoch lets its connection go. What is due later (a delayed will, the end of a
session, everything of a gateway whose lease ended) any gateway may do; a will carries a once-key
of (session, owner epoch), so that two who try publish it once.
"""

import asyncio
import heapq
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from protocols import clock
from protocols.canonical import Call
from protocols.directory import Put, Record
from protocols.errors import Code, Refused
from protocols.mqtt import wills
from protocols.mqtt.groups import rows, session_group, share_group
from protocols.mqtt.holders import Holders
from protocols.mqtt.lastwords import LastWords, Owner, let_go
from protocols.mqtt.naming import EXCLUSIVE
from protocols.mqtt.presence import Presence
from protocols.mqtt.records import (
    SESSION_PREFIX,
    SessionRecord,
    WillRecord,
    check_owner,
    decode_session,
    encode_session,
    exclusive_key,
    session_key,
    share_prefix,
    with_ids,
)
from protocols.mqtt.session import Subscribed
from protocols.mqtt.turns import Turns
from protocols.mqtt.wills import call_of
from protocols.pipeline import Services
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.mqtt")

RACES_MAX: Final = 10
"""Lost conditional writes of one CONNECT before the client is told to come back."""

SWEEP_S: Final = 0.25
"""How often what is due is looked for."""

ACTING_MAX: Final = 50
"""Sessions in work at once: thousands of a gateway that died are not to hold up our clients."""

HELP_S: Final = 2.0
"""How long a gateway waits for the one that should act, before it acts itself."""


_busy: WeakKeyDictionary[Services, tuple[set[str], set[str]]] = WeakKeyDictionary()
"""Sessions that a gateway is acting for: one of its listeners that tell no events, one that do."""


class Owned(NamedTuple):
    """A session in the hands of one connection."""

    record: SessionRecord
    version: int
    """Of the record in the directory."""

    is_present: bool
    """It was there before: the Session Present of CONNACK."""

    is_cut: bool = False
    """Whoever had it before put nothing aside; see ``leftovers``."""

    received: tuple[int, ...] = ()
    """
    Of the record as it was left. As it is kept meanwhile it has none: should this gateway die,
    they are released by then, or the stores know.
    """


class Opening(NamedTuple):
    """What CONNECT wants of its session."""

    call: Call
    clean_start: bool
    expiry_s: int
    will: WillRecord | None
    is_guarded: bool = False
    """Refuse a session that another identity has."""

    inflight_max: int = 1
    """Publishes to the client at once."""


# ── the sessions of one gateway ─────────────────────────────────────────────────────────


class Sessions:
    """Opens, keeps and ends sessions; does what is due for those that nobody holds."""

    def __init__(self, services: Services, *, presence: Presence | None = None) -> None:
        self._services = services
        self._presence = presence
        self._owners: dict[str, tuple[Owner, int]] = {}
        # by key: who holds it here, at which owner epoch
        self._late: dict[str, tuple[Call, int]] = {}
        """By key: a connection that has left, and what it sent last waits for its store."""

        self._turns = Turns()
        self._tasks = Tasks("mqtt-sessions")
        self._holders = Holders()
        self._due: list[tuple[int, str, int]] = []
        self.expired_count = 0
        self._busy = _busy.setdefault(services, (set(), set()))[presence is not None]
        self._acting = asyncio.Semaphore(ACTING_MAX)
        self._last_epoch = 0
        self._last_words = LastWords(services.directory)
        self._undo = services.directory.watch(SESSION_PREFIX, self._changed)

    def start(self) -> None:
        self._changed(list(self._services.directory.items(SESSION_PREFIX)))
        self._tasks.start(self._sweep_for_ever(), name="sweep")

    async def close(self) -> None:
        self._undo()
        await self._tasks.close()

    @property
    def counts(self) -> tuple[int, int]:
        """Sessions of all gateways: (connected, all)."""
        return self._holders.counts

    # ── opening ─────────────────────────────────────────────────────────────────────────

    async def open(self, opening: Opening, owner: Owner) -> Owned:
        """
        Make *owner* the one connection of its client id.

        Raises Refused: the directory is away, or others keep winning the race; FORBIDDEN: it is
        another identity's.
        """
        call = opening.call
        key = session_key(call.tenant, call.client_id)
        await self._turns.take(key)
        try:
            self._find(key, opening)
            if (holding := self._owners.pop(key, None)) is not None:
                holding[0].take_over()
                await let_go(holding[0], call.client_id)
            else:
                await self._last_words.hear(key, clean_start=opening.clean_start)
            for _ in range(RACES_MAX):
                owned = await self._try_open(key, opening, was_here=holding is not None)
                if owned is not None:
                    self._owners[key] = (owner, owned.record.owner_epoch)
                    return owned
        finally:
            self._turns.give(key)
        raise Refused(Code.TOO_MANY_REQUESTS, call.client_id, "the client id is fought over")

    def _find(self, key: str, opening: Opening) -> tuple[SessionRecord | None, int]:
        """The record as it is, and its version. Raises Refused: it is another identity's."""
        found = self._services.directory.get(key)
        if found is None or not found.value:
            return None, 0
        old = decode_session(found.value)
        if opening.is_guarded:
            check_owner(old, opening.call.identity.name, wall_ms=clock.wall_ms())
        return old, found.version

    async def _try_open(self, key: str, opening: Opening, *, was_here: bool) -> Owned | None:
        """One attempt; None: somebody else wrote first."""
        now_ms = clock.wall_ms()
        old, version = self._find(key, opening)
        is_present = (
            old is not None
            and old.expiry_s > 0
            and not opening.clean_start
            and not (old.ends_at_ms and old.ends_at_ms <= now_ms)
        )
        is_cut = (
            is_present and old is not None and (old.is_cut or (old.is_connected and not was_here))
        )
        record = self._new_record(opening, old, now_ms, is_present=is_present)
        if is_cut:
            record = msgspec.structs.replace(record, is_contested=True)
        is_told = old is None or not (old.is_connected or old.is_cut)
        record = with_ids(record, is_told=is_told, inflight_max=opening.inflight_max)
        if old is not None:
            owed = wills.taken_over(old, is_present=is_present, wall_ms=now_ms)
            record = msgspec.structs.replace(record, owed=owed)
        received = old.received if is_present and old is not None else ()
        owned = Owned(record, version, is_present, is_cut, received)
        try:
            owned = await self.save(owned, record)
            if record.owed:  # not before: what was read may have been over
                settled = await wills.publish_owed(self._services, record)
                owned = await self.save(owned, settled)
        except Refused as error:
            if error.code != Code.PRECONDITION_FAILED:
                raise
            return None
        if old is not None and old.is_kept and not is_present:
            await self._forget(old)
        return owned

    def _new_record(
        self, opening: Opening, old: SessionRecord | None, now_ms: int, *, is_present: bool
    ) -> SessionRecord:
        call, directory = opening.call, self._services.directory
        # above any epoch the client id ever had, also one whose record is gone
        newest = old.owner_epoch if old is not None else 0
        owner_epoch = self._last_epoch = max(now_ms, newest + 1, self._last_epoch + 1)
        kept = old if is_present else None
        return SessionRecord(
            tenant=call.tenant,
            client_id=call.client_id,
            gateway=directory.gateway,
            gateway_epoch=directory.gateway_epoch,
            owner_epoch=owner_epoch,
            incarnation=kept.incarnation if kept else owner_epoch,
            listener=call.listener,
            identity=call.identity.name,
            roles=call.identity.roles,
            is_anonymous=call.identity.is_anonymous,
            is_connected=True,
            is_kept=is_present or opening.expiry_s > 0,
            expiry_s=opening.expiry_s,
            will=opening.will,
            subscriptions=kept.subscriptions if kept else (),
            given_up=kept.given_up if kept else (),
            generations=kept.generations if kept else (),
            next_id=kept.next_id if kept else 1,
            id_count=kept.id_count if kept else 0,
            in_doubt=kept.in_doubt if kept else (),
            leftovers=kept.leftovers if kept else (),
            is_contested=kept is not None and kept.is_contested,
            has_group=kept is not None and kept.has_group,
        )

    def _is_bound(self, record: SessionRecord) -> bool:
        """Vanishes with its gateway: nothing is left to be done for it, nobody to be told."""
        has_wills = record.will is not None or bool(record.owed)
        is_needed = record.is_kept or has_wills or self._presence is not None
        return record.is_connected and not is_needed

    # ── while it is held ────────────────────────────────────────────────────────────────

    async def save(self, owned: Owned, record: SessionRecord) -> Owned:
        """Write the record of a session in hand. Raises Refused if it was taken over."""
        put = Put(
            record.key, encode_session(record), owned.version, is_bound=self._is_bound(record)
        )
        (result,) = await self._services.directory.put([put])
        if not result.is_ours:
            raise Refused(Code.PRECONDITION_FAILED, record.client_id, "taken over")
        version = result.record.version
        return Owned(record, version, owned.is_present, owned.is_cut, owned.received)

    # ── when the connection is gone ─────────────────────────────────────────────────────

    def let_go(self, owned: Owned, owner: Owner, call: Call) -> None:
        """*owner*, whose connection *call* is of, no longer holds the session."""
        self._services.pipeline.forget(call)
        if self._services.pipeline.may_store_late(call):
            self._late[owned.record.key] = (call, owned.record.owner_epoch)
        holding = self._owners.get(owned.record.key)
        if holding is not None and holding[0] is owner:
            del self._owners[owned.record.key]

    async def disconnected(self, owned: Owned, record: SessionRecord, *, sends_will: bool) -> None:
        """
        Publish the will that is due, end the session or keep it for its expiry.

        *record* is the session as it shall be kept (expiry changed by DISCONNECT, say).
        """
        now_ms = clock.wall_ms()
        gone = record.disconnected(wall_ms=now_ms, sends_will=sends_will)
        gone = await wills.publish_owed(self._services, wills.with_due(gone, wall_ms=now_ms))
        if gone.expiry_s == 0 and not gone.owed:
            await self._end(gone, owned.version)
            return
        put = Put(gone.key, encode_session(gone), owned.version)
        await self._services.directory.put([put])  # lost: somebody else has it now

    async def _end(self, record: SessionRecord, version: int) -> bool:
        """Delete the record; if it was still ours, forget what the session had."""
        (result,) = await self._services.directory.put([Put(record.key, None, version)])
        if result.is_ours and record.is_kept:
            await self._forget(record)
        return result.is_ours

    async def _forget(self, record: SessionRecord) -> None:
        """Rows, group and memberships of a kept session that ended."""
        subscriptions = [item.subscribed() for item in record.subscriptions]
        gone = rows(record, [item.subject_filter for item in subscriptions])
        await self._services.directory.subscribe([], gone, tenant=record.tenant)
        spec = session_group(record, subscriptions, skips_qos0=False)
        if spec.reads or record.has_group:
            await self._services.streams.drop_group(call_of(record), spec)
        for item in subscriptions:
            if item.share:
                await self.leave_share(record, item)
            if item.topic_filter.startswith(EXCLUSIVE):
                await self.give_up(record, item.subject_filter)

    # ── shared subscriptions ────────────────────────────────────────────────────────────

    async def join_share(self, record: SessionRecord, item: Subscribed) -> None:
        """Be counted as a member, so that the group lives."""
        key = share_prefix(record.tenant, item.share, item.subject_filter) + record.client_id
        await self._services.directory.put([Put(key, b"\xc0", is_bound=not record.is_kept)])

    async def leave_share(self, record: SessionRecord, item: Subscribed) -> None:
        """The last member takes the group with it."""
        prefix = share_prefix(record.tenant, item.share, item.subject_filter)
        await self._services.directory.put([Put(prefix + record.client_id, None)])
        if not any(True for _ in self._services.directory.items(prefix)):
            spec = share_group(record.tenant, item.share, item.subject_filter)
            await self._services.streams.drop_group(call_of(record), spec)

    # ── exclusive subscriptions ─────────────────────────────────────────────────────────

    async def claim(self, record: SessionRecord, subject_filter: str) -> bool:
        """Be the one session with this filter; False: another one is. Raises Refused."""
        key = exclusive_key(record.tenant, subject_filter)
        client_id = record.client_id.encode()
        put = Put(key, client_id, 0, is_bound=not record.is_kept)
        (result,) = await self._services.directory.put([put])
        return result.is_ours or result.record.value == client_id

    async def give_up(self, record: SessionRecord, subject_filter: str) -> None:
        key = exclusive_key(record.tenant, subject_filter)
        found = self._services.directory.get(key)
        if found is not None and found.value == record.client_id.encode():
            await self._services.directory.put([Put(key, None, found.version)])

    # ── what others do ──────────────────────────────────────────────────────────────────

    def _changed(self, records: Sequence[Record]) -> None:
        for item in records:
            self._last_words.changed(item.key)
            holding = self._owners.get(item.key)
            record = decode_session(item.value) if item.value is not None else None
            if holding is not None and (record is None or record.owner_epoch > holding[1]):
                del self._owners[item.key]
                holding[0].take_over()
            late = self._late.get(item.key)
            if late is not None and (record is None or record.owner_epoch > late[1]):
                del self._late[item.key]
                self._withdraw(late[0])
            if record is None:
                self._holders.remove(item.key)
                continue
            if record.is_connected:
                self._holders.set(item.key, (record.gateway, record.gateway_epoch))
                continue
            self._holders.set(item.key, None)
            if due_ms := record.due_ms():
                is_mine = record.gateway == self._services.directory.gateway
                wait_ms = 0 if is_mine else int(HELP_S * 1000)
                heapq.heappush(self._due, (due_ms + wait_ms, item.key, item.version))

    def _withdraw(self, call: Call) -> None:
        """Its client may have sent that again elsewhere, and end the exchange there."""
        if self._services.pipeline.may_store_late(call):
            self._services.pipeline.withdraw(call, is_taken=True)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            may_store_late = self._services.pipeline.may_store_late
            self._late = {key: one for key, one in self._late.items() if may_store_late(one[0])}
            orphans = self._holders.orphans(self._services.directory.is_live)
            for key in orphans + self._take_due():
                if key not in self._busy:
                    self._busy.add(key)
                    self._tasks.start(self._act(key), name=f"act {key}")

    def _take_due(self) -> list[str]:
        found: list[str] = []
        now_ms = clock.wall_ms()
        while self._due and self._due[0][0] <= now_ms:
            found.append(heapq.heappop(self._due)[1])
        return found

    async def _act(self, key: str) -> None:
        """Do what is due for a session that nobody holds; losing a race is fine."""
        try:
            async with self._acting:
                found = self._services.directory.get(key)
                if found is not None and found.value is not None:
                    await self._settle(decode_session(found.value), found.version)
        except Refused as error:
            logger.info("session %s: %s; later", key, error)
        finally:
            self._busy.discard(key)

    async def _settle(self, record: SessionRecord, version: int) -> None:
        directory, now_ms = self._services.directory, clock.wall_ms()
        if record.is_connected:
            if directory.is_live(record.gateway, record.gateway_epoch):
                return
            logger.info("session %s lost its gateway %s", record.client_id, record.gateway)
            if self._presence is not None:
                self._presence.orphaned(record)
            record = msgspec.structs.replace(record, is_cut=True)
            await self.disconnected(Owned(record, version, True), record, sends_will=True)
            return
        settled = await wills.publish_owed(self._services, wills.with_due(record, wall_ms=now_ms))
        if settled.owed and settled == record:  # its store is away
            heapq.heappush(self._due, (now_ms + wills.AGAIN_MS, record.key, version))
            return
        if settled != record:
            put = Put(record.key, encode_session(settled), version)
            (result,) = await directory.put([put])
            if not result.is_ours or settled.owed:
                return
            record, version = settled, result.record.version
        if record.ends_at_ms and record.ends_at_ms <= now_ms:
            self.expired_count += await self._end(record, version)
