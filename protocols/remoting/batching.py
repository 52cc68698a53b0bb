"""
The gateway's part in inner batches: a batch to a topic that keeps batches together is answered as
one message, and its members are marked, so that the store finds it by its id.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from protocols.canonical import Call, Head, Message
from protocols.errors import GatewayError
from protocols.remoting.headers import SendHeader
from protocols.remoting.inner_batches import MARK, mark
from protocols.remoting.mapping import qualified
from protocols.remoting.records import decode_properties

if TYPE_CHECKING:
    from protocols.remoting.host import Host

TOPICS_MAX: Final = 10_000


class BatchTopics:
    """Which topics keep batches together; that never changes while a topic lives."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def may_keep(self, topic: str) -> bool:
        """Also while nobody has asked yet."""
        return self._known.get(topic, True)

    def learn(self, topic: str, *, keeps: bool) -> None:
        if len(self._known) >= TOPICS_MAX:
            self._known.clear()
        self._known[topic] = keeps

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)


async def batch_id(host: "Host", call: Call, header: SendHeader) -> str:
    """The id of the batch, if its topic keeps it together and the client gave it one."""
    topic = qualified(call.tenant, header.topic)
    try:
        info = await host.services.topics.find(topic)
    except GatewayError:
        return ""
    if info is None:
        return ""
    host.batch_topics.learn(topic, keeps=info.keeps_batches)
    if not info.keeps_batches:
        return ""
    return dict(decode_properties(header.properties)).get("UNIQ_KEY", "")


def marked(messages: Sequence[Message], identifier: str) -> list[Message]:
    """Each with the mark of its batch, which is a property of its head."""
    pair = (MARK, mark(identifier, len(messages)))
    heads: dict[int, Head] = {}
    for message in messages:
        head = message.head
        heads.setdefault(id(head), replace(head, properties=(*head.properties, pair)))
    return [message._replace(head=heads[id(message.head)]) for message in messages]


def as_one(fields: dict[str, str], identifier: str) -> None:
    """The answer to a batch as to one message."""
    fields["msgId"] = fields["msgId"].partition(",")[0]
    fields["batchUniqId"] = identifier
