"""
Records of plain messages, built in one pass from what a client sent: the store's way in.

A message is *plain* if its properties need no look inside beyond its id and tag: no delay, no
transaction, no order key, nothing that only the store may set. Its text is stored as it came.
"""

import re
import struct
from functools import lru_cache
from typing import Final

from protocols.remoting.records import (
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_V1_MAX,
    body_crc,
)

_FRONT: Final = struct.Struct(">IIIIIQQIQ8sQ8sIQI")
"""Total, magic, CRC, queue id, flag, queue offset, position, sysFlag, born time and host, store
time and host, reconsume times, prepared offset, body length."""

FRONT_BYTES: Final = _FRONT.size
_U16: Final = struct.Struct(">H")
_needs_look: Final = re.compile(
    rb"(?:\A|\x02)(?:DELAY|TIMER_[A-Z]+_[A-Z]+|TIMER_[A-Z_]+|TRAN_MSG|POP_CK|POP_CK_OFFSET"
    rb"|INNER_MULTI_[A-Z_]+|CLUSTER|TG_HELD|__SHARDINGKEY)\x01"
).search
_ID: Final = b"UNIQ_KEY\x01"
REST_BYTES_MAX: Final = 256
"""Longer texts are looked at each time."""


@lru_cache(maxsize=4096)
def _is_plain(rest: bytes) -> bool:
    """Of a text without its id: most are like one before, whatever topic they go to."""
    return _needs_look(rest) is None


@lru_cache(maxsize=16)
def _suffix_of(cluster: str) -> tuple[bytes, int]:
    """
    (what follows a client's properties, how long these may be).

    The same objects for all queues: a store has tens of thousands, and few fit a cache.
    """
    suffix = f"CLUSTER\x01{cluster}\x02".encode()
    return suffix, PROPERTIES_BYTES_MAX - len(suffix) - 1


class PlainRecords:
    """What the records of one (topic, queue) of a store share."""

    __slots__ = (
        "_magic",
        "_queue_id",
        "_store_host",
        "_suffix",
        "_text_max",
        "layout",
        "topic_field",
    )

    def __init__(self, topic: str, queue_id: int, store_host: bytes, cluster: str) -> None:
        name = topic.encode()
        is_short = len(name) <= TOPIC_BYTES_V1_MAX
        self._magic = MAGIC_V1 if is_short else MAGIC_V2
        self.topic_field = (bytes((len(name),)) if is_short else _U16.pack(len(name))) + name
        self._queue_id = queue_id
        self._store_host = store_host
        self._suffix, self._text_max = _suffix_of(cluster)
        self.layout = (len(self.topic_field), self._suffix)
        """Records of the same text and body size have the same layout where this is the same."""

    def message_id(self, text: bytes) -> bytes:
        """The id of a plain message; empty: it is not plain, or has none."""
        at, end = self.id_span(text)
        if at < 0 or len(text) > self._text_max:
            return b""
        rest = text[:at] + text[end:]
        is_plain = _is_plain if len(rest) <= REST_BYTES_MAX else _is_plain.__wrapped__
        return text[at:end] if is_plain(rest) else b""

    @staticmethod
    def id_span(text: bytes) -> tuple[int, int]:
        """(index of the id, index behind it); -1: there is none."""
        at = text.find(_ID)
        if at < 0 or (at and text[at - 1] != 2):
            return -1, -1
        at += len(_ID)
        end = text.find(b"\x02", at)
        return at, end if end >= 0 else len(text)

    def around(self, text: bytes) -> tuple[bytes, bytes]:
        """What stands between topic and properties, and behind these."""
        suffix = self._suffix if text[-1] == 2 else b"\x02" + self._suffix
        return _U16.pack(len(text) + len(suffix)), suffix

    def record_size(self, body_size: int, text: bytes) -> int:
        before, suffix = self.around(text)
        return (
            FRONT_BYTES + body_size + len(self.topic_field) + len(before) + len(text) + len(suffix)
        )

    def front(
        self,
        size: int,
        crc: int,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_count: int,
        body_size: int,
    ) -> bytes:
        """A record up to its body. The engine fills in offsets and store time."""
        return _FRONT.pack(
            size,
            self._magic,
            crc,
            self._queue_id,
            flag & 0xFFFFFFFF,
            0,
            0,
            sys_flag,
            born_ms,
            born_host,
            0,
            self._store_host,
            reconsume_count,
            0,
            body_size,
        )

    def add(
        self,
        pieces: list[bytes | memoryview],
        body: bytes | memoryview,
        text: bytes,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_count: int,
    ) -> int:
        """Append one record's pieces; its size."""
        suffix = self._suffix
        if text[-1] != 2:
            suffix = b"\x02" + suffix
        text_size = len(text) + len(suffix)
        body_size = len(body)
        size = FRONT_BYTES + body_size + len(self.topic_field) + 2 + text_size
        front = self.front(
            size, body_crc(body), flag, sys_flag, born_ms, born_host, reconsume_count, body_size
        )
        pieces += (front, body, self.topic_field, _U16.pack(text_size), text, suffix)
        return size
