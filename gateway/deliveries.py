"""
Standing streams: one logical stream per group over all stores of its cluster.

A group's queues may be spread, so a stream has a *part* at each store. Credit is dealt to the
parts so that the sum never exceeds what the adapter allowed; what lies unused at an idle store
is taken back when a busy one has none. A store that goes away and comes back gets its part
opened again, with the deliveries that the client still holds.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.clusters.client import ClusterClient, RunningLink
from gateway.clusters.link import LinkState, StoreLink
from gateway.decisions import Decider
from gateway.pipeline import GatewayPipeline
from gateway.receipts import consume_clusters, tenant_spec
from gateway.streams import LogicalStream
from protocols.canonical import Call, QueueKind, QueueRef, ReceiptHandle, StoredMessage
from protocols.errors import Code, GatewayError, Refused
from protocols.groups import GroupSpec, QueueStat
from protocols.pipeline import DeliverySink, DeliveryStream
from protocols.tasks import Tasks, outcomes

logger = logging.getLogger("tidegate.deliveries")

REOPENS_AT_ONCE: Final = 64
"""Streams that are opened again at the same time when a store comes back."""

REOPEN_AGAIN_S: Final = 1.0
"""Between attempts at a store that is up and did not answer."""

NOT_NOW: Final = frozenset((Code.PROXY_TIMEOUT, Code.HA_NOT_AVAILABLE, Code.TOO_MANY_REQUESTS))
"""Refusals that say nothing about the next attempt."""

GROUP_PREFIXES: Final = {QueueKind.AMQP: "amqp/", QueueKind.SUBSCRIPTION: "ce/"}
"""The one group of a pinned queue is named after it."""


class Streams:
    """Implements ``protocols.pipeline.DeliveryStreams``."""

    def __init__(self, clusters: Mapping[str, ClusterClient], pipeline: GatewayPipeline) -> None:
        self._clusters = clusters
        self._decider: Decider = pipeline.decider
        self._receipts = pipeline.receipts
        self._streams: dict[str, dict[LogicalStream, None]] = {name: {} for name in clusters}
        self._tasks = Tasks("streams")
        self._reopens = asyncio.Semaphore(REOPENS_AT_ONCE)
        for cluster in clusters.values():
            cluster.listen(self)

    async def close(self) -> None:
        """Stop what runs in the background; the stores notice that the streams are gone."""
        await self._tasks.close()

    # ── groups ──────────────────────────────────────────────────────────────────────────

    async def open_group(self, call: Call, spec: GroupSpec) -> None:
        spec = tenant_spec(call, spec)
        links = self._links(call, spec)
        results = await outcomes([link.open_group(spec) for link in links])
        raise_unless_some(results, spec.name)

    async def drop_group(self, call: Call, spec: GroupSpec) -> None:
        links = self._links(call, spec)
        await asyncio.gather(
            *(link.drop_group(spec.name, spec.owner_epoch) for link in links),
            return_exceptions=True,
        )

    async def open(
        self, call: Call, spec: GroupSpec, sink: DeliverySink, *, credit: int
    ) -> DeliveryStream:
        spec = tenant_spec(call, spec)
        links = self._links(call, spec)
        stream = LogicalStream(spec, sink, self._tasks, forget=self._forget)
        stream.total = credit
        # What was in flight comes first, from all stores: nothing new before that.
        initial = 0 if spec.is_inherited else credit
        for name in {link.cluster for link in links}:  # first: a store may come up meanwhile
            self._streams[name][stream] = None
        shares = _shares(initial, len(links))
        results = await outcomes(
            [
                stream.open_part(link, credit=share)
                for link, share in zip(links, shares, strict=True)
            ]
        )
        try:
            raise_unless_some(results, spec.name)
            await stream.resumed()
        except Refused:
            await stream.close()
            raise
        stream.deal()
        for link, result in zip(links, results, strict=True):
            if result is not None and link.state is LinkState.UP:
                self._tasks.start(self._reopen(stream, link), name=f"reopen {spec.name}")
        return stream

    def _forget(self, stream: LogicalStream) -> None:
        for streams in self._streams.values():
            streams.pop(stream, None)

    def _links(self, call: Call, spec: GroupSpec) -> list[RunningLink]:
        """The stores that keep queues of this group and are up. Raises Refused."""
        links = [
            link
            for cluster in consume_clusters(self._decider, call, spec)
            for link in cluster.up_links()
            if concerns(spec, link)
        ]
        if not links:
            raise Refused(Code.HA_NOT_AVAILABLE, spec.name, "no store of it is up")
        return links

    # ── stores that come and go ─────────────────────────────────────────────────────────

    def link_changed(self, link: StoreLink) -> None:
        """A store is (again) up: every stream that concerns it gets its part there."""
        if link.state is not LinkState.UP:
            return
        for stream in list(self._streams.get(link.cluster, ())):
            if concerns(stream.spec, link):
                self._tasks.start(self._reopen(stream, link), name=f"reopen {stream.spec.name}")

    async def _reopen(self, stream: LogicalStream, link: StoreLink) -> None:
        """Until it is open: a store that is up and slow gives no other occasion."""
        while link.state is LinkState.UP:
            async with self._reopens:
                try:
                    await stream.reopen_part(link)
                    return
                except GatewayError as error:
                    logger.warning("group %s at store %s: %s", stream.spec.name, link.broker, error)
                    if isinstance(error, Refused) and error.code == Code.PRECONDITION_FAILED:
                        stream.ended(link, error.code, error.hint)
                    if isinstance(error, Refused) and error.code not in NOT_NOW:
                        return
            await asyncio.sleep(REOPEN_AGAIN_S)

    def link_cleared(self) -> None:
        """Only publishers care."""

    def routes_changed(self, cluster: ClusterClient) -> None:
        """Links tell what matters here."""

    def reroute(self, runs: object) -> None:
        """Only the pipeline sends."""

    # ── queues ──────────────────────────────────────────────────────────────────────────

    async def create_queue(self, ref: QueueRef, policy: Mapping[str, int | str]) -> QueueRef:
        cluster = self._cluster_of(ref)
        if not ref.store:
            ref = ref._replace(store=cluster.place(f"{ref.kind.value}/{ref.tenant}/{ref.name}"))
        group = _group_of(ref)
        if group:  # opened with the queue: it counts from the first message on
            policy = {**policy, "group": group, "incarnation": ref.incarnation}
        await cluster.link(ref.store).create_queue(ref, policy)
        return ref

    async def delete_queue(self, ref: QueueRef) -> QueueStat:
        return await self._home(ref).delete_queue(ref, _group_of(ref))

    async def reject(self, call: Call, handles: Sequence[ReceiptHandle]) -> None:
        await self._receipts.reject(handles)

    async def purge_queue(self, ref: QueueRef, spec: GroupSpec) -> int:
        return await self._home(ref).purge_queue(ref, spec.name)

    async def stat_queue(self, ref: QueueRef, spec: GroupSpec) -> QueueStat:
        return await self._home(ref).stat_queue(ref, spec.name)

    async def retained(self, tenant: str, subject_filters: Sequence[str]) -> list[StoredMessage]:
        links = [link for cluster in self._clusters.values() for link in cluster.up_links()]
        results = await outcomes([link.retained(tenant, subject_filters) for link in links])
        raise_unless_some(results, "retained values")
        newest: dict[str, StoredMessage] = {}
        for found in results:
            for message in found if not isinstance(found, BaseException) else ():
                known = newest.get(message.subject)
                if known is None or known.store_ms < message.store_ms:
                    newest[message.subject] = message
        return [message for _, message in sorted(newest.items())]

    def _cluster_of(self, ref: QueueRef) -> ClusterClient:
        cluster = self._clusters.get(ref.cluster or self._decider.default_cluster)
        if cluster is None:
            raise Refused(Code.UNSUPPORTED, ref.name, f"no broker cluster {ref.cluster} is open")
        return cluster

    def _home(self, ref: QueueRef) -> RunningLink:
        return self._cluster_of(ref).link(ref.store)


def is_pinned(spec: GroupSpec) -> bool:
    """All its queues are pinned: it exists on their stores only."""
    return bool(spec.reads) and all(
        read.queue is not None and bool(read.queue.store) for read in spec.reads
    )


def concerns(spec: GroupSpec, link: StoreLink) -> bool:
    """Whether the group may have entries at this store."""
    if not is_pinned(spec):
        return True
    return any(read.queue is not None and read.queue.store == link.broker for read in spec.reads)


def raise_unless_some(results: Sequence[object], subject: str) -> None:
    """
    Stores that cannot be reached are left out, unless that is all of them.

    Any other refusal (a stale owner epoch) holds for the whole.
    """
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if not isinstance(failure, Refused) or failure.code not in (
            Code.HA_NOT_AVAILABLE,
            Code.PROXY_TIMEOUT,
        ):
            raise failure
    if failures and len(failures) == len(results):
        raise Refused(Code.HA_NOT_AVAILABLE, subject, "no store of it can be reached")


def _shares(credit: int, count: int) -> list[int]:
    """*credit* in *count* parts whose sum it is."""
    return [credit // count + (index < credit % count) for index in range(count)]


def _group_of(ref: QueueRef) -> str:
    prefix = GROUP_PREFIXES.get(ref.kind)
    return f"{prefix}{ref.name}" if prefix is not None else ""
