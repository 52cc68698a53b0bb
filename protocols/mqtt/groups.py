"""What a session reads with: its queues, its groups, its rows of the matching table."""

from collections.abc import Sequence

from protocols.canonical import QueueKind, QueueRef
from protocols.directory import Subscription
from protocols.groups import GroupSpec, Read, ShareStrategy
from protocols.mqtt.records import SessionRecord
from protocols.mqtt.session import SHARE_TAG, Subscribed
from protocols.mqtt.topics import is_local


def filter_queue(tenant: str, subject_filter: str) -> QueueRef:
    return QueueRef(QueueKind.FILTER, subject_filter, tenant)


def group_name(record: SessionRecord) -> str:
    """A kept session's group lives under its client id; one that ends is used once."""
    if record.is_kept:
        return f"mqtt/{record.tenant}/{record.client_id}"
    return f"mqtt-clean/{record.tenant}/{record.client_id}/{record.owner_epoch}"


def session_group(
    record: SessionRecord, subscriptions: Sequence[Subscribed], *, skips_qos0: bool
) -> GroupSpec:
    """The one group that a session reads all its filter queues with."""
    is_kept = record.is_kept
    reads = tuple(
        Read(filter_queue(record.tenant, item.subject_filter), tag=item.tag)
        for item in subscriptions
        if is_read(item)
    )
    return GroupSpec(
        name=group_name(record),
        reads=reads,
        incarnation=record.incarnation,
        owner_epoch=record.owner_epoch if is_kept else 0,
        is_volatile=not is_kept,
        is_auto_ack=not is_kept,
        is_inherited=is_kept,
        skips_qos0_on_resume=is_kept and skips_qos0,
    )


def is_read(item: Subscribed) -> bool:
    """The session's own group reads its queue."""
    return not item.share and not is_local(item.subject_filter)


def share_group(
    tenant: str,
    share: str,
    subject_filter: str,
    *,
    strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN,
    member: str = "",
) -> GroupSpec:
    """The group that the members of a shared subscription compete in."""
    return GroupSpec(
        name=f"share/{tenant}/{share}/{subject_filter}",
        reads=(Read(filter_queue(tenant, subject_filter), tag=SHARE_TAG),),
        strategy=strategy,
        member=member,
    )


def rows(record: SessionRecord, filters: Sequence[str]) -> list[Subscription]:
    """Rows of the matching table for these subject filters."""
    owner = group_name(record)
    return [
        Subscription(subject_filter, filter_queue(record.tenant, subject_filter), owner)
        for subject_filter in dict.fromkeys(filters)
        if not is_local(subject_filter)
    ]
