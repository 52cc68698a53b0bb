"""
basic.publish: from the bytes of a publish to heads and messages, and the answers back.

A run of publishes of one channel goes to the pipeline as one batch. What a publish's arguments
mean is kept until the topology changes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols import clock
from protocols.amqp import replies
from protocols.amqp.addresses import AMQ_TOPIC
from protocols.amqp.channel import Batch, Mode
from protocols.amqp.codec import Publish, decode_publish
from protocols.amqp.delaying import delay_ms_of, waiting_place
from protocols.amqp.fields import Table
from protocols.amqp.mapping import (
    HAS_HEADERS,
    Stored,
    address_head,
    extra_keys,
    message_of,
    queue_head,
    stored_block,
    without_bcc,
)
from protocols.amqp.methods import BasicReturn
from protocols.amqp.properties import decode_properties
from protocols.amqp.replies import AmqpFault
from protocols.amqp.replying import MARK, with_reply_name
from protocols.amqp.targets import find_targets
from protocols.amqp.topology import Topology
from protocols.canonical import Head, Message, SendResult, SendResults
from protocols.errors import Code, PeerError

if TYPE_CHECKING:
    from protocols.amqp.channelwork import ChannelWork


METHOD: Final = 0x003C0028
ROUTES_MAX: Final = 4096
"""Different publish arguments remembered per connection."""

BLOCKS_MAX: Final = 512
"""Different property blocks remembered per connection."""


class Route(NamedTuple):
    """Where publishes with the same arguments go."""

    version: int
    """Of the topology; -1: not to be kept."""

    exchange: str
    key: str
    is_mandatory: bool
    heads: tuple[Head, ...]
    delay_ms: int = 0
    """To be routed so much later: the head names the place where it waits."""


class Publisher:
    """What one connection remembers of its publishes."""

    def __init__(self, topology: Topology, vhost: str, tenant: str, user: str) -> None:
        self._topology = topology
        self._vhost = vhost
        self._tenant = tenant
        self._user = user
        self._routes: dict[tuple[bytes, int], Route] = {}
        self._known: set[bytes] = set()
        """Arguments of publishes that are in ``_routes``, whatever their priority."""

        self._blocks: dict[tuple[bytes, bool], Stored] = {}
        self._heads: dict[tuple[str, str, int, tuple[str, ...]], Head] = {}

    def route(self, item: Publish, priority: int) -> Route:
        """
        Raises AmqpFault: 403 internal exchange, 404 unknown exchange, 406 bad CC, 540 immediate.
        """
        topology = self._topology
        known = self._routes.get((item.arguments, priority))
        has_cc = item.properties[0] & HAS_HEADERS and b"CC" in item.properties
        if known is not None and known.version == topology.version and not has_cc:
            return known
        exchange, key, is_mandatory, is_immediate = decode_publish(item.arguments)
        if is_immediate:
            raise AmqpFault(replies.NOT_IMPLEMENTED, "immediate=true", method=METHOD)
        self._require_publishable(exchange)
        keys = [key, *extra_keys(item.properties)]
        is_delaying = topology.exchanges[self._vhost, exchange].is_delaying
        if is_delaying and (delay_ms := delay_ms_of(item.properties)):
            head = queue_head(exchange, key, (waiting_place(self._vhost),))
            return Route(-1, exchange, key, is_mandatory, (head,), delay_ms)
        heads = self._resolve(exchange, keys, item.properties, priority)
        is_kept = (
            len(keys) == 1
            and not is_delaying
            and (exchange == AMQ_TOPIC or topology.is_cached(self._vhost, exchange, key))
        )
        version = topology.version if is_kept else -1
        route = Route(version, exchange, key, is_mandatory, heads)
        if is_kept:
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
                self._known.clear()
            self._known.add(item.arguments)
            self._routes[item.arguments, priority] = route
        return route

    def is_known(self, item: Publish) -> bool:
        """Whether the exchange is in the local table (else the directory must be asked)."""
        if item.arguments in self._known:
            return True
        exchange = decode_publish(item.arguments)[0]
        return (self._vhost, exchange) in self._topology.exchanges

    def stored(self, item: Publish, *, is_addressed: bool) -> Stored:
        """The property block as it is stored. Raises AmqpFault 406, 501."""
        block = without_bcc(item.properties)
        found = self._blocks.get((block, is_addressed))
        if found is None:
            found = stored_block(block, is_addressed=is_addressed)
            if found.user_id and found.user_id != self._user:
                raise AmqpFault(
                    replies.PRECONDITION_FAILED,
                    f"user_id property set to '{found.user_id}' but authenticated user was "
                    f"'{self._user}'",
                    method=METHOD,
                )
            if len(self._blocks) >= BLOCKS_MAX:
                self._blocks.clear()
            self._blocks[block, is_addressed] = found
        return found

    def _require_publishable(self, name: str) -> None:
        vhost = self._vhost
        exchange = self._topology.exchanges.get((vhost, name))
        if exchange is None:
            text = f"no exchange '{name}' in vhost '{vhost}'"
            raise AmqpFault(replies.NOT_FOUND, text, method=METHOD)
        if exchange.record.internal:
            raise AmqpFault(
                replies.ACCESS_REFUSED,
                f"cannot publish to internal exchange '{name}' in vhost '{vhost}'",
                method=METHOD,
            )

    def _resolve(
        self, exchange: str, keys: Sequence[str], block: bytes, priority: int
    ) -> tuple[Head, ...]:
        """One head for all queues; to ``amq.topic`` one for each address."""
        heads: list[Head] = []
        headers = self._headers(exchange, block)
        targets = find_targets(self._topology, self._vhost, self._tenant, exchange, keys, headers)
        refs = targets.refs
        heads += [address_head(key, priority, exchange, refs) for key in targets.addresses]
        if refs:
            level = min(priority, targets.highest_priority) or -1
            name = (exchange, keys[0], level, tuple(str(ref.incarnation) for ref in refs))
            head = self._heads.get(name)
            if head is None:  # the same object again lets the pipeline reuse its decision
                if len(self._heads) >= ROUTES_MAX:
                    self._heads.clear()
                head = queue_head(exchange, keys[0], refs, priority=level)
                self._heads[name] = head
            heads.append(head)
        return tuple(heads)

    def _headers(self, exchange: str, block: bytes) -> Table:
        """Decoded where they may matter: nobody knows what a bound headers exchange wants."""
        if exchange in ("", AMQ_TOPIC) or not block[0] & HAS_HEADERS:
            return {}
        if not self._topology.has_headers_exchanges(self._vhost):
            return {}
        try:
            return decode_properties(block).headers or {}
        except PeerError as error:
            raise AmqpFault(replies.FRAME_ERROR, str(error)) from error


class Outcome(NamedTuple):
    """One publish of a run, on its way."""

    item: Publish
    route: Route
    message_count: int
    """Messages it became; 0: no queue wants it."""


def prepare(
    work: "ChannelWork", run: Sequence[Publish]
) -> tuple[list[Outcome], list[Message], AmqpFault | None]:
    """Messages of a run, up to the first publish that is at fault."""
    outcomes: list[Outcome] = []
    messages: list[Message] = []
    wall_ms = clock.wall_ms()
    publisher = work.session.publisher
    for item in run:
        try:
            is_addressed = _is_addressed(item.arguments)
            if MARK in item.properties:
                item = item._replace(properties=with_reply_name(work, item.properties))
            stored = publisher.stored(item, is_addressed=is_addressed)
            route = publisher.route(item, stored.priority)
        except AmqpFault as fault:
            fault.method = fault.method or METHOD
            return outcomes, messages, fault
        if route.delay_ms:
            messages.append(_delayed(item, route, wall_ms))
        else:
            for head in route.heads:
                block = stored
                if head.queues is None and not is_addressed:  # by way of another exchange
                    block = publisher.stored(item, is_addressed=True)
                messages.append(message_of(head, block, item.body, wall_ms=wall_ms))
        outcomes.append(Outcome(item, route, len(route.heads)))
    return outcomes, messages, None


def _delayed(item: Publish, route: Route, wall_ms: int) -> Message:
    """It waits as it was published, BCC too; its time to live begins when it is routed."""
    stored = stored_block(item.properties, is_addressed=False)._replace(expires_in_ms=-1)
    message = message_of(route.heads[0], stored, item.body, wall_ms=wall_ms)
    return message._replace(deliver_at_ms=wall_ms + route.delay_ms)


_AMQ_TOPIC_ARGUMENT: Final = bytes((len(AMQ_TOPIC),)) + AMQ_TOPIC.encode()


def _is_addressed(arguments: bytes) -> bool:
    """To ``amq.topic``, told from the raw arguments (two reserved bytes come first)."""
    return arguments.startswith(_AMQ_TOPIC_ARGUMENT, 2)


def post(work: "ChannelWork", outcomes: Sequence[Outcome], messages: Sequence[Message]) -> None:
    """Hand a run to the pipeline; returns and confirms follow its results."""
    batch = None
    if work.mode is Mode.CONFIRM:
        batch = work.confirms.begin(len(outcomes), 1 if messages else 0)
    if not messages:
        answer(work, outcomes, None, batch)
        return
    work.busy(1)
    work.session.services.pipeline.post(
        work.session.call, messages, lambda results: answer(work, outcomes, results, batch)
    )
    work.session.watch_congestion()


def answer(
    work: "ChannelWork",
    outcomes: Sequence[Outcome],
    results: SendResults | None,
    batch: Batch | None,
) -> None:
    """What became of a run: returns first, then acks and nacks; refusals of the ACL end it."""
    if batch is not None:
        batch.open_count = 0
    if results is not None:
        work.busy(-1)
    if not work.is_open:
        return
    place = 0
    worst = Code.OK
    for offset, outcome in enumerate(outcomes):
        count = outcome.message_count
        stop = place + count
        found = [results[index] for index in range(place, stop)] if results is not None else []
        place = stop
        code = _judge(found)
        if outcome.route.is_mandatory and code == Code.OK and _is_unrouted(found):
            _return(work, outcome)
        elif code != Code.OK or any(result.refused for result in found):
            worst = code if code != Code.OK else worst
            if batch is not None:
                batch.nacked.add(batch.first + offset)
        if code == Code.FORBIDDEN:
            exchange = outcome.route.exchange or "amq.default"
            work.fail(
                AmqpFault(
                    replies.ACCESS_REFUSED,
                    f"access to exchange '{exchange}' in vhost '{work.session.vhost}' refused for "
                    f"user '{work.session.user}'",
                    method=METHOD,
                )
            )
            return
    work.session.published(len(outcomes), worst)
    work.confirm_soon()


def _judge(found: Sequence[SendResult]) -> Code:
    return next((result.code for result in found if result.code != Code.OK), Code.OK)


def _is_unrouted(found: Sequence[SendResult]) -> bool:
    return not any(result.matched_count for result in found)


def _return(work: "ChannelWork", outcome: Outcome) -> None:
    route, item = outcome.route, outcome.item
    method = BasicReturn(replies.NO_ROUTE, "NO_ROUTE", route.exchange, route.key)
    work.session.connection.send_content(work.number, method, item.properties, item.body)
    work.flush_soon()
