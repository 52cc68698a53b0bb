"""
Stored messages as PUBLISH packets: made once, however many clients get them.

A record's stored properties are its id and a tail that all records of one publisher and topic
share. What the tail says (address, expiry, properties of the packet) is worked out once per tail
and remembered; a message then costs a slice and a dictionary hit.
"""

from operator import add
from typing import Final

from protocols.canonical import Properties, StoredMessage
from protocols.delivery_runs import DeliveryRun
from protocols.mqtt.cloudevents import to_structured
from protocols.mqtt.encoder import publish_head
from protocols.mqtt.mapping import packet_properties
from protocols.mqtt.packets import V5, PacketProperties
from protocols.mqtt.properties import Property, encode_properties
from protocols.mqtt.topics import is_valid_name
from protocols.remoting.matrix import Matrix, np
from protocols.remoting.record_rows import bodies_of_alike
from protocols.remoting.records import MORE_BYTES, record_parts, take_alike
from protocols.remoting.templates import RecordTemplate
from protocols.rows import ROWS_MIN
from protocols.stored_names import NO_DATA, number_of, subject_of

QOS_OF: Final = {b"0": 0, b"2": 2}
"""QoS of a stored publish by its ``mqtt_qos``; what has none counts as QoS 1."""

ID_MARK: Final = b"UNIQ_KEY\x01"
ID_BYTES: Final = RecordTemplate.ID_BYTES
TAIL_AT: Final = len(ID_MARK) + ID_BYTES + 1
"""Where the tail begins if the id stands first, as the gateway writes it."""

TAILS_MAX: Final = 4096
HEADS_MAX: Final = 64

Parts = tuple[bytes, bytes]
"""What stands before and behind the packet id of a PUBLISH."""


def stored_value(properties_text: bytes, name: bytes) -> bytes:
    """One stored property without parsing the others; empty: absent."""
    mark = name + b"\x01"
    if properties_text.startswith(mark):
        start = len(mark)
    else:
        found = properties_text.find(b"\x02" + mark)
        if found < 0:
            return b""
        start = found + 1 + len(mark)
    end = properties_text.find(b"\x02", start)
    return properties_text[start:] if end < 0 else properties_text[start:end]


def property_pairs(properties_text: bytes) -> Properties:
    """Stored properties in order, repeats kept."""
    items = properties_text.decode("utf-8", "replace").split("\x02")
    pairs = (item.partition("\x01") for item in items if item)
    return tuple((name, value) for name, _, value in pairs)


