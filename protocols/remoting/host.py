"""What a session needs of its listener; ``front`` provides it."""

from typing import Protocol

from protocols.canonical import Call
from protocols.pipeline import Services, TopicInfo
from protocols.remoting.members import Members
from protocols.remoting.settings import RemotingSettings
from protocols.tasks import Tasks


class Host(Protocol):
    """One listener."""

    listener: str
    settings: RemotingSettings
    services: Services
    tasks: Tasks
    members: Members

    async def topic(self, call: Call, name: str) -> TopicInfo | None:
        """The topic, made now if that is allowed; None if there is none. Raises Refused."""
        ...
