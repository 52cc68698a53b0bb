"""
``POST /topics/{topic}/subscriptions/{group}:receive|acknowledge|release|reject|renewLock``.

Event Grid's pull API on a RocketMQ consumer group: receive is pop, a lock token is a receipt
handle. Members of the group may be HTTP, gRPC and remoting clients at once.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from protocols import dead_letters
from protocols.canonical import Call, Delivery, ReceiptHandle
from protocols.cloudevents import mapping, modes
from protocols.cloudevents.access import CONSUME, TOPIC, Access, qualified
from protocols.cloudevents.config import CloudEventsConfig
from protocols.cloudevents.ingest import read_body
from protocols.cloudevents.problems import Problem
from protocols.errors import MALFORMED, Code
from protocols.groups import AckResult, GroupSpec, InvisibleTimeChange, PopRequest, Read, Start
from protocols.pipeline import Services, TopicInfo
from protocols.rocketmq_groups import as_configured
from protocols.tasks import LongPolls

EVENTS_MAX: Final = 100
"""Of one receive (Event Grid: maxEvents at most 100)."""

WAIT_S_MAX: Final = 120
WAIT_S: Final = 60
LOCK_S: Final = 60
LOCK_S_MAX: Final = 12 * 3600
"""Lock durations in seconds; the longest is RocketMQ's longest invisible time."""

TOKENS_MAX: Final = 1000

_NO_TOKEN: Final = AckResult(
    Code.INVALID_RECEIPT_HANDLE, hint="this token is expired, or not of this group and topic"
)


class Pull:
    """Pop, ack and change over HTTP."""

    def __init__(
        self, config: CloudEventsConfig, services: Services, access: Access, polls: LongPolls
    ) -> None:
        self._config = config
        self._services = services
        self._access = access
        self._polls = polls

    async def post(self, request: web.Request) -> web.Response:
        """Dispatch on the verb behind the colon."""
        call = await self._access.call_of(request)
        topic, group = request.match_info["topic"], request.match_info["group"]
        if not TOPIC.fullmatch(group):
            raise Problem(404, f"'{group}' is no group name")
        self._access.require(call, CONSUME, topic, group=group)
        asked = await self._asked(request)
        if request.match_info["verb"] == "receive":
            polls = self._access.polls_of(request)
            answer = await self._receive(call, topic, group, asked, polls)
        else:
            answer = await self._settle(call, request.match_info["verb"], topic, group, asked)
        return web.Response(body=answer, content_type="application/json")

    async def _asked(self, request: web.Request) -> dict[str, Any]:
        """Members of the JSON body, and query parameters, which win."""
        body = await read_body(request, self._config.body_s_max)
        try:
            asked = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
        except MALFORMED as error:
            raise Problem(400, f"the body is no JSON object: {error}") from error
        return asked | dict(request.query)

    # ── receive ─────────────────────────────────────────────────────────────────────────

    async def _receive(
        self, call: Call, topic: str, group: str, asked: dict[str, Any], polls: LongPolls
    ) -> bytes:
        count = whole_number(asked, "maxEvents", 1, 1, EVENTS_MAX)
        wait_s = whole_number(asked, "maxWaitTime", WAIT_S, 0, WAIT_S_MAX)
        lock_s = whole_number(asked, "lockDuration", LOCK_S, 1, LOCK_S_MAX)
        info = await self._access.topic(call, topic)
        pop = PopRequest(
            group=await self._spec(call, group, info, topic),
            count=count,
            invisible_ms=lock_s * 1000,
            wait_ms=wait_s * 1000,
        )
        deliveries = await self._polls.wait(polls.wait(self._services.pipeline.pop(call, pop)))
        return b'{"value":[' + b",".join([_item(delivery) for delivery in deliveries]) + b"]}"

    async def _spec(self, call: Call, group: str, info: TopicInfo, topic: str) -> GroupSpec:
        tenant = call.tenant
        policy = await self._services.topics.group(qualified(tenant, group), info.name)
        spec = GroupSpec(
            name=_group_name(tenant, group, topic),
            reads=(Read(topic=info.name),),
            attempts_max=self._config.attempts_max,
            dead_letter_topic=dead_letters.PREFIX + qualified(tenant, group),
            start=Start.EARLIEST,
        )
        return as_configured(spec, info, policy)

    # ── acknowledge, release, reject, renewLock ─────────────────────────────────────────

    async def _settle(
        self, call: Call, verb: str, topic: str, group: str, asked: dict[str, Any]
    ) -> bytes:
        tokens = asked.get("lockTokens")
        if not isinstance(tokens, list) or not all(isinstance(one, str) for one in tokens):
            raise Problem(400, 'send {"lockTokens": [...]}', attribute="lockTokens")
        if len(tokens) > TOKENS_MAX:
            raise Problem(413, f"{len(tokens)} tokens, at most {TOKENS_MAX}")
        name = _group_name(call.tenant, group, topic)
        found = [ReceiptHandle.decode(token) for token in tokens]
        mine = [handle for handle in found if handle is not None and handle.group_name == name]
        results = iter(await self._results(call, verb, topic, group, mine, asked))
        answers = [
            (
                token,
                next(results) if handle is not None and handle.group_name == name else _NO_TOKEN,
            )
            for token, handle in zip(tokens, found, strict=True)
        ]
        return _settled(answers, shows_new=verb == "renewLock")

    async def _results(
        self,
        call: Call,
        verb: str,
        topic: str,
        group: str,
        handles: Sequence[ReceiptHandle],
        asked: dict[str, Any],
    ) -> list[AckResult]:
        pipeline = self._services.pipeline
        if verb == "acknowledge":
            return await pipeline.ack(call, handles)
        if verb == "reject":
            stored_topic, stored_group = (
                qualified(call.tenant, topic),
                qualified(call.tenant, group),
            )
            return [
                await dead_letters.bury_delivery(
                    self._services, call, handle, stored_topic, stored_group
                )
                for handle in handles
            ]
        if verb == "release":
            seconds = whole_number(asked, "releaseDelayInSeconds", 0, 0, LOCK_S_MAX)
        else:
            seconds = whole_number(asked, "lockDuration", LOCK_S, 1, LOCK_S_MAX)
        changes = [InvisibleTimeChange(handle, seconds * 1000) for handle in handles]
        return await pipeline.change_invisible_time(call, changes)