class Tail:
    """What all records with these stored properties and topic have in common."""

    __slots__ = (
        "_heads",
        "_properties",
        "_text",
        "address",
        "expires_at_ms",
        "has_more",
        "is_empty",
        "is_event",
        "is_structured",
        "publisher",
        "qos",
        "topic",
    )

    def __init__(
        self, topic: bytes, text: bytes, mount_point: bytes = b"", *, is_structured: bool = False
    ) -> None:
        self.address = topic = subject_of(
            stored_value(text, b"TG_SUBJECT"), stored_value(text, b"originMqttTopic"), topic
        )
        """The whole, which the ACL is asked about."""

        topic = topic.removeprefix(mount_point)
        self.topic = topic if is_valid_name(topic.decode("utf-8", "replace")) else b""
        """Empty: no MQTT client can be told its address."""

        expires_at = stored_value(text, b"TG_EXPIRES_AT")
        self.expires_at_ms = max(number_of(expires_at), 0)
        self.publisher = stored_value(text, b"TG_CLIENT").decode("utf-8", "replace")
        self.qos = QOS_OF.get(stored_value(text, b"mqtt_qos"), 1)
        """Of the publish; 1 for other protocols."""

        self.is_event = bool(stored_value(text, b"CE_specversion"))
        self.is_empty = stored_value(text, b"IS_EMPTY_MSG") == b"true"
        """Apache rocketmq-mqtt's filler stands for no payload."""

        self.is_structured = is_structured and self.is_event
        """3.x clients get it as JSON."""

        self.has_more = bool(stored_value(text, MORE_BYTES.encode()))
        """The records tell some of their properties behind the body."""

        self._text = text
        self._properties: dict[tuple[tuple[int, ...], int, int], bytes] = {}
        self._heads: dict[tuple[int, int], bytes] = {}

    def properties(self, identifiers: tuple[int, ...], left_s: int, alias: int) -> bytes:
        """Properties of a version 5 PUBLISH, encoded; *left_s* and *alias*: 0 for none."""
        key = (identifiers, left_s, alias)
        encoded = self._properties.get(key)
        if encoded is None:
            if len(self._properties) >= HEADS_MAX:
                self._properties.clear()
            encoded = encode_properties(self._pairs(identifiers, left_s, alias))
            self._properties[key] = encoded
        return encoded

    def _pairs(self, identifiers: tuple[int, ...], left_s: int, alias: int) -> PacketProperties:
        """The publisher's in their order, then what is this hop's own: as Mosquitto has them."""
        pairs = list(packet_properties(property_pairs(self._text)))
        pairs += [(Property.SUBSCRIPTION_IDENTIFIER, number) for number in identifiers]
        if alias:
            pairs.append((Property.TOPIC_ALIAS, alias))
        if left_s:
            pairs.append((Property.MESSAGE_EXPIRY, left_s))
        return tuple(pairs)

    def head(self, first: int, tail_size: int) -> bytes:
        """Fixed header and topic of a PUBLISH with *tail_size* bytes behind its packet id."""
        head = self._heads.get((first, tail_size))
        if head is None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            head = self._heads[first, tail_size] = publish_head(first, self.topic, tail_size)
        return head


class Column:
    """The PUBLISH packets of one run, for all who get them in the same form."""

    __slots__ = ("_count", "_id_at", "_pieces", "_rows", "_whole", "bytes_max")

    def __init__(self, pieces: list[bytes], rows: Matrix | None = None, id_at: int = 0) -> None:
        self._pieces = pieces
        """Of each: what stands before its packet id, a place for that, what stands behind."""

        self._rows = rows
        """Instead of pieces, packets of one size with a place for the id at *id_at*."""

        self._id_at = id_at
        self._whole = b""
        self._count = len(pieces) // 3 if rows is None else len(rows)
        if rows is not None:
            self.bytes_max: int = rows.shape[1]
        elif len(pieces) == 3:
            self.bytes_max = 2 + len(pieces[0]) + len(pieces[2])
        else:
            heads, tails = map(len, pieces[::3]), map(len, pieces[2::3])
            self.bytes_max = 2 + max(map(add, heads, tails))
        """Of the largest packet, about."""

    def __len__(self) -> int:
        return self._count

    def packets(self, start: int, numbers: list[bytes]) -> list[bytes]:
        """Pieces of the packets from *start* on, with these packet ids, two bytes each."""
        if self._rows is not None:
            return [self._numbered(self._rows[start : start + len(numbers)], numbers)]
        pieces = self._pieces[3 * start : 3 * (start + len(numbers))]
        pieces[1::3] = numbers
        return pieces

    def joined(self, numbers: list[bytes]) -> bytes:
        """All packets, with these packet ids."""
        if self._rows is not None:
            return self._numbered(self._rows, numbers)
        pieces = self._pieces.copy()
        if len(numbers) == 1:
            pieces[1] = numbers[0]
        else:
            pieces[1::3] = numbers
        return b"".join(pieces)

    @property
    def whole(self) -> bytes:
        """All packets of QoS 0: the same bytes for everybody."""
        if not self._whole:
            rows = self._rows
            self._whole = b"".join(self._pieces) if rows is None else rows.tobytes()
        return self._whole

    def _numbered(self, rows: Matrix, numbers: list[bytes]) -> bytes:
        """Rows are made anew for each client, in the same place."""
        ids = np.frombuffer(b"".join(numbers), np.uint8).reshape(-1, 2)
        rows[:, self._id_at : self._id_at + 2] = ids
        numbered: bytes = rows.tobytes()
        return numbered


