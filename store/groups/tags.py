"""
In which reads of its group an entry was found: the tags that stand beside its delivery.

A take costs what the reads it moved are, not what all reads of the group are: a session may have a
hundred thousand. What was found is remembered until the entry is done, so that one that came
back is not looked for in every queue.
"""

from collections.abc import Iterable, Sequence

from store.groups.group import Group, GroupRead
from store.groups.selection import Fresh


def note_tags(group: Group, fresh: Fresh) -> None:
    """Remember where the new entries of a take were found."""
    tags = group.tags
    tags.update(dict.fromkeys(fresh.ordinals, ()))
    for read, part in fresh.passed:
        only = (read.tag,)
        for ordinal in part:
            known = tags.get(ordinal)  # None: passed over, or put off
            if known is not None and read.tag not in known:
                tags[ordinal] = tuple(sorted((*known, read.tag))) if known else only


def tags_of_each(group: Group, ordinals: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Ordinal → tags of the reads that hold it, of those in *ordinals* at least."""
    tags = group.tags
    if missing := [ordinal for ordinal in ordinals if ordinal not in tags]:
        tags.update(tags_by_ordinal(group.reads.values(), missing))
    if not group.spec.is_auto_ack:
        return tags
    group.tags = {}  # its entries are done by now
    return tags


def tags_by_ordinal(
    reads: Iterable[GroupRead], ordinals: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    """
    Ordinal → tags of the queues that hold it, ascending; one slice per queue if it can be.

    *reads* are those that were moved, for entries that were just found there.
    """
    low, high = min(ordinals), max(ordinals) + 1
    found: dict[int, list[int]] = {ordinal: [] for ordinal in ordinals}
    for read in reads:
        queue = read.queue
        start = max(queue.offset_from(low), read.begin_at, queue.first)
        stop = queue.offset_from(high)
        if 0 <= read.stop_at < stop:
            stop = read.stop_at
        if stop - start > 4 * len(ordinals):  # returned entries, far apart
            members = [ordinal for ordinal in ordinals if read.covers(ordinal)]
        else:
            members = list(dict.fromkeys(queue.range(start, stop)))
        for ordinal in members:
            if ordinal in found:
                found[ordinal].append(read.tag)
    return {ordinal: tuple(sorted(set(tags))) for ordinal, tags in found.items()}