def _group_name(tenant: str, group: str, topic: str) -> str:
    """The same group as that of gRPC and remoting members."""
    return f"rmq/{qualified(tenant, group)}/{qualified(tenant, topic)}"


def _item(delivery: Delivery) -> bytes:
    """One received event with its lock token."""
    properties = {"lockToken": delivery.handle.encode(), "deliveryCount": delivery.attempt}
    event = modes.encode_structured(mapping.from_stored(delivery.message))
    return b'{"brokerProperties":' + msgspec.json.encode(properties) + b',"event":' + event + b"}"


def _settled(answers: Sequence[tuple[str, AckResult]], *, shows_new: bool) -> bytes:
    """Which tokens counted; a renewed lock has a new token from then on."""
    document: dict[str, Any] = {
        "succeededLockTokens": [token for token, result in answers if result.code == Code.OK],
        "failedLockTokens": [
            {
                "lockToken": token,
                "error": {"code": result.code.name, "message": result.hint or result.code.name},
            }
            for token, result in answers
            if result.code != Code.OK
        ],
    }
    if shows_new:
        document["renewedLockTokens"] = {
            token: result.handle.encode() if result.handle else token
            for token, result in answers
            if result.code == Code.OK
        }
    return msgspec.json.encode(document)


def whole_number(asked: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    """A number of the request, also as text. Raises Problem(400) naming it."""
    value = asked.get(name, default)
    try:
        number = int(value) if not isinstance(value, bool) else None
    except (TypeError, ValueError):
        number = None
    if number is None or not least <= number <= most:
        raise Problem(400, f"{name}: {value!r} is not {least} to {most}", attribute=name)
    return number
