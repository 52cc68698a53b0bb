"""What an Apache broker is sent: messages one by one, batches that stay together as one."""

from collections.abc import Sequence
from typing import cast

import pytest

from gateway.clusters.apache.mqtt_nodes import ORIGIN, QOS, Filters, queue_names
from gateway.clusters.apache.sender import ApacheSender
from gateway.clusters.batches import Batch, Copy, Run
from gateway.clusters.link import StoreLink
from protocols.canonical import Head, Message, Properties, QueueKind, QueueRef, SendResults
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.inner_batches import MARK, mark
from protocols.remoting.peer import Answered
from protocols.remoting.templates import RecordTemplate
from tests.support.core import call

LISTED = (QueueRef(QueueKind.FILTER, "t/#"),)


class FakeBroker:
    cluster, broker = "c", "a"

    def __init__(self, filters: Filters | None = None) -> None:
        self.asked: list[RemotingCommand] = []
        self.sender = ApacheSender("c", "a", self._ask, lambda: filters or {})
        self.sender.is_open = True
        self.results: list[SendResults] = []

    def _ask(self, command: RemotingCommand, answered: Answered) -> None:
        self.asked.append(command)
        offset = str(10 * len(self.asked))
        answered(
            command.answer(
                ResponseCode.SUCCESS,
                {"msgId": f"7F00000100002A9F{0:016X}", "queueOffset": offset},
            )
        )

    def send(
        self,
        marks: Sequence[str],
        queues: tuple[QueueRef, ...] = (),
        properties: Properties = (),
    ) -> list[int]:
        """One message a mark, each a run of its own; their offsets."""
        heads = [
            Head(subject="t", properties=((MARK, text),) if text else properties) for text in marks
        ]
        found = [Message(head, b"x") for head in heads]
        ids = [b"%032d" % index for index in range(len(marks))]
        batch = Batch(call(), found, ids, self.results.append, sequence=1, size_bytes=0)
        batch.remaining = len(marks)
        for index, head in enumerate(heads):
            copy = Copy(
                link=cast("StoreLink", self),
                head=head,
                topic="t",
                queue_id=0,
                is_primary=True,
                queues=queues,
                set_bytes=b"",
                template=RecordTemplate("t", head.properties),
            )
            self.sender.submit(Run(batch, index, index + 1, copy))
        self.sender.flush(1)
        assert batch.remaining == 0
        assert self.sender.pending_count == 0
        return [offset for part in batch.parts for offset in part.answer.offsets[part.at :][:1]]

    def codes(self) -> list[int]:
        return [command.code for command in self.asked]


def test_a_batch_that_stays_together_is_one_request_and_has_an_offset_a_member() -> None:
    broker = FakeBroker()
    assert broker.send([mark("B", 3)] * 3) == [10, 11, 12]
    (command,) = broker.asked
    assert command.code == RequestCode.SEND_BATCH_MESSAGE
    assert command.fields["i"].startswith("UNIQ_KEY\x01B\x02")
    assert MARK.encode() not in bytes(command.body)


def test_two_batches_are_two_requests_and_plain_messages_go_alone() -> None:
    broker = FakeBroker()
    offsets = broker.send([mark("A", 2), mark("A", 2), mark("B", 1), "", ""])
    batch, plain = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2
    assert broker.codes() == [batch, batch, plain, plain]
    assert offsets == [10, 11, 20, 30, 40]


def test_where_light_queues_list_its_members_a_batch_goes_one_by_one() -> None:
    broker = FakeBroker()
    broker.send([mark("A", 2)] * 2, LISTED)
    assert broker.codes() == [RequestCode.SEND_MESSAGE_V2] * 2


def test_a_mark_that_a_client_made_up_means_nothing() -> None:
    broker = FakeBroker()
    broker.send(["A 0", "A -1", "A x", "A"])
    assert broker.codes() == [RequestCode.SEND_MESSAGE_V2] * 4


ADDRESSES = {
    "plants": ["%LMQ%plants", "%LMQ%plants%#%"],
    "plants/1/temp": ["%LMQ%plants%1%temp%", "%LMQ%plants%+%temp%", "%LMQ%plants%#%"],
    "plants/1": ["%LMQ%plants%1%", "%LMQ%plants%#%"],
    "meters/1/temp": ["%LMQ%meters%1%temp%"],
    "plants/p2p/phone-7": ["%LMQ%%p2p%phone-7%"],
    "plants/p2p/phone-7/x": ["%LMQ%%p2p%phone-7%"],
    "plants/p2p/": [],
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_queues_of_rocketmq_mqtt_nodes(address: str) -> None:
    """The topic's own, those of the filters that a name server lists, and the one of a peer."""
    filters = {"plants": ("plants/+/temp", "plants/#/", "plants/9/#"), "x": ("plants/#",)}
    assert queue_names(address, filters) == ADDRESSES[address]


def test_what_has_the_properties_of_rocketmq_mqtt_is_listed_for_its_nodes() -> None:
    """If its first level is the topic; with the QoS where nodes look for it."""
    broker = FakeBroker(filters={"t": ("t/+",)})
    broker.send([""], properties=((ORIGIN, "t/a"), (QOS, "1")))
    broker.send([""], properties=((ORIGIN, "other/a"), (QOS, "1")))
    broker.send([""])
    texts = [command.fields["i"] for command in broker.asked]
    assert "INNER_MULTI_DISPATCH\x01%LMQ%t%a%,%LMQ%t%+%\x02" in texts[0]
    assert 'extData\x01{"qosLevel":"1"}\x02' in texts[0]
    assert not any("INNER_MULTI_DISPATCH" in text or "extData" in text for text in texts[1:])
