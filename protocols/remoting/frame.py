"""
The bytes of a remoting command.

::

    0          4      5          8                8+h            4+n
    | n: u32be | s:u8 | h: u24be | header: h bytes | body: n-4-h bytes |

``s`` is 0 for a JSON header and 1 for the compact binary one (``RocketMQSerializable``).
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from protocols.errors import MALFORMED, PeerError
from protocols.remoting.codes import LANGUAGES, TRUNCATED_CODES, RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import PrivateCode

FRAME_BYTES_MAX: Final = 16 << 20
"""Largest frame without its length word (``com.rocketmq.remoting.frameMaxLength``)."""

JSON: Final = 0
BINARY: Final = 1
BINARY_CODE_MAX: Final = 0x7FFF

LARGE_FRAME_BYTES: Final = 32 << 10
"""Frames from this size are copied alone."""

VIEW_BYTES_MIN: Final = 4 << 10
"""Client batches from this size are not copied out of what was read with them."""

HEAD: Final = struct.Struct(">II")
_FIXED: Final = struct.Struct(">hBhiiI")
_CODE: Final = struct.Struct(">h")
_U32: Final = struct.Struct(">I")
_U16: Final = struct.Struct(">H")
_LANGUAGE_BYTE: Final = {name: index for index, name in enumerate(LANGUAGES)}
SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_OTHER: Final = _LANGUAGE_BYTE["OTHER"]

Frame = tuple[int, bytes, bytes | memoryview]
"""(serialization, header, body)."""


class _Header(msgspec.Struct, rename="camel"):
    code: int
    language: str = "OTHER"
    version: int = 0
    opaque: int = 0
    flag: int = 0
    remark: str | None = None


class _JsonHeader(_Header, rename="camel"):
    ext_fields: dict[str, Any] | None = None


class _JsonHeaderOut(msgspec.Struct, omit_defaults=True, rename="camel", kw_only=True):
    code: int
    language: str
    version: int
    opaque: int
    flag: int
    remark: str = ""
    ext_fields: dict[str, str] = {}
    serialize_type: str = msgspec.field(name="serializeTypeCurrentRPC")


class _PlainJsonHeader(_Header, rename="camel"):
    """As Java writes it: all fields text."""

    ext_fields: dict[str, str] | None = None


_decode_plain_json = msgspec.json.Decoder(_PlainJsonHeader).decode
_decode_json = msgspec.json.Decoder(_JsonHeader, strict=False).decode
_encode_json = msgspec.json.Encoder().encode


# ── bytes to commands ───────────────────────────────────────────────────────────────────


def take_frames(buffer: bytearray, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> list[Frame]:
    """
    Cut whole remoting frames off *buffer*, in order: a large one alone, small ones together.

    An empty list: none is whole.

    Raises PeerError when the *first* frame has ``n > frame_bytes_max`` or ``h > n - 4``. A
    faulty frame behind good ones is reported by the next call, so none is lost.

    Source: ``RemotingCommand.decode`` and ``NettyDecoder``.
    """
    if len(buffer) < HEAD.size:
        return []
    n, word = HEAD.unpack_from(buffer)
    if n <= frame_bytes_max and word & 0xFFFFFF <= n - 4:
        if len(buffer) - 4 < n:
            return []  # most reads of a large frame end here: copy it once, when it is whole
        if n > LARGE_FRAME_BYTES:
            return _take_large(buffer, n + 4, word)
    data = bytes(buffer)
    view = memoryview(data)
    frames: list[Frame] = []
    start, end = 0, len(data)
    while end - start >= HEAD.size:
        n, word = HEAD.unpack_from(data, start)
        h = word & 0xFFFFFF
        if n > frame_bytes_max or h > n - 4:
            if frames:
                break
            raise PeerError(f"frame of {n} bytes with a header of {h}, limit {frame_bytes_max}")
        header, stop = start + HEAD.size, start + 4 + n
        if stop > end:
            break
        body = header + h
        source = data if stop - body < VIEW_BYTES_MIN else view
        frames.append((word >> 24, data[header:body], source[body:stop]))
        start = stop
    del buffer[:start]
    return frames


def _take_large(buffer: bytearray, size: int, word: int) -> list[Frame]:
    """The one frame of *size* bytes that *buffer* begins with, copied once."""
    body = HEAD.size + (word & 0xFFFFFF)
    with memoryview(buffer) as view:
        frame = word >> 24, bytes(view[HEAD.size : body]), bytes(view[body:size])
    del buffer[:size]
    return [frame]


def take_in_place(
    data: memoryview, *, frame_bytes_max: int = FRAME_BYTES_MAX
) -> tuple[list[RemotingCommand], int]:
    """
    (the whole commands that *data* begins with, where they end); client batches are parts of it.

    It ends before a faulty one as well, which is for ``take_commands``.
    """
    commands: list[RemotingCommand] = []
    start, end = 0, len(data)
    while end - start >= HEAD.size:
        n, word = HEAD.unpack_from(data, start)
        h = word & 0xFFFFFF
        body, stop = start + HEAD.size + h, start + 4 + n
        if n > frame_bytes_max or h > n - 4 or stop > end:
            break
        header, here = bytes(data[start + HEAD.size : body]), data[body:stop]
        is_small = stop - body < VIEW_BYTES_MIN
        try:
            commands.append(decode_frame((word >> 24, header, bytes(here) if is_small else here)))
        except PeerError:
            break
        start = stop
    return commands, start


def size_of_frame(buffer: bytearray) -> int:
    """Of the frame that *buffer* begins with; 0: not known yet."""
    return int(HEAD.unpack_from(buffer)[0]) + 4 if len(buffer) >= HEAD.size else 0


def size_in_place(buffer: bytearray, have: int, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> int:
    """
    Size of the frame that *buffer* begins with, by its first *have* bytes, if it is large and need
    not be copied.

    So are SEND frames, of which the store makes blocks; 0: it is another, for ``take_commands``.
    """
    if have < HEAD.size + _CODE.size:
        return 0
    n, word = HEAD.unpack_from(buffer)
    if not LARGE_FRAME_BYTES < n <= frame_bytes_max or word & 0xFFFFFF > n - 4:
        return 0
    is_send = word >> 24 == BINARY and _CODE.unpack_from(buffer, HEAD.size)[0] == PrivateCode.SEND
    return n + 4 if is_send else 0


def command_in_place(frame: bytearray | memoryview) -> RemotingCommand:
    """
    The command of one whole frame; its body is *frame*'s own memory, and may be changed.

    Raises PeerError.
    """
    _, word = HEAD.unpack_from(frame)
    view = memoryview(frame)
    body = HEAD.size + (word & 0xFFFFFF)
    command = decode_frame((word >> 24, bytes(view[HEAD.size : body]), b""))
    command.body = view[body:]
    return command


def take_commands(
    buffer: bytearray, *, frame_bytes_max: int = FRAME_BYTES_MAX
) -> list[RemotingCommand]:
    """
    Cut every whole command off *buffer*; an empty list if none is whole.

    Raises PeerError when the *first* one is faulty; a faulty one behind good ones is put back
    for the next call.
    """
    frames = take_frames(buffer, frame_bytes_max=frame_bytes_max)
    commands: list[RemotingCommand] = []
    for index, frame in enumerate(frames):
        try:
            commands.append(decode_frame(frame))
        except PeerError:
            if not commands:
                raise
            buffer[:0] = b"".join([_frame_bytes(*rest) for rest in frames[index:]])
            break
    return commands


def decode_frame(frame: Frame) -> RemotingCommand:
    """The command of one frame; client batches may be views of what was read. Raises PeerError."""
    serialization, header, body = frame
    if serialization == BINARY:
        command = _decode_binary_header(header, body)
    elif serialization == JSON:
        command = _decode_json_header(header, body)
    else:
        raise PeerError(f"unknown header serialization {serialization}")
    if type(body) is memoryview and command.code != SEND_BATCH:
        command.body = bytes(body)
    return command


def _decode_json_header(header: bytes, body: bytes | memoryview) -> RemotingCommand:
    try:
        plain = _decode_plain_json(header)
    except MALFORMED:
        return _decode_any_json_header(header, body)
    return RemotingCommand(
        plain.code,
        plain.ext_fields,
        body,
        opaque=plain.opaque,
        flag=plain.flag,
        remark=plain.remark or "",
        language=plain.language,
        version=plain.version,
    )


def _decode_any_json_header(header: bytes, body: bytes | memoryview) -> RemotingCommand:
    """A header that is not as Java writes it: nulls and numbers among the fields, or no header."""
    try:
        parsed = _decode_json(header)
    except MALFORMED as error:
        raise PeerError(f"JSON header: {error}") from error
    given = parsed.ext_fields or {}
    return RemotingCommand(
        parsed.code,
        {name: _text(value) for name, value in given.items() if value is not None},
        body,
        opaque=parsed.opaque,
        flag=parsed.flag,
        remark=parsed.remark or "",
        language=parsed.language,
        version=parsed.version,
    )


def _text(value: object) -> str:
    """Field values are text; clients of other languages send JSON numbers and booleans too."""
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _decode_binary_header(header: bytes, body: bytes | memoryview) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, size = _FIXED.unpack_from(header)
        at = _FIXED.size
        remark = header[at : at + size].decode()
        at += size
        (size,) = _U32.unpack_from(header, at)
        at += 4
        if at + size != len(header):
            raise PeerError(f"binary header: {len(header)} bytes, its fields end at {at + size}")
        fields = _decode_binary_fields(header, at) if size else {}
    except (struct.error, UnicodeDecodeError) as error:
        raise PeerError(f"binary header: {error}") from error
    if not flag & 1:
        code = TRUNCATED_CODES.get(code, code)
    return RemotingCommand(
        code,
        fields,
        body,
        opaque=opaque,
        flag=flag,
        remark=remark,
        language=LANGUAGES[language] if language < len(LANGUAGES) else "OTHER",
        version=version,
        is_binary=True,
    )


def _decode_binary_fields(header: bytes, at: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    end = len(header)
    while at < end:
        (size,) = _U16.unpack_from(header, at)
        at += 2
        name = header[at : at + size].decode()
        at += size
        (size,) = _U32.unpack_from(header, at)
        at += 4
        if at + size > end:
            raise PeerError(f"binary header: value of '{name}' is longer than the header")
        fields[name] = header[at : at + size].decode()
        at += size
    return fields


# ── commands to bytes ───────────────────────────────────────────────────────────────────


def encode_command(command: RemotingCommand) -> bytes:
    """One frame. A code that does not fit the binary header gets a JSON one."""
    return encode_commands((command,))


def encode_commands(commands: Sequence[RemotingCommand]) -> bytes:
    """Frames back to back: what one write carries."""
    pieces = encode_pieces(commands)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def encode_pieces(commands: Sequence[RemotingCommand]) -> list[bytes]:
    """The same, but large bodies stand alone: they are not copied."""
    pieces: list[bytes] = []
    small: list[bytes | memoryview] = []
    for command in commands:
        if command.is_binary and command.code <= BINARY_CODE_MAX:
            header, serialization = _encode_binary_header(command), BINARY
        else:
            header, serialization = _encode_json_header(command), JSON
        size, body = len(header), command.body
        small += (HEAD.pack(4 + size + len(body), serialization << 24 | size), header)
        if type(body) is bytes and len(body) > LARGE_FRAME_BYTES:  # views may change
            pieces += (b"".join(small), body)
            small = []
        else:
            small.append(body)
    if small:
        pieces.append(b"".join(small))
    return pieces


def _frame_bytes(serialization: int, header: bytes, body: bytes | memoryview) -> bytes:
    size = len(header)
    return HEAD.pack(4 + size + len(body), serialization << 24 | size) + header + body


def _encode_json_header(command: RemotingCommand) -> bytes:
    return _encode_json(
        _JsonHeaderOut(
            code=command.code,
            language=command.language,
            version=command.version,
            opaque=command.opaque,
            flag=command.flag,
            remark=command.remark,
            ext_fields=command.fields,
            serialize_type="JSON",
        )
    )


def _encode_binary_header(command: RemotingCommand) -> bytes:
    remark = command.remark.encode()
    fixed = _FIXED.pack(
        command.code,
        _LANGUAGE_BYTE.get(command.language, _OTHER),
        command.version,
        command.opaque,
        command.flag,
        len(remark),
    )
    if not command.fields:
        return fixed + remark + b"\0\0\0\0"
    pieces: list[bytes] = []
    for name, text in command.fields.items():
        key, value = name.encode(), text.encode()
        pieces += (_U16.pack(len(key)), key, _U32.pack(len(value)), value)
    fields = b"".join(pieces)
    return b"".join((fixed, remark, _U32.pack(len(fields)), fields))
