"""
Runs of deliveries as bytes, without an object for each message.

What one publisher sent in one go differs in body and message id only: its frames are the same
but for tag and body, so a run is a list of pieces that are joined once.
"""

import struct
from typing import Final, NamedTuple

from protocols.amqp.codec import (
    CONTENT_FIXED,
    CONTENT_HEAD,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    HEAD,
    content_frames,
)
from protocols.amqp.mapping import counted, names_and_block, wire_of
from protocols.delivery_runs import DeliveryRun
from protocols.remoting.records import record_parts, take_alike
from protocols.remoting.templates import RecordTemplate

ID_MARK: Final = b"UNIQ_KEY\x01"
ID_BYTES: Final = RecordTemplate.ID_BYTES
TAIL_AT: Final = len(ID_MARK) + ID_BYTES + 1
TAILS_MAX: Final = 4096
TAG_AND_BIT: Final = struct.Struct(">QB")
TAG_BYTES: Final = 9


class Tail(NamedTuple):
    """What stored properties say, the message id aside."""

    names: bytes
    """Exchange and routing key, as basic.deliver has them."""

    block: bytes


class Tails:
    """What was read of stored properties of late, by their bytes behind the id."""

    def __init__(self) -> None:
        self._known: dict[bytes, Tail | None] = {}

    def find(self, text: bytes) -> Tail | None:
        """None: not AMQP's own, such a message has to be looked at as a whole."""
        found = self._known.get(text)
        if found is None and text not in self._known:
            if len(self._known) >= TAILS_MAX:
                self._known.clear()
            pair = names_and_block(text)
            found = self._known[text] = None if pair is None else Tail(*pair)
        return found


TAILS: Final = Tails()


def frames_of(
    run: DeliveryRun,
    *,
    channel: int,
    head: bytes,
    tag: int,
    is_quorum: bool,
    frame_bytes_max: int,
) -> bytes:
    """
    The frames of a run, tags from *tag* on; *head*: method id and consumer tag.

    Raises PeerError if a record is none.
    """
    pieces: list[bytes] = []
    records, index, stop = run.shelf.records, run.start, run.stop
    room = frame_bytes_max - FRAME_OVERHEAD
    while index < stop:
        first = index
        record = records[index]
        _, body, text = record_parts(record)
        has_id = text[TAIL_AT - 1 : TAIL_AT] == b"\x02" and text.startswith(ID_MARK)
        tail = TAILS.find(b"\x02" + text[TAIL_AT:] if has_id else text)
        index += 1
        if tail is None:
            wire = wire_of(run.shelf.message(first))
            names, block, body = wire.names, wire.properties, wire.body
        else:
            names, block = tail
        bodies = [body]
        if tail is not None and has_id and index < stop:
            id_at = len(record) - len(text) + len(ID_MARK)
            index = take_alike(records, first, stop, id_at, ID_BYTES, bodies)
        if is_quorum:
            block = counted(block, 1)
        if 0 < len(body) <= room:
            pieces += _alike(channel, head, tag, names, block, bodies)
        else:
            for offset, whole in enumerate(bodies):
                method = b"%b%b%b" % (head, TAG_AND_BIT.pack(tag + offset, 0), names)
                pieces.append(content_frames(channel, method, block, whole, frame_bytes_max))
        tag += len(bodies)
    return b"".join(pieces)


def _alike(
    channel: int, head: bytes, tag: int, names: bytes, block: bytes, bodies: list[bytes]
) -> list[bytes]:
    """Frames of bodies of one size, none of them empty or too large for one frame."""
    count, size = len(bodies), len(bodies[0])
    before = HEAD.pack(FRAME_METHOD, channel, len(head) + TAG_BYTES + len(names)) + head
    behind = b"\0%b\xce%b%b\xce%b" % (
        names,
        CONTENT_HEAD.pack(FRAME_HEADER, channel, CONTENT_FIXED + len(block), 60, 0, size),
        block,
        HEAD.pack(FRAME_BODY, channel, size),
    )
    tags = struct.pack(f">{count}Q", *range(tag, tag + count))
    pieces = [b"\xce" + before, b"", behind, b""] * count
    pieces[0] = before
    pieces[1::4] = [tags[at : at + 8] for at in range(0, 8 * count, 8)]
    pieces[3::4] = bodies
    pieces.append(b"\xce")
    return pieces
