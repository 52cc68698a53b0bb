"""What the directory knows of MQTT sessions: msgpack values under ``mqtt/…`` keys."""

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from protocols.canonical import ONCE_BYTES, Head, Message, Properties
from protocols.errors import Code, Refused
from protocols.mqtt.mapping import TAG, is_large, stored_properties
from protocols.mqtt.packet_ids import (
    ALL,
    PACKET_ID_MAX,
    SPANS_MAX,
    Block,
    Span,
    block_count,
    next_block,
)
from protocols.mqtt.packets import NEVER_EXPIRES_S, Will
from protocols.mqtt.properties import Property, find_int
from protocols.mqtt.session import Subscribed

SESSION_PREFIX = "mqtt/session/"
SHARE_PREFIX = "mqtt/share/"
EXCLUSIVE_PREFIX = "mqtt/exclusive/"

GENERATION_S: Final = 7 * 86_400
"""By then stores have long forgotten the keys before (``once_released_window_s``, a day)."""

GENERATIONS_MAX: Final = 4096
"""Packet ids of a session that have one; beyond, the store that is away is waited for."""


class WillRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A will, ready to be published by any gateway."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: tuple[tuple[str, str], ...] = ()
    """As stored."""

    expiry_s: int = -1
    """Counted from when it is published; -1: never."""

    delay_s: int = 0

    @classmethod
    def from_packet(cls, will: Will, source: Properties = ()) -> "WillRecord":
        return cls(
            topic=will.topic,
            payload=will.payload,
            qos=will.qos,
            retain=will.retain,
            properties=stored_properties(will.properties) + source,
            expiry_s=find_int(will.properties, Property.MESSAGE_EXPIRY, -1),
            delay_s=find_int(will.properties, Property.WILL_DELAY, 0),
        )

    def message(self, client_id: str, *, once_key: bytes, wall_ms: int) -> Message:
        head = Head(
            subject=self.topic,
            tag=TAG,
            qos=self.qos,
            retain=self.retain,
            clears_retained=self.retain and not self.payload,
            order_key=client_id,
            properties=(("mqtt_topic", self.topic), ("mqtt_qos", str(self.qos))),
            is_apart=is_large(self.properties, self.topic),
        )
        return Message(
            head,
            self.payload,
            properties=self.properties,
            once_key=once_key,
            expires_at_ms=wall_ms + self.expiry_s * 1000 if self.expiry_s >= 0 else 0,
        )


class OwedWill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A will that is due and not published yet."""

    will: WillRecord
    owner_epoch: int
    """Of the connection that it was given with."""

    due_ms: int


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``Subscribed`` as kept."""

    topic_filter: str
    subject_filter: str
    tag: int
    share: str = ""
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    asked_ms: int = 0

    @classmethod
    def of(cls, item: Subscribed) -> "SubscriptionRecord":
        return cls(**item._asdict())

    def subscribed(self) -> Subscribed:
        return Subscribed(
            self.topic_filter,
            self.share,
            self.subject_filter,
            self.qos,
            self.no_local,
            self.retain_as_published,
            self.identifier,
            self.tag,
            self.asked_ms,
        )


class LeftoverRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A publish to the client that was under way when its connection broke; see ``leftovers``."""

    packet_id: int = 0
    """0: it had not been sent yet."""

    stage: int = 0
    qos: int
    retain: bool = False
    identifiers: tuple[int, ...] = ()
    record: bytes = b""
    """The message as stored; empty once PUBREC has come."""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One client id: who owns it, and what outlives its connection."""

    tenant: str
    client_id: str
    gateway: str
    gateway_epoch: int
    owner_epoch: int
    """Rises with each connection; stores refuse what comes with a lower one."""

    incarnation: int
    """Owner epoch of its creation: two sessions of one client id are never confused."""

    listener: str = ""
    identity: str = "anonymous"
    roles: tuple[str, ...] = ()
    is_anonymous: bool = False
    is_connected: bool = False
    is_kept: bool = False
    """Its group and subscriptions are kept at the stores. A kept session that is resumed with
    expiry 0 ends with that connection and is kept until then."""

    expiry_s: int = 0
    """Session Expiry Interval: 0 ends with the connection, 2^32-1 never."""

    will: WillRecord | None = None
    will_at_ms: int = 0
    """Wall time at which the will of a lost connection is due."""

    owed: tuple[OwedWill, ...] = ()
    """Wills that are due, of this connection and earlier ones."""

    ends_at_ms: int = 0
    """Wall time at which the session of a lost connection ends; 0: never."""

    subscriptions: tuple[SubscriptionRecord, ...] = ()
    given_up: tuple[SubscriptionRecord, ...] = ()
    """Subscriptions that ended while publishes to the client were unacknowledged."""

    received: tuple[int, ...] = ()
    """Packet ids of QoS 2 publishes that were stored and not released when it was left."""

    generations: tuple[tuple[int, int], ...] = ()
    """
    (packet id, when in seconds) of QoS 2 exchanges whose end a store that was away has not heard
    of: what is published under these ids has once-keys that no earlier exchange had.
    """

    leftovers: tuple[LeftoverRecord, ...] = ()
    next_id: int = 1
    """Packet id of the next publish to the client, or of the first of a connection."""

    id_count: int = 0
    """How many ids from ``next_id`` on its connection gives; 0: any."""

    in_doubt: tuple[Span, ...] = ()
    """Ids of earlier connections that a store may have in flight, the newest last."""

    is_cut: bool = False
    """Its last connection ended with its gateway: nothing was put aside."""

    is_contested: bool = False
    """A gateway that had it may not have heard yet that it is another's now."""

    has_group: bool = False
    """It has subscribed once: its group may have something in flight, whatever it reads now."""

    @property
    def key(self) -> str:
        return session_key(self.tenant, self.client_id)

    @property
    def ids(self) -> Block:
        """What its connection gives."""
        return Block(self.next_id, self.next_id + self.id_count - 1) if self.id_count else ALL

    def due_ms(self) -> int:
        """When something is to be done about a lost connection; 0: never."""
        if self.is_connected:
            return 0
        owed_ms = self.owed[0].due_ms if self.owed else 0
        will_ms = self.will_at_ms if self.will else 0
        times = [at for at in (owed_ms, will_ms, self.ends_at_ms) if at]
        return min(times, default=0)

    def disconnected(self, *, wall_ms: int, sends_will: bool) -> "SessionRecord":
        """The record once the connection is gone [MQTT 5, 3.1.3.2.2: the earlier of the two]."""
        will = self.will if sends_will else None
        ends_at_ms = 0 if self.expiry_s == NEVER_EXPIRES_S else wall_ms + self.expiry_s * 1000
        delay_s = min(will.delay_s, self.expiry_s) if will else 0
        return msgspec.structs.replace(
            self,
            is_connected=False,
            will=will,
            will_at_ms=wall_ms + delay_s * 1000 if will else 0,
            ends_at_ms=ends_at_ms,
        )


