"""
Frames: bytes in, methods and whole messages out; and back.

A read buffer is parsed in one pass by index. basic.publish, ack and deliver have paths of their
own, because they are nearly all of the traffic: a publish whose frames are all in the buffer
becomes one tuple without an object per frame, its arguments still encoded (the channel keeps
what it decoded of them before). Source: AMQP 0-9-1 section 4.2.3; limits as in RabbitMQ.
"""

import struct
from typing import Final, NamedTuple

from protocols.amqp import replies
from protocols.amqp.method_codec import decode_method, encode_method
from protocols.amqp.methods import HAS_CONTENT, Method
from protocols.amqp.replies import AmqpFault
from protocols.errors import PeerError

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
OLD_PROTOCOL_HEADER: Final = b"AMQP\x01\x01\x08\x00"
"""0-8 clients say this; RabbitMQ takes it for 0-9-1."""

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

HEAD: Final = struct.Struct(">BHI")
"""type, channel, payload size."""

CONTENT_HEAD: Final = struct.Struct(">BHIHHQ")
"""A header frame's start: type, channel, payload size, class, weight, body size."""

FRAME_OVERHEAD: Final = 8
CONTENT_FIXED: Final = 12
"""class, weight and body size in a header frame's payload."""

PUBLISH: Final = b"\x00\x3c\x00\x28"
ACK: Final = b"\x00\x3c\x00\x50"
TAG_BIT: Final = struct.Struct(">QB")


class Publish(NamedTuple):
    """A whole published message."""

    channel: int
    arguments: bytes
    """The method frame's payload behind the method id (see ``decode_publish``)."""

    properties: bytes
    body: bytes


class Ack(NamedTuple):
    channel: int
    tag: int
    is_multiple: bool


class Call(NamedTuple):
    """Any other method without content."""

    channel: int
    method_id: int
    method: Method


class Oversize(NamedTuple):
    """A publish whose body is over the limit: read and thrown away."""

    channel: int
    body_bytes: int


class Heartbeat(NamedTuple):
    pass


Item = Publish | Ack | Call | Oversize | Heartbeat


class Assembly:
    """Content of one channel that has begun and is not whole."""

    __slots__ = ("arguments", "is_discarded", "left", "parts", "properties")

    def __init__(self, arguments: bytes) -> None:
        self.arguments = arguments
        self.properties = b""
        self.left = -1  # -1: the header frame is still to come
        self.parts: list[bytes] = []
        self.is_discarded = False


class FrameReader:
    """
    Cuts a byte stream into items. Faults are raised after all good items before them were
    taken: ``take`` returns those first and raises at the next call.
    """

    def __init__(self, *, frame_bytes_max: int, body_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.body_bytes_max = body_bytes_max
        self._rest = b""
        self._wanted = 7
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._assembly: dict[int, Assembly] = {}
        self._fault: AmqpFault | None = None

    def feed(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)

    def forget(self, channel: int) -> None:
        """The channel ended: what it had begun is void."""
        self._assembly.pop(channel, None)

    def take(self, count_max: int = 0) -> list[Item]:
        """
        All whole items, in order (*count_max* 0: no limit).

        Raises:
            AmqpFault: the stream broke the protocol; nothing after it is read.
        """
        if self._fault is not None:
            raise self._fault
        if len(self._rest) + self._pending_bytes < self._wanted:
            return []  # a large frame arrives in many reads: join it once
        data = b"".join((self._rest, *self._pending))
        self._pending.clear()
        self._pending_bytes = 0
        items: list[Item] = []
        try:
            used = self._parse(data, items, count_max or len(data) + 1)
        except AmqpFault as fault:
            self._fault = fault
            if not items:
                raise
            return items
        self._rest = data[used:] if used else data
        self._wanted = self._next_size()
        return items

    def _next_size(self) -> int:
        """Bytes without which another parse cannot get on."""
        if len(self._rest) < 7:
            return 7
        return int.from_bytes(self._rest[3:7], "big") + FRAME_OVERHEAD

    def _parse(self, data: bytes, items: list[Item], count_max: int) -> int:
        position, end = 0, len(data)
        assembly = self._assembly
        while end - position >= 7 and len(items) < count_max:
            kind, channel, size = HEAD.unpack_from(data, position)
            start = position + 7
            stop = start + size
            if size + FRAME_OVERHEAD > self.frame_bytes_max:
                raise AmqpFault(
                    replies.FRAME_ERROR,
                    f"frame of {size} bytes is over the limit {self.frame_bytes_max}",
                )
            if stop >= end:
                break
            if data[stop] != FRAME_END:
                raise AmqpFault(replies.FRAME_ERROR, f"frame ends with {data[stop]:#04x}")
            if kind == FRAME_METHOD and channel not in assembly:
                head = data[start : start + 4]
                if head == PUBLISH:
                    whole = self._whole_publish(data, items, channel, start + 4, stop)
                    if whole:
                        position = whole
                        continue
                    assembly[channel] = Assembly(data[start + 4 : stop])
                elif head == ACK and size >= 13:
                    tag, bits = TAG_BIT.unpack_from(data, start + 4)
                    items.append(Ack(channel, tag, bool(bits & 1)))
                else:
                    items.append(_call(channel, data[start:stop]))
            else:
                self._other(kind, channel, data[start:stop], items)
            position = stop + 1
        return position

    def _whole_publish(
        self, data: bytes, items: list[Item], channel: int, start: int, stop: int
    ) -> int:
        """If header and a single body frame follow at once: the publish, and where it ends."""
        header = stop + 1
        if len(data) - header < CONTENT_HEAD.size:
            return 0
        kind, number, size, class_id, _, body_size = CONTENT_HEAD.unpack_from(data, header)
        header_stop = header + 7 + size
        if (
            kind != FRAME_HEADER
            or number != channel
            or class_id != 60
            or size < CONTENT_FIXED + 2
            or size + FRAME_OVERHEAD > self.frame_bytes_max
            or body_size + FRAME_OVERHEAD > self.frame_bytes_max
            or body_size > self.body_bytes_max
        ):
            return 0
        body = header_stop + 8
        body_stop: int = body + body_size if body_size else header_stop
        if body_stop >= len(data) or data[header_stop] != FRAME_END:
            return 0
        if body_size and (
            HEAD.unpack_from(data, header_stop + 1) != (FRAME_BODY, channel, body_size)
            or data[body_stop] != FRAME_END
        ):
            return 0
        properties = data[header + CONTENT_HEAD.size : header_stop]
        content = data[body:body_stop] if body_size else b""
        items.append(Publish(channel, data[start:stop], properties, content))
        return body_stop + 1

    def _other(self, kind: int, channel: int, payload: bytes, items: list[Item]) -> None:
        if kind == FRAME_HEARTBEAT:
            items.append(Heartbeat())
            return
        if kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY):
            raise AmqpFault(replies.FRAME_ERROR, f"type {kind} is no frame type")
        assembly = self._assembly.get(channel)
        if assembly is None or kind == FRAME_METHOD:
            raise AmqpFault(
                replies.UNEXPECTED_FRAME,
                f"frame of type {kind} on channel {channel} where "
                + ("content" if assembly else "a method")
                + " is due",
            )
        if assembly.left < 0:
            self._begin_content(assembly, kind, payload)
            if assembly.is_discarded:
                items.append(Oversize(channel, assembly.left))
        else:
            _continue_content(assembly, kind, payload)
        if assembly.left == 0:
            del self._assembly[channel]
            if assembly.is_discarded:
                return
            body = b"".join(assembly.parts)
            items.append(Publish(channel, assembly.arguments, assembly.properties, body))

    def _begin_content(self, assembly: Assembly, kind: int, payload: bytes) -> None:
        if kind != FRAME_HEADER:
            raise AmqpFault(replies.UNEXPECTED_FRAME, "body frame where a header is due")
        if len(payload) < CONTENT_FIXED + 2 or payload[:2] != b"\x00\x3c":
            raise AmqpFault(
                replies.UNEXPECTED_FRAME, "content header of another class or too short"
            )
        size = int.from_bytes(payload[4:12], "big")
        assembly.properties = payload[CONTENT_FIXED:]
        assembly.left = size
        assembly.is_discarded = size > self.body_bytes_max


