"""
Who came and who went, as messages: MQTT under ``$events/<client id>/online`` and ``…/offline``,
RocketMQ in the topic that the listener names, with the event as tag and the client id as key.

Two connections of one client id may be told about by two gateways: ``connection`` rises with each,
so that an offline of the old one is not taken for the new one's.
"""

import json
import logging
from functools import partial
from typing import Final, NamedTuple

from protocols import clock
from protocols.canonical import INTERNAL, Call, Head, Identity, Message, SendResults
from protocols.errors import Code, Refused
from protocols.mqtt.packets import Connect
from protocols.mqtt.records import SessionRecord, offline_once_key
from protocols.pipeline import Services
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.mqtt")

PREFIX: Final = "$events/"
_ESCAPES: Final = {"%": "%25", "/": "%2F", "+": "%2B", "#": "%23"}
TELLING_MAX: Final = 10_000
"""Events on their way to the store; more are counted and dropped."""


class Ended(NamedTuple):
    """How a connection ended."""

    reason: str
    connected_ms: int = 0
    last_seen_ms: int = 0
    """Wall time of the last bytes from the client."""


class Presence:
    """Tells of the clients of one listener."""

    def __init__(self, listener: str, topic: str, services: Services) -> None:
        self._listener = listener
        self._topic = topic
        self._services = services
        self._tasks = Tasks(f"mqtt {listener} events")
        self._calls: dict[str, Call] = {}
        self._telling_count = 0
        self._dropped = services.metrics.counter(
            "mqtt_events_dropped",
            "Online and offline events that were not stored",
            listener=listener,
        )

    async def close(self) -> None:
        await self._tasks.settle(2.0)
        await self._tasks.close()

    def online(self, record: SessionRecord, connect: Connect, peer: str) -> None:
        more: dict[str, object] = {
            "peer": peer,
            "version": connect.version,
            "keep_alive_s": connect.keep_alive_s,
            "clean_start": connect.clean_start,
        }
        self._tell("online", record, more)

    def offline(self, record: SessionRecord, peer: str, ended: Ended) -> None:
        more: dict[str, object] = {"peer": peer, **ended._asdict()}
        self._tell("offline", record, {name: value for name, value in more.items() if value})

    def orphaned(self, record: SessionRecord) -> None:
        """Its gateway is gone: every listener of the others sees that, one is heard."""
        self._tell("offline", record, {"reason": "its gateway is gone"}, offline_once_key(record))

    def _tell(
        self, event: str, record: SessionRecord, more: dict[str, object], once_key: bytes = b""
    ) -> None:
        name = "".join([_ESCAPES.get(sign, sign) for sign in record.client_id])
        head = Head(
            subject=f"{PREFIX}{name}/{event}",
            topic=self._topic,
            tag=event,
            order_key=record.client_id,
        )
        fields = {
            "event": event,
            "client_id": record.client_id,
            "user": record.identity,
            "tenant": record.tenant,
            "listener": record.listener,
            "gateway": record.gateway,
            "connection": record.owner_epoch,
            "at_ms": clock.wall_ms(),
            **more,
        }
        message = Message(
            head, json.dumps(fields).encode(), keys=record.client_id, once_key=once_key
        )
        if self._telling_count >= TELLING_MAX:
            self._dropped.inc()
            return
        self._telling_count += 1
        call = self._call(record.tenant)
        self._services.pipeline.post(call, [message], partial(self._told, call, message, True))

    def _call(self, tenant: str) -> Call:
        """The gateway's own: no ACL is asked."""
        call = self._calls.get(tenant)
        if call is None:
            identity = Identity(name="tidegate")
            call = self._calls[tenant] = Call(
                protocol=INTERNAL, listener=self._listener, identity=identity, tenant=tenant
            )
        return call

    def _told(self, call: Call, message: Message, is_first: bool, results: SendResults) -> None:
        result = results[0]
        if result.code == Code.TOPIC_NOT_FOUND and is_first:
            self._tasks.start(self._make_topic(call, message), name="topic")
            return
        self._telling_count -= 1
        if not result.is_stored:
            self._dropped.inc()
            logger.warning("event %s: %s %s", message.head.subject, result.code.name, result.hint)

    async def _make_topic(self, call: Call, message: Message) -> None:
        """The first event of a tenant makes its topic."""
        name = f"{call.tenant}%{self._topic}" if call.tenant else self._topic
        try:
            await self._services.topics.create(name)
        except Refused as error:
            logger.warning("topic %s: %s", name, error)
        told = partial(self._told, call, message, False)
        self._services.pipeline.post(call, [message], told)