class Rendering:
    """One stored message, ready to be sent to anybody."""

    __slots__ = ("_last", "_last_key", "_payload", "message", "tail")

    def __init__(self, message: StoredMessage, tail: Tail) -> None:
        self.message = message
        self.tail = tail
        body = message.body
        is_none = tail.is_empty or (tail.is_event and body == NO_DATA)
        self._payload = b"" if is_none else body
        self._last_key: tuple[int, int, bool, tuple[int, ...], int] | None = None
        self._last: Parts = (b"", b"")

    def is_expired(self, wall_ms: int) -> bool:
        return 0 < self.tail.expires_at_ms <= wall_ms

    def parts(
        self, version: int, qos: int, retain: bool, identifiers: tuple[int, ...], wall_ms: int
    ) -> Parts:
        """Bytes before and behind the packet id; *identifiers* are of the subscriptions."""
        tail = self.tail
        left_s = 0
        if version == V5 and tail.expires_at_ms:
            left_s = max(1, (tail.expires_at_ms - wall_ms + 999) // 1000)
        key = (version, qos, retain, identifiers, left_s)
        if key == self._last_key:
            return self._last
        behind = self._payload
        if version != V5 and tail.is_structured:
            behind = to_structured(property_pairs(self.message.properties_text), self.message.body)
        if version == V5:
            behind = tail.properties(identifiers, left_s, 0) + behind
        head = tail.head(0x30 | qos << 1 | (1 if retain else 0), len(behind))
        self._last_key, self._last = key, (head, behind)
        return self._last

    def aliased_parts(
        self, topic: bytes, alias: int, plan: tuple[int, bool, tuple[int, ...]], wall_ms: int
    ) -> Parts:
        """
        ``parts`` for one version 5 connection that knows the topic as *alias*.

        Args:
            topic: empty once the client has been told what the alias stands for.
            plan: QoS, retain flag, subscription identifiers.
        """
        qos, retain, identifiers = plan
        tail = self.tail
        left_s = 0
        if tail.expires_at_ms:
            left_s = max(1, (tail.expires_at_ms - wall_ms + 999) // 1000)
        behind = tail.properties(identifiers, left_s, alias) + self._payload
        first = 0x30 | qos << 1 | (1 if retain else 0)
        return publish_head(first, topic, len(behind)), behind


class Renderings:
    """The renderings of late, so that all sessions of a gateway share them."""

    def __init__(
        self,
        count_max: int = 4096,
        bytes_max: int = 16 << 20,
        *,
        mount_point: str = "",
        is_structured: bool = False,
    ) -> None:
        self._is_structured = is_structured
        self._mount_point = mount_point.encode()
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._known: dict[int, Rendering] = {}
        self._tails: dict[tuple[bytes, bytes], Tail] = {}
        # by the stored properties behind the id, and the topic: found without a message

    def find(self, message: StoredMessage) -> Rendering:
        known = self._known.get(id(message))
        if known is not None and known.message is message:
            return known
        if len(self._known) >= self._count_max or self._bytes > self._bytes_max:
            self._known.clear()
            self._bytes = 0
        self._bytes += len(message.body)
        text = message.properties_text
        if text[TAIL_AT - 1 : TAIL_AT] == b"\x02" and text.startswith(ID_MARK):
            text = text[TAIL_AT:]
        topic = message.topic.encode()
        tail = self._tails.get((text, topic)) if not message.more else self._tail_of_more(message)
        if tail is None:
            tail = self._new_tail(text, topic, message.properties_text)
        rendering = self._known[id(message)] = Rendering(message, tail)
        return rendering

    def _tail_of_more(self, message: StoredMessage) -> Tail:
        """Of one message, and too large to be remembered."""
        text = message.properties_text + message.more
        self._bytes += len(message.more)
        return Tail(
            message.topic.encode(), text, self._mount_point, is_structured=self._is_structured
        )

    def _new_tail(self, rest: bytes, topic: bytes, text: bytes) -> Tail:
        """*text*: the stored properties; *rest*: behind the id."""
        if len(self._tails) >= TAILS_MAX:
            self._tails.clear()
        tail = Tail(topic, text, self._mount_point, is_structured=self._is_structured)
        self._tails[rest, topic] = tail
        return tail

    def column(
        self, run: DeliveryRun, version: int, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> Column | None:
        """
        The packets of a run, made once for all who get them so.

        None: some message must be looked at for each client (it expires, cannot be named, or is
        an event as JSON). Raises PeerError if a record is none.
        """
        made = run.shelf.made
        key = (self, version, qos, retain, identifiers, run.start, run.stop)
        found = made.get(key)
        if found is None:
            found = self._row_column(run, version, qos, retain, identifiers)
            if found is None:
                pieces = self._pieces(run, version, qos, retain, identifiers)
                found = Column(pieces) if pieces else False
            made[key] = found
        return found if isinstance(found, Column) else None

    def _row_column(
        self, run: DeliveryRun, version: int, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> Column | None:
        """None: the records are not all alike, or few, or their bodies are not as they stand."""
        rows, start = run.shelf.rows, run.start
        if rows is None or run.stop - start < ROWS_MIN:
            return None
        topic, _, text = record_parts(rows[start])
        if text[TAIL_AT - 1 : TAIL_AT] != b"\x02" or not text.startswith(ID_MARK):
            return None
        tail = self._tails.get((text[TAIL_AT:], topic))
        if tail is None:
            tail = self._new_tail(text[TAIL_AT:], topic, text)
        if not tail.topic or tail.expires_at_ms or tail.is_event or tail.is_empty:
            return None
        id_at = rows.size - len(text) + len(ID_MARK)
        bodies = bodies_of_alike(rows.matrix[start : run.stop], id_at, ID_BYTES)
        if bodies is None:
            return None
        before = tail.properties(identifiers, 0, 0) if version == V5 else b""
        first, body_size = 0x30 | qos << 1 | (1 if retain else 0), bodies.shape[1]
        head = tail.head(first, len(before) + body_size)
        front = head + (bytes(2) if qos else b"") + before
        packets = np.empty((len(bodies), len(front) + body_size), np.uint8)
        packets[:, : len(front)] = np.frombuffer(front, np.uint8)
        packets[:, len(front) :] = bodies
        return Column([], packets, len(head))

    def _pieces(
        self, run: DeliveryRun, version: int, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> list[bytes]:
        """Empty: not for a column."""
        pieces: list[bytes] = []
        first, is_v5 = 0x30 | qos << 1 | (1 if retain else 0), version == V5
        records, index = run.shelf.records, run.start
        while index < run.stop:
            topic, body, text = record_parts(records[index])
            has_id = text[TAIL_AT - 1 : TAIL_AT] == b"\x02" and text.startswith(ID_MARK)
            rest = text[TAIL_AT:] if has_id else text
            tail = self._tails.get((rest, topic))
            if tail is None:
                tail = self._new_tail(rest, topic, text)
            if not tail.topic or tail.expires_at_ms or (tail.is_structured and not is_v5):
                return []
            if tail.has_more:
                return []
            bodies = [body]
            if has_id and index + 1 < run.stop:
                id_at = len(records[index]) - len(text) + len(ID_MARK)
                index = take_alike(records, index, run.stop, id_at, ID_BYTES, bodies)
            else:
                index += 1
            if tail.is_empty or tail.is_event:
                is_empty = tail.is_empty
                bodies = [b"" if is_empty or body == NO_DATA else body for body in bodies]
            if is_v5:
                properties = tail.properties(identifiers, 0, 0)
                bodies = [properties + body for body in bodies]
            pieces += _publishes(tail, first, bodies)
        return pieces


def _publishes(tail: Tail, first: int, behinds: list[bytes]) -> list[bytes]:
    """Head, place for a packet id and rest of each."""
    size = len(behinds[0])
    if tail.is_event and any([len(behind) != size for behind in behinds]):  # some have no data
        return [
            piece for behind in behinds for piece in (tail.head(first, len(behind)), b"", behind)
        ]
    pieces = [tail.head(first, size), b"", b""] * len(behinds)
    pieces[2::3] = behinds
    return pieces
