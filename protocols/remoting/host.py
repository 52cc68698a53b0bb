"""What a session needs of its listener; ``front`` provides it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from protocols.canonical import Call
from protocols.pipeline import Services, TopicInfo
from protocols.remoting.batching import BatchTopics
from protocols.remoting.members import Members
from protocols.remoting.numbering import Numbering
from protocols.remoting.settings import RemotingSettings
from protocols.tasks import Tasks

if TYPE_CHECKING:
    from protocols.remoting.session import Session


class Host(Protocol):
    """One listener."""

    listener: str
    settings: RemotingSettings
    services: Services
    tasks: Tasks
    members: Members
    batch_topics: BatchTopics
    numbering: Numbering

    def clients(self) -> "Iterable[Session]":
        """All connections."""
        ...

    def is_elsewhere(self, session: "Session", group: str) -> bool:
        """The same client consumes for *group* over another connection to this gateway."""
        ...

    def may_keep_batches(self, call: Call, topic: str) -> bool:
        """As far as is known: see ``batching``."""
        ...

    async def topic(self, call: Call, name: str) -> TopicInfo | None:
        """The topic, made now if that is allowed; None if there is none. Raises Refused."""
        ...
