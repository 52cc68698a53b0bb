"""
What a client sends, from its request to its answer.

Answered from the pipeline's callback, in order and without a task, but for what waits: a topic that
is to be made, a batch whose topic is not known yet, a request whose answer is to find its way back.
"""

from typing import TYPE_CHECKING

from protocols import clock
from protocols.canonical import Call, Message, SendResults
from protocols.errors import Code, Refused
from protocols.remoting import batching, requests
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import RETRY_PREFIX
from protocols.remoting.headers import HeaderError, SendHeader, send_header
from protocols.remoting.held import held_fields
from protocols.remoting.mapping import (
    Heads,
    is_retry_topic,
    qualified,
    send_answer_fields,
    to_messages,
)
from protocols.remoting.numbering import ALL_BROKERS, names_no_broker
from protocols.remoting.replying import REPLY_TO
from protocols.remoting.requesting import request_of

if TYPE_CHECKING:
    from protocols.remoting.session import Session


class Publishing:
    """The sending side of one connection."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._host = session.host
        self._heads = Heads()
        self._batch_count = 0  # whose topic is being looked at; others stay behind them

    def send(self, command: RemotingCommand, call: Call) -> None:
        """One request, a message or a batch of them."""
        settings = self._host.settings
        try:
            header = send_header(command)
            if not header.topic:
                raise Refused(Code.ILLEGAL_TOPIC, "topic", "a topic's name has 1 to 127 characters")
            if header.broker in ("", ALL_BROKERS):
                topic = qualified(call.tenant, header.topic)
                header = self._host.numbering.sent_to(topic, header)
            messages = to_messages(
                header,
                bytes(command.body),
                self._heads,
                now_ms=clock.wall_ms(),
                body_bytes_max=settings.body_bytes_max,
            )
        except HeaderError as error:
            self._session.answer(
                command, command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
            )
            return
        except Refused as error:
            self._session.refuse(command, error)
            return
        if call.tenant and messages[0].producer_group:
            group = qualified(call.tenant, messages[0].producer_group)
            messages = [message._replace(producer_group=group) for message in messages]
        if is_retry_topic(header.topic):
            self._host.tasks.start(self._give_up(command, call, header, messages[0]), name="retry")
            return
        if REPLY_TO in header.properties:
            self._host.tasks.start(self._ask(command, call, messages[0]), name="request")
            return
        if header.is_batch and (
            self._batch_count or self._host.may_keep_batches(call, header.topic)
        ):
            self._batch_count += 1
            self._host.tasks.start(self._post_batch(command, call, header, messages), name="batch")
            return
        self._post(command, call, messages, is_first=True)

    async def _post_batch(
        self, command: RemotingCommand, call: Call, header: SendHeader, messages: list[Message]
    ) -> None:
        """A batch to a topic that keeps batches together, or of which that is not known yet."""
        batch_id = await batching.batch_id(self._host, call, header)
        self._batch_count -= 1
        if batch_id:
            messages = batching.marked(messages, batch_id)
        self._post(command, call, messages, is_first=True, batch_id=batch_id)

    def _post(
        self,
        command: RemotingCommand,
        call: Call,
        messages: list[Message],
        *,
        is_first: bool,
        batch_id: str = "",
    ) -> None:
        settings = self._host.settings

        def done(results: SendResults) -> None:
            if results.is_all_stored:
                found = [results[index] for index in range(len(results))]
                fields = send_answer_fields(found, self._session.address, is_traced=settings.trace)
                if names_no_broker(command):
                    topic = qualified(call.tenant, messages[0].head.topic)
                    fields["queueId"] = str(self._host.numbering.number(topic, found[0]))
                fields |= held_fields(self._session, call, messages[0], found[0], clock.wall_ms())
                if batch_id:
                    batching.as_one(fields, batch_id)
                self._session.answer(command, command.answer(ResponseCode.SUCCESS, fields))
                return
            failed = next(
                result
                for result in (results[index] for index in range(len(results)))
                if result.code != Code.OK
            )
            if failed.code == Code.TOPIC_NOT_FOUND and is_first:
                self._host.batch_topics.forget(qualified(call.tenant, messages[0].head.topic))
                self._host.tasks.start(self._make_topic(command, call, messages), name="topic")
                return
            self._session.refuse(command, Refused(failed.code, messages[0].head.topic, failed.hint))

        if self._host.services.pipeline.is_congested(call):
            self._session.peer.pause()
            self._host.services.pipeline.when_clear(self._session.resume, call)
        self._host.services.pipeline.post(call, messages, done)

    async def _give_up(
        self, command: RemotingCommand, call: Call, header: SendHeader, message: Message
    ) -> None:
        """
        A consumer sends a message to its group's retry topic: an orderly one has given it up.

        Others do when a send-back failed: refused, so that they try that again; here a message
        comes back from its place, not from a copy.
        """
        group = header.topic[len(RETRY_PREFIX) :]
        consumer = self._session.consumers.get(group)
        is_dead = consumer is not None and bool(consumer.locked)
        is_dead = is_dead or 0 <= header.reconsume_max < header.reconsume_count
        try:
            if not is_dead:
                raise Refused(Code.PRECONDITION_FAILED, header.topic, "send the message back (36)")
            named = dict(message.properties)
            topic, origin = named.get("RETRY_TOPIC", ""), named.get("ORIGIN_MESSAGE_ID", "")
            result = await requests.bury_message(self._session, call, group, message, topic, origin)
        except Refused as error:
            self._session.refuse(command, error)
            return
        fields = send_answer_fields(
            [result], self._session.address, is_traced=self._host.settings.trace
        )
        self._session.answer(command, command.answer(ResponseCode.SUCCESS, fields))

    async def _ask(self, command: RemotingCommand, call: Call, message: Message) -> None:
        """A request: its answer is to find the way back here."""
        try:
            message = await request_of(self._session, message)
        except Refused as error:
            self._session.refuse(command, error)
            return
        self._post(command, call, [message], is_first=True)

    async def _make_topic(
        self, command: RemotingCommand, call: Call, messages: list[Message]
    ) -> None:
        """A send to a topic that nobody made: made now if that is allowed, then once more."""
        topic = messages[0].head.topic
        try:
            info = await self._host.topic(call, topic)
        except Refused as error:
            self._session.refuse(command, error)
            return
        if info is None:
            self._session.refuse(command, Refused(Code.TOPIC_NOT_FOUND, topic, "no such topic"))
            return
        is_numbered = names_no_broker(command)
        fitting = self._heads.fit(messages, info, is_numbered=is_numbered)
        self._post(command, call, fitting, is_first=False)
