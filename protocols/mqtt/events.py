"""What an MQTT connection tells its owner, beside the packets themselves."""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.canonical import Message
from protocols.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Subscribe,
    Unsubscribe,
)

OVERRUN: Final = "over the Receive Maximum"


class PublishRun(NamedTuple):
    """Publishes of one QoS (0 or 1) without properties, in order."""

    messages: Sequence[Message]
    packet_ids: bytes
    """Two bytes each, as they came; empty for QoS 0."""


class Acked(NamedTuple):
    """PUBACKs of the subscriber, in order."""

    packet_ids: list[int]


class Behind(NamedTuple):
    """
    More came than is heard now: read no more. Behind CONNECT until that is answered; else it is too
    much for one turn (a read full of PINGREQs holds the loop for 0.3 s, and a gateway held for long
    loses its lease), and ``next_turn`` is due when others had theirs.
    """


class Overrun(NamedTuple):
    """
    One publish more than the Receive Maximum: nothing that follows is read.

    The owner answers what came before, then ends the connection with 0x93. Some clients send all
    they have at every connect; ended at once, they would never be told of any of it.
    """


class Lost(NamedTuple):
    """The connection is over by a fault or by time; nothing follows."""

    reason: Reason
    text: str


Event = (
    Connect
    | PublishRun
    | Publish
    | Acked
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Unsubscribe
    | Disconnect
    | Auth
    | Behind
    | Overrun
    | Lost
)

Ordered = PublishRun | Publish | Subscribe | Unsubscribe | Pubrel
"""What keeps its order behind a SUBSCRIBE; acknowledgements and pings do not wait."""

ORDERED: Final = (PublishRun, Publish, Subscribe, Unsubscribe, Pubrel)
"""The same for ``isinstance``: a union is made anew wherever it is written."""

WAITING_EVENTS_MAX: Final = 16
"""Of them, behind a SUBSCRIBE, before the socket is not read."""

NONE_WAITING: Final[deque[Ordered]] = deque(maxlen=0)
"""A deque has a kilobyte from the beginning; most clients never need one."""