def _continue_content(assembly: Assembly, kind: int, payload: bytes) -> None:
    if kind != FRAME_BODY:
        raise AmqpFault(replies.UNEXPECTED_FRAME, "header frame where a body is due")
    if len(payload) > assembly.left:
        raise AmqpFault(replies.UNEXPECTED_FRAME, "body longer than its header said")
    if not assembly.is_discarded:
        assembly.parts.append(payload)
    assembly.left -= len(payload)


def _call(channel: int, payload: bytes) -> Call:
    try:
        method_id, method = decode_method(payload)
    except PeerError as error:
        raise AmqpFault(replies.FRAME_ERROR, str(error)) from error
    if method is None:
        raise AmqpFault(replies.NOT_IMPLEMENTED, f"unknown method {method_id:#010x}")
    if method_id in HAS_CONTENT:
        raise AmqpFault(replies.COMMAND_INVALID, "a method that only servers send")
    return Call(channel, method_id, method)


def decode_publish(arguments: bytes) -> tuple[str, str, bool, bool]:
    """Exchange, routing key, mandatory, immediate. Raises AmqpFault (501) if cut short."""
    try:
        middle = 3 + arguments[2]
        end = middle + 1 + arguments[middle]
        bits = arguments[end]
        return (
            arguments[3:middle].decode(),
            arguments[middle + 1 : end].decode(),
            bool(bits & 1),
            bool(bits & 2),
        )
    except (IndexError, UnicodeDecodeError) as error:
        raise AmqpFault(replies.FRAME_ERROR, "cannot decode basic.publish") from error


# ── out ─────────────────────────────────────────────────────────────────────────────────


def method_frame(channel: int, method: Method) -> bytes:
    payload = encode_method(method)
    return b"%b%b\xce" % (HEAD.pack(FRAME_METHOD, channel, len(payload)), payload)


def content_frames(
    channel: int, method_payload: bytes, properties: bytes, body: bytes, frame_bytes_max: int
) -> bytes:
    """
    Method, header and body frames of one message.

    A body over ``frame_bytes_max - 8`` is cut; an empty one has no body frame.
    """
    size = len(body)
    head = b"%b%b\xce%b%b\xce" % (
        HEAD.pack(FRAME_METHOD, channel, len(method_payload)),
        method_payload,
        CONTENT_HEAD.pack(FRAME_HEADER, channel, CONTENT_FIXED + len(properties), 60, 0, size),
        properties,
    )
    if not size:
        return head
    room = frame_bytes_max - FRAME_OVERHEAD
    if size <= room:
        return b"%b%b%b\xce" % (head, HEAD.pack(FRAME_BODY, channel, size), body)
    parts = [head]
    for start in range(0, size, room):
        piece = body[start : start + room]
        parts += (HEAD.pack(FRAME_BODY, channel, len(piece)), piece, b"\xce")
    return b"".join(parts)
