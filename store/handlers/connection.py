"""What the store keeps of one connection."""

from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Peer
from protocols.remoting.records import encode_host
from store.handlers.presence import GatewayKey, Presence


class Connection:
    """
    A peer and who it turned out to be.

    Answers go through ``answer``: to a peer that has gone they are dropped, and a oneway
    request gets none.
    """

    __slots__ = (
        "course",
        "gateway",
        "has_access",
        "host",
        "is_control",
        "is_paused",
        "is_super",
        "opened",
        "peer",
        "presence",
    )

    def __init__(self, peer: Peer, *, now: float, has_access: bool) -> None:
        self.peer = peer
        self.opened = now
        self.host = encode_host(peer.address)
        """Its address as records carry it."""

        self.has_access = has_access
        """It may use private codes and write to internal topics."""

        self.is_super = has_access
        """Of the request that is handled: the cluster's credential or a super user's signed it."""

        self.gateway: GatewayKey | None = None
        """From its HELLO."""

        self.course: object = None
        """What its last pull was like; pulls look at it."""

        self.presence: Presence | None = None
        self.is_control = False
        self.is_paused = False
        """We read nothing from it until the disk has caught up."""

    @property
    def is_open(self) -> bool:
        return self.peer.is_open

    @property
    def address(self) -> str:
        return self.peer.address

    def answer(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        """Queue an answer for this tick's write."""
        if not request.is_oneway:
            self.peer.send((answer,))
