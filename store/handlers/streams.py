"""
Standing streams: deliveries pushed to gateways as long as their credit lasts.

What becomes visible wakes groups; at the end of each tick every woken stream with credit takes
from its group, and each connection gets one DELIVER with everything, a record needed by many
streams once. The credit is absolute: a stream may have received so many deliveries since it
opened (store page, rule 12).
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from random import Random

from protocols.canonical import StoredMessage
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.groups import ShareStrategy
from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from protocols.remoting.delivering import DeliveryItem, pack_delivery, pack_run
from protocols.remoting.private import (
    FRAME_BYTES_MAX,
    FRAME_ITEMS_MAX,
    PrivateCode,
    StreamEnded,
    encode_body,
)
from protocols.remoting.records import decode_record
from protocols.remoting.settling import AckItem
from store.answers import Granted, GrantedRun
from store.engine import Engine
from store.handlers.connection import Connection
from store.handlers.outgoing import FRAME_RESERVE, ITEM_BYTES, Outbox, Stream
from store.handlers.presence import GatewayKey
from store.handlers.sharing import KEYS, Member, at_random, by_hash

logger = logging.getLogger("tidegate.store.streams")

OUTBOX_BYTES_HIGH = FRAME_BYTES_MAX >> 1
"""A frame of so many bytes gets no further stream in this tick."""

IN_EXCLUSIVE_USE = "in exclusive use"


class Streams:
    """All streams of a store."""

    def __init__(self, engine: Engine, *, lost_s: float) -> None:
        self._engine = engine
        self._lost_s = lost_s
        self._by_number: dict[tuple[Connection, int], Stream] = {}
        self._by_group: dict[int, dict[Stream, None]] = {}
        self._lost: dict[Stream, None] = {}
        self._woken: dict[int, None] = {}
        self._again: dict[Stream, Sequence[Granted]] = {}
        """What was in flight when a stream was opened and is yet to be sent, before anything new:
        a frame of each connection in a tick, however many streams come back at once."""

        self._outboxes: dict[Connection, Outbox] = {}
        self._holders = 0
        self._strategies: dict[int, ShareStrategy] = {}
        """Of groups whose streams do not simply take turns."""

        self._random = Random(engine.epoch)

    def __len__(self) -> int:
        return len(self._by_number) + len(self._lost)

    # ── requests ────────────────────────────────────────────────────────────────────────

    def open(
        self,
        connection: Connection,
        gateway: GatewayKey,
        number: int,
        group: int,
        *,
        credit: int,
        holds: Sequence[tuple[int, int]],
        now: Now,
        is_exclusive: bool = False,
        priority: int = 0,
        strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN,
        member: str = "",
    ) -> int:
        """
        Open a stream, or resume the one that a lost connection had under the same number.

        Returns:
            How many deliveries come first because they were in flight. They count towards the
            credit and are sent regardless of it. (One that cannot be read does not come; who waits
            for it finds it gone the next time.)

        Raises:
            Refused: somebody reads the group exclusively, or this one would.
        """
        self.close(connection, number, now)
        self._check_exclusive(gateway, number, group, is_exclusive=is_exclusive)
        self._holders += 1
        stream = Stream(connection, gateway, number, group, self._holders)
        stream.is_exclusive = is_exclusive
        stream.priority = priority
        stream.member = member
        if strategy:
            self._strategies[group] = strategy
        elif self._strategies:
            self._strategies.pop(group, None)
        granted = self._engine.resume(group, stream.holder, holds, now)
        stream.credit = credit
        self._by_number[connection, number] = stream
        self._by_group.setdefault(group, {})[stream] = None
        for lost in list(self._lost):
            if (lost.group, lost.number, lost.gateway) == (group, number, gateway):
                self._forget(lost, now)
        if granted:
            self._again[stream] = granted
        self._woken[group] = None
        return len(granted)

    def _check_exclusive(
        self, gateway: GatewayKey, number: int, group: int, *, is_exclusive: bool
    ) -> None:
        others = [
            other
            for other in self._by_group.get(group, ())
            if not other.is_retired and (other.gateway, other.number) != (gateway, number)
        ]
        if any(other.is_exclusive for other in others) or (is_exclusive and others):
            raise Refused(Code.FORBIDDEN, f"group {group}", IN_EXCLUSIVE_USE)

    def retire(self, connection: Connection, number: int) -> None:
        """Nothing new goes to a stream; it is no consumer any more."""
        stream = self._by_number.get((connection, number))
        if stream is not None and not stream.is_retired:
            stream.is_retired = True
            stream.credit = 0
            self._again.pop(stream, None)
            self._engine.retire_holder(stream.holder)
            self._woken[stream.group] = None

    def free_credit(self, group: int) -> int:
        """Deliveries that the streams of *group* would take now."""
        streams = [s for s in self._candidates(group) if s.lost_at is None]
        return sum([max(0, stream.credit - stream.sent) for stream in streams])

    def _candidates(self, group: int) -> list[Stream]:
        """Streams that may be served; of a group with one active consumer that one."""
        streams = list(self._by_group.get(group, ()))
        if not self._is_single(group):
            return streams
        # the first that came is the active one, and the next when it has gone
        return [stream for stream in streams if not stream.is_retired][:1]

    def _is_single(self, group: int) -> bool:
        policy = self._engine.policy_of(group)
        is_single = policy is not None and policy.is_single_active
        return is_single or self._strategies.get(group) is ShareStrategy.STICKY

    def allow(self, connection: Connection, number: int, credit: int) -> None:
        """Set the total of deliveries that a stream may have received; it may be lower."""
        stream = self._by_number.get((connection, number))
        if stream is not None and not stream.is_retired:
            is_waiting = stream.credit <= stream.sent
            stream.credit = credit
            if is_waiting and credit > stream.sent:
                self._woken[stream.group] = None

    def close(self, connection: Connection, number: int, now: Now) -> None:
        """End a stream; its deliveries return in place (inherited ones wait)."""
        stream = self._by_number.get((connection, number))
        if stream is not None:
            self._forget(stream, now)

    # ── ends ────────────────────────────────────────────────────────────────────────────

    def connection_lost(self, connection: Connection, now: Now) -> None:
        """Its streams wait for a resume on another connection, for a moment."""
        for key, stream in list(self._by_number.items()):
            if stream.connection is connection:
                del self._by_number[key]
                self._again.pop(stream, None)
                stream.lost_at = now.monotonic
                self._lost[stream] = None
        self._outboxes.pop(connection, None)

    def end_gateway(self, gateway: GatewayKey, code: Code, remark: str, now: Now) -> None:
        """A gateway epoch (and those before it) is over at this store."""
        for stream in [*self._by_number.values(), *self._lost]:
            if stream.gateway.gateway == gateway.gateway and stream.gateway.epoch <= gateway.epoch:
                self._end(stream, code, remark, now, is_lost=True)

    def end_group(self, group: int, code: Code, remark: str, now: Now) -> None:
        """The group is gone or has another owner."""
        for stream in list(self._by_group.get(group, ())):
            self._end(stream, code, remark, now)

    def expire(self, now: Now) -> None:
        """End the streams that nobody resumed in time."""
        for stream in list(self._lost):
            if stream.lost_at is not None and stream.lost_at + self._lost_s <= now.monotonic:
                self._forget(stream, now, is_lost=True)

    def deadline(self) -> float | None:
        """When ``expire`` is next worth a call."""
        times = [s.lost_at + self._lost_s for s in self._lost if s.lost_at is not None]
        return min(times, default=None)

    # ── the end of a tick ───────────────────────────────────────────────────────────────

    def wake(self, groups: Iterable[int]) -> None:
        """These groups have something to take."""
        for group in groups:
            if group in self._by_group:
                self._woken[group] = None

    @property
    def has_woken(self) -> bool:
        """``serve`` has something to look at."""
        return bool(self._woken)

    def serve(self, now: Now) -> bool:
        """Deliver what credit allows; True: a slow peer or a full frame left more to do."""
        woken, self._woken = self._woken, {}
        busy = self._serve_again(now) if self._again else ()
        for group in woken:
            if group in busy:
                self._woken[group] = None
            elif not self._serve_unacked(group, now):
                self._serve_group(group, now)
        epoch = self._engine.epoch
        for outbox in self._outboxes.values():
            outbox.send(epoch)
        self._outboxes.clear()
        return bool(self._woken)

    def flush(self, connection: Connection) -> None:
        """Queue what was built for *connection* in this tick, before an answer."""
        outbox = self._outboxes.pop(connection, None)
        if outbox is not None:
            outbox.send(self._engine.epoch)

    def _serve_again(self, now: Now) -> set[int]:
        """Send on what was in flight; the groups where some of it is left."""
        waiting, self._again = self._again, {}
        for stream, granted in waiting.items():
            outbox = self._outbox(stream.connection)
            room = 0 if outbox.is_slow else outbox.room
            if room > 0:
                self._deliver(stream, granted[:room], now)
                granted = granted[room:]
            if granted:
                self._again[stream] = granted
                self._woken[stream.group] = None
        return {stream.group for stream in self._again}

    def _serve_unacked(self, group: int, now: Now) -> bool:
        """Serve a group of one stream that nobody acks; False: it may be of another kind."""
        streams = self._by_group.get(group)
        if streams is None:
            return True
        if len(streams) > 1:
            return False
        (stream,) = streams
        count = stream.credit - stream.sent
        if count <= 0 or stream.lost_at is not None:
            return True  # woken again by new credit, or by its end
        outbox = self._outboxes.get(stream.connection) or self._outbox(stream.connection)
        if outbox.is_slow or outbox.byte_count >= OUTBOX_BYTES_HIGH:
            return False
        stretches = self._engine.take_unacked(group, min(count, FRAME_ITEMS_MAX), now)
        if stretches is None:
            return False
        taken = 0
        for stretch in stretches:
            taken += len(stretch.positions)
            if stretch.byte_count >= OUTBOX_BYTES_HIGH:
                run = GrantedRun(stretch.positions, 0, stretch.flags, stretch.tags)
                self._deliver(stream, run, now)
            else:
                outbox.add_stretch(stream.number, group, stretch, self._engine.epoch)
                stream.sent += len(stretch.positions)
        if taken == FRAME_ITEMS_MAX:
            self._woken[group] = None
        return True

    def _serve_group(self, group: int, now: Now) -> None:
        streams = self._by_group.get(group)
        if not streams:
            return
        strategy = self._strategies.get(group)
        is_single = self._is_single(group)
        if strategy is not None and not is_single and len(streams) > 1:
            self._serve_members(group, strategy, now)
            return
        eager = [s for s in self._candidates(group) if s.credit > s.sent and s.lost_at is None]
        levels = [eager]
        if len(eager) > 1 and any([stream.priority for stream in eager]):
            numbers = sorted({stream.priority for stream in eager}, reverse=True)
            levels = [[s for s in eager if s.priority == number] for number in numbers]
        for level in levels:
            if not self._serve_equals(group, level, now, keep_order=is_single):
                break

    def _serve_equals(
        self, group: int, eager: Sequence[Stream], now: Now, *, keep_order: bool
    ) -> bool:
        """Serve streams of the same priority; False: nothing is left for others."""
        streams, is_left = self._by_group[group], bool(eager)
        share = FRAME_ITEMS_MAX
        if len(eager) > 1:  # competing consumers share what is there
            share = max(1, -(-self._engine.ready_count(group) // len(eager)))
        for stream in eager:
            outbox = self._outbox(stream.connection)
            room = 0 if outbox.is_slow else outbox.room
            count = min(stream.credit - stream.sent, share, room)
            if count <= 0:
                self._woken[group] = None
                continue
            granted = self._engine.take(group, count, now, holder=stream.holder)
            if not granted:
                return False
            self._deliver(stream, granted, now)
            if not keep_order:  # last in line for the next
                streams.pop(stream, None)
                streams[stream] = None
            is_left = len(granted) == count
            if is_left:
                self._woken[group] = None
        return is_left

    def _serve_members(self, group: int, strategy: ShareStrategy, now: Now) -> None:
        """Take for all members at once, then give each what its strategy says."""
        streams, members = self._members(group)
        count = min(FRAME_ITEMS_MAX, sum([member.room for member in members]))
        if not count:
            return
        holder = streams[0].holder
        granted = list(self._engine.take(group, count, now, holder=holder))
        if not granted:
            return
        if strategy is ShareStrategy.RANDOM:
            indexes = at_random(members, len(granted), self._random)
        else:
            indexes = by_hash(members, self._keys(granted, KEYS[strategy]))
        parts: dict[int, list[Granted]] = {}
        for index, grant in zip(indexes, granted, strict=True):
            parts.setdefault(index, []).append(grant)
        for index, part in parts.items():
            if index:
                positions = [grant.position for grant in part]
                self._engine.hand_over(group, positions, streams[index].holder)
        for index, part in parts.items():
            self._deliver(streams[index], part, now)
        if len(granted) == count:
            self._woken[group] = None

    def _members(self, group: int) -> tuple[list[Stream], list[Member]]:
        """Streams that take part, and what each has room for."""
        streams = [s for s in self._by_group[group] if not s.is_retired and s.lost_at is None]
        members: list[Member] = []
        for stream in streams:
            outbox = self._outbox(stream.connection)
            room = max(0, stream.credit - stream.sent)
            if room and (outbox.is_slow or not outbox.room):
                room = 0
                self._woken[group] = None  # again when its peer reads
            members.append(Member(stream.member, room))
        return streams, members

    def _keys(
        self, granted: Sequence[Granted], key_of: Callable[[StoredMessage], str]
    ) -> list[str]:
        """What each is hashed by; one that cannot be read is dealt with when it is delivered."""
        keys: list[str] = []
        for grant in granted:
            try:
                keys.append(key_of(decode_record(self._engine.record_at(grant.record_position))))
            except Refused:
                keys.append("")
        return keys

    def _deliver(self, stream: Stream, granted: Sequence[Granted], now: Now) -> int:
        """Pack *granted* into the connection's frame; how many could be read and were."""
        outbox = self._outbox(stream.connection)
        done = 0
        if isinstance(granted, GrantedRun):
            done = self._deliver_run(stream, outbox, granted)
            stream.sent += done
            if done == len(granted):
                return done
            granted = granted[done:]
        if outbox.runs:
            outbox.send(self._engine.epoch)  # the order of a stream: its deliveries, then its runs
        return done + self._deliver_each(stream, outbox, granted, now)

    def _deliver_run(self, stream: Stream, outbox: Outbox, granted: GrantedRun) -> int:
        """As few wire runs as its records make; how many deliveries, from its beginning."""
        positions, count, at = granted.positions, len(granted), 0
        while at < count:
            first = outbox.indexes.get(positions[at], -1)
            if first >= 0:
                stop = at + outbox.known_count(positions, at, first)
            else:
                stop = at + outbox.unknown_count(positions, at)
                try:
                    lengths, records = self._engine.records_at(positions[at:stop])
                except Refused:
                    return at
                size = sum(lengths) + ITEM_BYTES * len(lengths)
                if outbox.would_overflow(size):
                    outbox.send(self._engine.epoch)
                if size > FRAME_BYTES_MAX - FRAME_RESERVE:
                    return at
                first = outbox.add_records(positions[at:stop], lengths, records, size)
            run = stream.number, stream.group, granted.grant, 1, granted.flags, first, stop - at
            outbox.runs.append(pack_run(*run, granted.tags))
            outbox.byte_count += ITEM_BYTES
            at = stop
        return count

    def _deliver_each(
        self, stream: Stream, outbox: Outbox, granted: Sequence[Granted], now: Now
    ) -> int:
        record_at = self._engine.record_at
        number, group, delivered = stream.number, stream.group, 0
        for grant in granted:
            position, serial, attempt, flags, target, tags, packet_id, stage = grant
            index = outbox.indexes.get(target, -1)
            if index < 0 or len(outbox.deliveries) >= FRAME_ITEMS_MAX:
                try:
                    record = record_at(target)
                except Refused as error:
                    self._discard(stream, grant, error, now)
                    continue
                size = len(record) + ITEM_BYTES
                if outbox.would_overflow(size):
                    outbox.send(self._engine.epoch)
                index = outbox.add_records((target,), (len(record),), (record,), size)
            facts = (number, index, position, serial, attempt & 0xFFFF, flags, stage, packet_id)
            outbox.deliveries.append(pack_delivery(DeliveryItem(*facts, group, tags)))
            delivered += 1
        outbox.byte_count += ITEM_BYTES * delivered
        stream.sent += delivered
        return delivered

    def _discard(self, stream: Stream, grant: Granted, error: Refused, now: Now) -> None:
        """An entry whose record cannot be read is done: nobody will ever get it."""
        logger.error(
            "entry %d of group %d cannot be read: %s", grant.position, stream.group, error.hint
        )
        item = AckItem(stream.group, grant.position, grant.grant)
        self._engine.ack(self._engine.epoch, (item,), now)

    def _outbox(self, connection: Connection) -> Outbox:
        outbox = self._outboxes.get(connection)
        if outbox is None:
            outbox = self._outboxes[connection] = Outbox(connection)
        return outbox

    def _end(
        self, stream: Stream, code: Code, remark: str, now: Now, *, is_lost: bool = False
    ) -> None:
        if stream.lost_at is None:
            body = encode_body(StreamEnded(stream=stream.number, code=int(code), remark=remark))
            command = RemotingCommand(
                PrivateCode.STREAM_ENDED, None, body, flag=ONEWAY_FLAG, is_binary=True
            )
            stream.connection.peer.send((command,))
        self._forget(stream, now, is_lost=is_lost)

    def _forget(self, stream: Stream, now: Now, *, is_lost: bool = False) -> None:
        key = (stream.connection, stream.number)
        if self._by_number.get(key) is stream:
            del self._by_number[key]
        self._lost.pop(stream, None)
        self._again.pop(stream, None)
        streams = self._by_group.get(stream.group, {})
        streams.pop(stream, None)
        if not streams:
            self._by_group.pop(stream.group, None)
            self._strategies.pop(stream.group, None)
        self._engine.end_holder(stream.holder, now, is_lost=is_lost and not streams)
