"""
Who wants an address: the rows of the directory's matching table, as trees of filters.

A row (``Subscription``) names a filter, the light queue that takes what matches, and its owner.
Rows of several owners may name the same filter and queue (two sessions on ``a/+``): the queue
stays in the tree until the last of them is gone.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from protocols.canonical import QueueKind, QueueRef
from protocols.directory import Record, Subscription
from protocols.subjects import FilterTree, has_wildcard

PREFIX = "filter/"
CACHED_SUBJECTS_MAX = 1 << 16
"""Subjects whose match is remembered; the oldest half goes when it is full."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The stored form of a ``Subscription``."""

    subject_filter: str
    kind: str
    name: str
    owner: str
    tenant: str = ""
    queue_tenant: str = ""
    incarnation: int = 0
    store: str = ""
    cluster: str = ""

    def queue(self) -> QueueRef:
        return QueueRef(
            QueueKind(self.kind),
            self.name,
            self.queue_tenant,
            self.incarnation,
            self.store,
            self.cluster,
        )


def row_key(subscription: Subscription, tenant: str) -> str:
    """``filter/<tenant>/<owner>/<n>``; *n* is a hash, so the same row has the same key."""
    text = "\x00".join((subscription.subject_filter, subscription.queue.cluster))
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
    digest.update(subscription.queue.key())
    return f"{PREFIX}{tenant}/{subscription.owner}/{digest.hexdigest()}"


def encode_row(subscription: Subscription, tenant: str) -> bytes:
    queue = subscription.queue
    return msgspec.msgpack.encode(
        Row(
            subject_filter=subscription.subject_filter,
            kind=queue.kind.value,
            name=queue.name,
            owner=subscription.owner,
            tenant=tenant,
            queue_tenant=queue.tenant,
            incarnation=queue.incarnation,
            store=queue.store,
            cluster=queue.cluster,
        )
    )


class MatchingTable:
    """
    Rows in, queues of a subject out.

    ``version`` rises with every change of what a match can answer; a decision made under an
    older version asks again, which is a dictionary hit unless its subject was touched.
    """

    def __init__(self) -> None:
        self.version = 1
        self._rows: dict[str, tuple[str, str, QueueRef]] = {}
        self._counts: dict[tuple[str, str, QueueRef], int] = {}
        self._trees: dict[str, FilterTree[QueueRef]] = {}
        self._matches: dict[tuple[str, str], tuple[QueueRef, ...]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> Iterator[tuple[str, str, QueueRef]]:
        """(tenant, filter, queue) of every row."""
        return iter(self._rows.values())

    def apply(self, records: Sequence[Record]) -> None:
        """Take over changed records of the directory (those under ``PREFIX``)."""
        for record in records:
            old = self._rows.pop(record.key, None)
            if record.value is not None:
                row = msgspec.msgpack.decode(record.value, type=Row)
                new = (row.tenant, row.subject_filter, row.queue())
                self._rows[record.key] = new
                if new == old:
                    continue
                self._add(new)
            if old is not None:
                self._remove(old)

    def match(self, tenant: str, subject: str) -> tuple[QueueRef, ...]:
        """The queues that want *subject*, in a stable order."""
        key = (tenant, subject)
        found = self._matches.get(key)
        if found is None:
            tree = self._trees.get(tenant)
            matched = tree.match(subject) if tree else ()
            found = tuple(matched if len(matched) < 2 else sorted(matched, key=_queue_order))
            if len(self._matches) >= CACHED_SUBJECTS_MAX:
                for old in list(self._matches)[: CACHED_SUBJECTS_MAX // 2]:
                    del self._matches[old]
            self._matches[key] = found
        return found

    def _add(self, row: tuple[str, str, QueueRef]) -> None:
        count = self._counts.get(row, 0)
        self._counts[row] = count + 1
        if count == 0:
            tenant, subject_filter, queue = row
            self._trees.setdefault(tenant, FilterTree()).add(subject_filter, queue)
            self._changed(tenant, subject_filter)

    def _remove(self, row: tuple[str, str, QueueRef]) -> None:
        count = self._counts.pop(row) - 1
        if count:
            self._counts[row] = count
            return
        tenant, subject_filter, queue = row
        self._trees[tenant].remove(subject_filter, queue)
        self._changed(tenant, subject_filter)

    def _changed(self, tenant: str, subject_filter: str) -> None:
        """A literal filter touches one subject; a wildcard may touch any."""
        self.version += 1
        if has_wildcard(subject_filter):
            self._matches.clear()
        else:
            self._matches.pop((tenant, subject_filter), None)


def _queue_order(queue: QueueRef) -> tuple[str, str, int, str]:
    return (queue.kind.value, queue.name, queue.incarnation, queue.store)
