"""
Pop, ack and change over all stores of a cluster.

A pop first asks one store after the other, each time beginning with the next, so that no store
starves; if all are empty it long-polls at all of them, takes what comes first and gives the
surplus back unsent. Acks go to the store that the handle names, coalesced there per tick.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gateway.clusters.batches import known_code
from gateway.clusters.client import ClusterClient, RunningLink
from gateway.clusters.link import TIDEGATE, LinkState
from gateway.decisions import Decider
from gateway.mapping import qualified
from gateway.rules import facts_of
from protocols import clock
from protocols.canonical import Call, Delivery, ReceiptHandle
from protocols.errors import Code, GatewayError, Refused
from protocols.groups import AckResult, GroupSpec, InvisibleTimeChange, PopRequest
from protocols.remoting.settling import AckAction, MarkItem
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.receipts")

COUNT_MAX: Final = 1024
"""Deliveries of one pop, whatever was asked for."""

WAIT_MS_MAX: Final = 60_000
LINKS_S: Final = 3.0
"""For links that are not up when a client comes with what it holds."""

LINK_S: Final = 0.05

Poll = asyncio.Task[list[Delivery] | GatewayError]
"""One pop at one store. It returns what it fails of: who asked may be gone by then."""


async def _pop(
    link: RunningLink, request: PopRequest, wait_ms: int
) -> list[Delivery] | GatewayError:
    try:
        return await link.pop(request, count=request.count, wait_ms=wait_ms)
    except GatewayError as error:
        return error


def _found_by(poll: Poll) -> list[Delivery]:
    """What it brought."""
    if poll.cancelled() or poll.exception() is not None:
        return []
    found = poll.result()
    return [] if isinstance(found, GatewayError) else found


class Receipts:
    """The three verbs that have to do with receipt handles."""

    def __init__(self, clusters: Mapping[str, ClusterClient], decider: Decider) -> None:
        self._clusters = clusters
        self._decider = decider
        self._turn = 0
        self._tasks = Tasks("receipts")
        self._missed: set[RunningLink] = set()
        """Links that were waited for in vain, until they are up."""

    async def close(self) -> None:
        await self._tasks.close()

    # ── pop ─────────────────────────────────────────────────────────────────────────────

    async def pop(self, call: Call, request: PopRequest) -> list[Delivery]:
        """Raises Refused: forbidden, or no store is up."""
        spec = tenant_spec(call, request.group)
        self._check(call, spec)
        request = replace(request, group=spec, count=min(request.count, COUNT_MAX))
        links = self._links(call, request)
        self._turn += 1
        at = self._turn % len(links)
        links = links[at:] + links[:at]
        failure: GatewayError | None = None
        if len(links) == 1:
            wait_ms = min(request.wait_ms, WAIT_MS_MAX)
            return await self._poll(links[0], request, wait_ms)
        for link in links:
            try:
                found = await self._poll(link, request, 0)
            except GatewayError as error:
                failure = error
                continue
            if found:
                return found
        if request.wait_ms <= 0:
            if failure is not None:
                raise failure
            return []
        return await self._wait(links, request)

    async def adopt(
        self, call: Call, spec: GroupSpec, taker: str, invisible_ms: int
    ) -> list[Delivery]:
        """Of all stores that are up. Raises Refused: forbidden."""
        spec = tenant_spec(call, spec)
        self._check(call, spec)
        found: list[Delivery] = []
        for cluster in consume_clusters(self._decider, call, spec):
            await self._await_links(cluster)
            for link in cluster.up_links():
                try:
                    found += await link.adopt(spec, taker, invisible_ms)
                except GatewayError as error:
                    logger.info("what %s holds at %s: %s", taker, link.broker, error)
        return found

    async def _await_links(self, cluster: ClusterClient) -> None:
        """A client may be here before the links are: this gateway has just started, too."""
        until = clock.monotonic() + LINKS_S
        while True:
            away = {link for link in cluster.links.values() if link.state is not LinkState.UP}
            self._missed = {link for link in self._missed if link.state is not LinkState.UP}
            if not away - self._missed:
                return
            if clock.monotonic() >= until:
                self._missed |= away
            await asyncio.sleep(LINK_S)

    def mark(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> None:
        """At stores of ours; others have no place for it."""
        for link, indexes in self._by_link([handle for handle, _, _ in marks]).items():
            if link.capabilities is not TIDEGATE:
                continue
            items: dict[int, list[MarkItem]] = {}
            for handle, packet_id, stage in [marks[index] for index in indexes]:
                item = MarkItem(handle.group, handle.position, handle.grant, packet_id, stage)
                items.setdefault(handle.store_epoch, []).append(item)
            for epoch, found in items.items():
                link.mark(epoch, found)

    async def _poll(self, link: RunningLink, request: PopRequest, wait_ms: int) -> list[Delivery]:
        """
        One store. A poll of ours cannot be called off: when the caller is cancelled, what it
        still brings is given back rather than hidden for nobody.
        """
        poll = self._start_poll(link, request, wait_ms)
        try:
            found = await asyncio.shield(poll)
        except asyncio.CancelledError:
            self._call_off(link, poll)
            raise
        if isinstance(found, GatewayError):
            raise found
        return found

    def _start_poll(self, link: RunningLink, request: PopRequest, wait_ms: int) -> Poll:
        return self._tasks.start(_pop(link, request, wait_ms), name=f"pop {link.broker}")

    async def _wait(self, links: Sequence[RunningLink], request: PopRequest) -> list[Delivery]:
        """Long-poll at all stores; the first that has something decides."""
        wait_ms = min(request.wait_ms, WAIT_MS_MAX)
        polls = {self._start_poll(link, request, wait_ms): link for link in links}
        try:
            pending = set(polls)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                found = self._collect(done, request.count)
                if found:
                    return found
            failures = [error for poll in polls if isinstance(error := poll.result(), GatewayError)]
            if len(failures) == len(polls):
                raise failures[0]
            return []
        finally:
            for poll, link in polls.items():  # what those still bring is given back at once
                if not poll.done():
                    self._call_off(link, poll)

    def _call_off(self, link: RunningLink, poll: Poll) -> None:
        if link.capabilities.ends_pops:
            poll.cancel()
        else:
            poll.add_done_callback(self._give_back)

    def _collect(self, done: set[Poll], count: int) -> list[Delivery]:
        found: list[Delivery] = []
        for poll in done:
            found += _found_by(poll)
        if len(found) > count:
            self.release([delivery.handle for delivery in found[count:]])
        return found[:count]

    def _give_back(self, poll: Poll) -> None:
        self.release([delivery.handle for delivery in _found_by(poll)])

    def release(self, handles: Sequence[ReceiptHandle]) -> None:
        """Back to their places, unsent; not awaited."""
        for link, indexes in self._by_link(handles).items():
            changes = [(handles[index], int(AckAction.RELEASE), 0) for index in indexes]
            link.ack_handles(changes, lambda results: None)

    def _check(self, call: Call, spec: GroupSpec) -> None:
        group = spec.name.split("/")[1] if spec.name.startswith("rmq/") else spec.name
        for read in spec.reads:
            if read.topic and not self._decider.policy.acl.is_allowed(
                call, "consume", subject=read.topic, topic=read.topic, group=group
            ):
                raise Refused(Code.FORBIDDEN, read.topic, "the ACL does not allow this consumer")

    def _links(self, call: Call, request: PopRequest) -> list[RunningLink]:
        links = [
            link
            for cluster in consume_clusters(self._decider, call, request.group)
            for link in cluster.up_links()
            if not request.broker or link.broker == request.broker
        ]
        pinned = {read.queue.store for read in request.group.reads if read.queue is not None}
        if pinned and "" not in pinned:
            links = [link for link in links if link.broker in pinned]
        if not links:
            raise Refused(Code.HA_NOT_AVAILABLE, request.group.name, "no store of it is up")
        return links

    # ── ack, change ─────────────────────────────────────────────────────────────────────

    async def ack(self, handles: Sequence[ReceiptHandle]) -> list[AckResult]:
        changes = [(handle, int(AckAction.ACK), 0) for handle in handles]
        return await self._apply(changes, keep_handle=False)

    async def reject(self, handles: Sequence[ReceiptHandle]) -> list[AckResult]:
        """Done, and a dead letter where the queue's policy wants that."""
        changes = [(handle, int(AckAction.REJECT), 0) for handle in handles]
        return await self._apply(changes, keep_handle=False)

    async def change(self, changes: Sequence[InvisibleTimeChange]) -> list[AckResult]:
        items = [
            (handle, int(AckAction.RENEW if is_renewal else AckAction.CHANGE), max(0, invisible_ms))
            for handle, invisible_ms, is_renewal in changes
        ]
        return await self._apply(items, keep_handle=True)

    async def _apply(
        self, changes: Sequence[tuple[ReceiptHandle, int, int]], *, keep_handle: bool
    ) -> list[AckResult]:
        """Each to its store, all at once; results in order."""
        lost = AckResult(Code.HA_NOT_AVAILABLE, None, "the store is away")
        results: list[AckResult] = [lost] * len(changes)
        by_link = self._by_link([handle for handle, _, _ in changes])
        waits: list[asyncio.Future[None]] = []
        for link, indexes in by_link.items():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waits.append(future)

            def answered(
                answers: Sequence[tuple[int, ReceiptHandle | None]] | None,
                indexes: Sequence[int] = indexes,
                future: asyncio.Future[None] = future,
            ) -> None:
                for index, (code, handle) in zip(indexes, answers or (), strict=False):
                    results[index] = _result(code, handle if keep_handle else None)
                if not future.done():
                    future.set_result(None)

            link.ack_handles([changes[index] for index in indexes], answered)
        if waits:
            await asyncio.wait(waits)
        return results

    def _by_link(self, handles: Sequence[ReceiptHandle]) -> dict[RunningLink, list[int]]:
        found: dict[RunningLink, list[int]] = {}
        for index, handle in enumerate(handles):
            cluster = self._clusters.get(handle.cluster)
            link = cluster.links.get(handle.broker) if cluster is not None else None
            if link is not None:
                found.setdefault(link, []).append(index)
        return found


