"""One message as a record and as the item of a SEND frame that tells of it."""

from hashlib import blake2b
from typing import Final

from gateway.clusters.batches import Copy
from gateway.mapping import clean, without_reserved
from protocols.canonical import RELEASED_ONCE_PREFIX, Message
from protocols.errors import Code, Refused
from protocols.remoting.codes import SysFlag
from protocols.remoting.records import MORE, MORE_BYTES, MORE_BYTES_MAX, encode_properties
from protocols.remoting.sending import ITEM, NO_ONCE_KEY, ItemFlag

HAS_ONCE_KEY: Final = int(ItemFlag.HAS_ONCE_KEY)  # plain numbers: enum arithmetic costs 0.5 µs
RETAIN: Final = int(ItemFlag.RETAIN)
CLEARS_RETAINED: Final = int(ItemFlag.CLEARS_RETAINED)
DELAYED: Final = int(ItemFlag.DELAYED)
HALF: Final = int(ItemFlag.HALF)
PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)


def encode_item(
    copy: Copy,
    message: Message,
    body: bytes,
    message_id: bytes,
    set_index: int,
    pieces: list[bytes | memoryview],
    wall_ms: int,
) -> tuple[int, bytes]:
    """
    Append the pieces of one message's record; (its size in bytes, its item).

    Raises Refused if it fits no record.
    """
    flags, once_key, extra = copy.flags, NO_ONCE_KEY, b""
    packing, is_empty = packing_of(message), not body
    if (
        message.properties
        or message.keys
        or message.expires_at_ms
        or message.deliver_at_ms
        or message.producer_group
    ):
        flags |= held_flags(message)
        if not copy.head.is_apart:
            extra = encode_extra(message)
        else:
            extra, more = encode_apart(message)
            if not copy.is_primary:
                body, packing = body + more, packing | MORE
    size = copy.template.add(
        pieces,
        body,
        message_id,
        copy.queue_id,
        message.born_ms or wall_ms,
        extra,
        packing,
        message.flag,
    )
    if message.once_key:
        once_key = once_hash(message.once_key)
        if copy.ordinal:
            once_key = copy_key(once_key, copy.ordinal)
        flags |= HAS_ONCE_KEY
    if is_empty and flags & RETAIN:
        flags |= CLEARS_RETAINED
    return size, ITEM.pack(size, set_index, flags, copy.order_hash, message.expires_at_ms, once_key)


def plain_item(copy: Copy, set_index: int, size: int, *, is_empty: bool) -> bytes:
    """The item of a message that says nothing which its head does not."""
    flags = copy.flags | CLEARS_RETAINED if is_empty and copy.flags & RETAIN else copy.flags
    return ITEM.pack(size, set_index, flags, copy.order_hash, 0, NO_ONCE_KEY)


def once_hash(key: bytes) -> bytes:
    """A once-key of any length as the 16 bytes of the wire."""
    return key if len(key) == 16 else blake2b(key, digest_size=16).digest()


def copy_key(key: bytes, ordinal: int) -> bytes:
    """The once-key of a copy that is not the primary: a store may keep several of a message."""
    if key.startswith(RELEASED_ONCE_PREFIX):
        at = len(RELEASED_ONCE_PREFIX)
        return key[:at] + bytes((min(ordinal, 255),)) + key[at + 1 :]
    return blake2b(key + ordinal.to_bytes(4, "big"), digest_size=16).digest()


def held_flags(message: Message) -> int:
    """``ItemFlag`` bits of a message that is not visible at once."""
    if message.producer_group:
        return HALF
    return DELAYED if message.deliver_at_ms else 0


def packing_of(message: Message) -> int:
    """sysFlag of its record."""
    return message.sys_flag | PREPARED if message.producer_group else message.sys_flag


def encode_extra(message: Message) -> bytes:
    """The stored properties of one message alone."""
    return encode_properties(_told(message) + _own(message))


def encode_apart(message: Message) -> tuple[bytes, bytes]:
    """
    The same where a record has no room for them: (what a store looks at, the publisher's).

    Raises Refused if they are too many to stand anywhere.
    """
    more = encode_properties(_own(message))
    if len(more) > MORE_BYTES_MAX:
        what = f"{len(more)} bytes of properties"
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, what, f"at most {MORE_BYTES_MAX}")
    return encode_properties([*_told(message), (MORE_BYTES, str(len(more)))]), more


def _told(message: Message) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    if message.keys:
        pairs.append(("KEYS", clean(message.keys)))
    if message.expires_at_ms:
        pairs.append(("TG_EXPIRES_AT", str(message.expires_at_ms)))
    if message.deliver_at_ms:
        pairs.append(("TIMER_DELIVER_MS", str(message.deliver_at_ms)))
    if message.producer_group:
        pairs += (("TRAN_MSG", "true"), ("PGROUP", clean(message.producer_group)))
    return pairs


def _own(message: Message) -> list[tuple[str, str]]:
    return [(name, clean(value)) for name, value in without_reserved(message.properties)]
