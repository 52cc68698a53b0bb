"""What was granted, as those who asked are told."""

from collections.abc import Sequence
from typing import Final

from protocols.tuples import new_tuple
from store.answers import Granted, GrantedRun
from store.groups.group import Group
from store.groups.tags import tags_of_each
from store.index.entries import Entries

GRANTED_FLAGS: Final = 0x7
"""QoS and retain bits."""


def granted(
    entries: Entries,
    group: Group,
    positions: Sequence[int],
    ordinals: Sequence[int],
    grant: int,
    *,
    ascend: bool = True,
) -> Sequence[Granted]:
    """Of these entries; a run where they *ascend* and differ in nothing but their place."""
    flags, targets = entries.flags_of_each(ordinals), entries.targets
    single = (next(iter(group.reads.values())).tag,) if len(group.reads) == 1 else None
    found = {} if single is not None else tags_of_each(group, ordinals)
    is_plain = (
        (not group.attempts or group.attempts.keys().isdisjoint(positions))
        and (not group.marks or group.marks.keys().isdisjoint(positions))
        and (not targets or targets.keys().isdisjoint(positions))
    )
    if is_plain and flags.count(flags[0]) == len(flags):
        tags = single or found[ordinals[0]]
        if ascend and (single or all([found[ordinal] == tags for ordinal in ordinals])):
            return GrantedRun(positions, grant, flags[0] & GRANTED_FLAGS, tags)
    if is_plain and single is not None:
        return [
            new_tuple(Granted, (at, grant, 1, bits & GRANTED_FLAGS, at, single, 0, 0))
            for at, bits in zip(positions, flags, strict=True)
        ]
    out: list[Granted] = []
    for at, ordinal, bits in zip(positions, ordinals, flags, strict=True):
        packet_id, stage = group.marks.get(at, (0, 0))
        bits &= GRANTED_FLAGS
        tags = single or found.get(ordinal, ())
        record = targets.get(ordinal, at)
        attempt = group.attempt_of(at)
        out.append(Granted(at, grant, attempt, bits, record, tags, packet_id, stage))
    return out