def _result(number: int, handle: ReceiptHandle | None) -> AckResult:
    code = known_code(number)
    if code == Code.OK:
        return AckResult(Code.OK, handle)
    return AckResult(code, None, "this delivery is no longer yours")


def tenant_spec(call: Call, spec: GroupSpec) -> GroupSpec:
    """The group with its topics in the tenant's namespace."""
    if not call.tenant or not any(read.topic for read in spec.reads):
        return spec
    reads = tuple(
        read._replace(topic=qualified(call.tenant, read.topic)) if read.topic else read
        for read in spec.reads
    )
    return replace(spec, reads=reads)


def consume_clusters(decider: Decider, call: Call, spec: GroupSpec) -> list[ClusterClient]:
    """The clusters a group reads from: its own, or all that the routes name. Raises Refused."""
    names: list[str] = []
    if spec.cluster:
        names.append(spec.cluster)
    for read in spec.reads:
        if read.queue is not None and read.queue.cluster:
            names.append(read.queue.cluster)
    if not names and spec.reads:
        read = spec.reads[0]
        subject = read.queue.name if read.queue is not None else read.topic
        facts = facts_of(call, "consume", subject=subject, topic=read.topic, group=spec.name)
        names += [target.cluster for target in decider.policy.routes.consume_targets(facts)]
    names = names or [decider.default_cluster]
    found = [decider.clusters[name] for name in dict.fromkeys(names) if name in decider.clusters]
    if not found:
        raise Refused(Code.UNSUPPORTED, spec.name, f"no broker cluster {', '.join(names)} is open")
    return found