def with_ids(record: SessionRecord, *, is_told: bool, inflight_max: int) -> SessionRecord:
    """
    The ids that the next connection of a session gives.

    Not *is_told*: the last one has not written down what it had in flight, or it died. Any of its
    ids may be in use; those of QoS 2 messages of a share, which no store marks, at the client.
    """
    if not record.is_kept:
        return record
    next_id, in_doubt = record.next_id, list(record.in_doubt)
    if not is_told and record.id_count:
        in_doubt.append((next_id, record.ids.last))
        next_id = record.ids.last % PACKET_ID_MAX + 1
    block, left = next_block(next_id, block_count(inflight_max), in_doubt[-SPANS_MAX:])
    return msgspec.structs.replace(
        record,
        next_id=block.first,
        id_count=block.last - block.first + 1,
        in_doubt=tuple(left),
    )


def check_owner(record: SessionRecord, identity: str, *, wall_ms: int) -> None:
    """Raises Refused: the client id is another identity's, which is connected or kept."""
    is_over = not record.is_connected and 0 < record.ends_at_ms <= wall_ms
    if not is_over and record.identity != identity:
        raise Refused(Code.FORBIDDEN, record.client_id, "the session is another user's")


def session_key(tenant: str, client_id: str) -> str:
    return f"{SESSION_PREFIX}{tenant}/{client_id}"


def share_prefix(tenant: str, share: str, subject_filter: str) -> str:
    """Key prefix of the members of a shared subscription."""
    return f"{SHARE_PREFIX}{tenant}/{share}/{subject_filter}\x00"


def exclusive_key(tenant: str, subject_filter: str) -> str:
    """Key of who has an exclusive subscription."""
    return f"{EXCLUSIVE_PREFIX}{tenant}/{subject_filter}"


def with_generations(
    record: SessionRecord, packet_ids: Collection[int], *, wall_s: int
) -> SessionRecord:
    """New generations for these packet ids. Raises Refused: there are too many."""
    kept = {
        number: made_s
        for number, made_s in record.generations
        if made_s + GENERATION_S > wall_s or number in packet_ids
    }
    kept.update({number: max(wall_s, kept.get(number, 0) + 1) for number in packet_ids})
    if len(kept) > GENERATIONS_MAX:
        raise Refused(Code.TOO_MANY_REQUESTS, record.client_id, "too many packet ids in doubt")
    return msgspec.structs.replace(record, generations=tuple(sorted(kept.items())))


def will_once_key(record: SessionRecord, owner_epoch: int) -> bytes:
    """Published once per (session, owner epoch)."""
    return _once_key("will", record, owner_epoch)


def offline_once_key(record: SessionRecord) -> bytes:
    """Told once per (session, owner epoch), whoever finds out."""
    return _once_key("offline", record, record.owner_epoch)


def _once_key(word: str, record: SessionRecord, owner_epoch: int) -> bytes:
    text = f"{word}\x00{record.tenant}\x00{record.client_id}\x00{owner_epoch}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=ONCE_BYTES).digest()


def subscription_records(items: Sequence[Subscribed]) -> tuple[SubscriptionRecord, ...]:
    return tuple(SubscriptionRecord.of(item) for item in items)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SessionRecord)


def encode_session(record: SessionRecord) -> bytes:
    return _encoder.encode(record)


def decode_session(value: bytes) -> SessionRecord:
    return _decoder.decode(value)
