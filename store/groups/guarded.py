"""What a guarded group is offered next: line by line, the expired taken out."""

from collections.abc import Callable, Iterable

from store.groups.group import Group
from store.groups.guard import Guard, Line
from store.groups.selection import Fresh, Passed, Selected, Wanted, scan


def scan_all(group: Group, line: Line, limit: int, count: int) -> tuple[list[int], list[Passed]]:
    """``scan``, over as many pages of the queues as it takes."""
    chosen: list[int] = []
    passed: list[Passed] = []
    while len(chosen) < count:
        found, parts = scan(group, line, limit, count - len(chosen))
        if not found:
            break
        chosen += found
        passed += parts
    return chosen, passed


def scans_of(passed: Iterable[Passed]) -> list[tuple[int, int]]:
    """(serial of a read, where it goes on), each once."""
    return [(read.serial, read.at) for read in dict.fromkeys([read for read, _ in passed])]


def select_guarded(
    group: Group, guard: Guard, wanted: Wanted, expire: Callable[[Guard, Line, int], int]
) -> Selected:
    """
    As ``select_returned`` and ``select_fresh`` do, line by line.

    An expired entry behind a good one ends the selection: it is dealt with when it has come to
    the head, before the next take.
    """
    back: list[int] = []
    fresh = Fresh()
    order: list[int] = []
    for line in guard.lines():
        room = wanted.count_max - len(back) - len(fresh.ordinals)
        if room <= 0:
            break
        if guard.can_expire:
            expire(guard, line, wanted.wall_ms)
        returned = guard.returned_in(line)[:room]
        offered = guard.fresh_in(line, wanted.limit, room - len(returned))
        both = [*returned, *offered]
        count = len(both)
        if guard.can_expire:
            gone = [guard.is_expired(entry, wanted.wall_ms) for entry in both]
            count = gone.index(True) if True in gone else count
        order += both[:count]
        back += returned[:count]
        if count > len(returned):
            chosen, passed = scan_all(group, line, wanted.limit, count - len(returned))
            fresh.ordinals += chosen
            fresh.passed += passed
        if count < len(both):
            fresh.is_cut = True
            break
    return Selected(back, fresh, order if guard.levels else None)
