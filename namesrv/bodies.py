"""The body of REGISTER_BROKER in its two encodings."""

import json
import struct
import zlib
from typing import Final

from protocols.errors import PeerError
from protocols.remoting.bodies import (
    DataVersion,
    RegisterBody,
    TopicConfig,
    TopicConfigWrapper,
    decode_body,
)
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import bool_field, int_field

PLAIN_BYTES_MAX: Final = 64 << 20
"""What a compressed body may become."""

_U32: Final = struct.Struct(">I")


def decode_register_body(command: RemotingCommand) -> RegisterBody:
    """Raises PeerError if it is damaged."""
    body = bytes(command.body)
    given_crc = int_field(command.fields, "bodyCrc32", 0)
    if given_crc and given_crc != zlib.crc32(body) & 0x7FFFFFFF:
        raise PeerError("crc32 not match")
    if not body:
        return RegisterBody()
    if bool_field(command.fields, "compressed"):
        return _decode_compressed(body)
    return decode_body(RegisterBody, body)


def _decode_compressed(body: bytes) -> RegisterBody:
    """
    ``RegisterBrokerBody.decode`` with compression: deflate of length-prefixed texts.

    A topic is ``name readQueues writeQueues perm filterType attributesJson``.
    """
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(body, PLAIN_BYTES_MAX)
        if decompressor.unconsumed_tail:
            raise PeerError(f"register body of more than {PLAIN_BYTES_MAX} bytes")
        version_text, at = _text(data, 0)
        version = decode_body(DataVersion, version_text.encode())
        (count,) = _U32.unpack_from(data, at)
        at += 4
        table: dict[str, TopicConfig] = {}
        for _ in range(count):
            text, at = _text(data, at)
            topic = _topic(text)
            table[topic.topic_name] = topic
    except (zlib.error, struct.error, ValueError) as error:
        raise PeerError(f"register body: {error}") from error
    wrapper = TopicConfigWrapper(topic_config_table=table, data_version=version)
    return RegisterBody(topic_config_serialize_wrapper=wrapper)


def _text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = _U32.unpack_from(data, at)
    end = at + 4 + size
    if end > len(data):
        raise ValueError(f"text of {size} bytes at {at} is longer than the body")
    return data[at + 4 : end].decode(), end


def _topic(text: str) -> TopicConfig:
    parts = text.split(" ", 5)
    if len(parts) < 5:
        raise ValueError(f"topic '{text[:80]}' has {len(parts)} fields")
    attributes = json.loads(parts[5]) if len(parts) == 6 and parts[5] else {}
    return TopicConfig(
        topic_name=parts[0],
        read_queue_nums=int(parts[1]),
        write_queue_nums=int(parts[2]),
        perm=int(parts[3]),
        topic_filter_type=parts[4],
        attributes={str(key): str(value) for key, value in attributes.items()},
    )
