"""
Subjects and subject filters: the one matching rule of all protocols (MQTT 5, section 4.7).

Levels are split by ``/``; ``+`` is exactly one level, ``#`` the rest and the parent; a filter
that begins with a wildcard does not match a subject that begins with ``$`` [MQTT-4.7.2-1].
"""

from typing import Generic, TypeVar

V = TypeVar("V")


def is_valid_filter(subject_filter: str) -> bool:
    """``#`` only as the whole last level, ``+`` only as a whole level, no NUL, not empty."""
    if not subject_filter or "\x00" in subject_filter:
        return False
    levels = subject_filter.split("/")
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        return False
    return all(level == "+" or "+" not in level for level in levels)


def has_wildcard(subject_filter: str) -> bool:
    return "+" in subject_filter or "#" in subject_filter


def matches(subject_filter: str, subject: str) -> bool:
    """One filter against one subject; for many filters use ``FilterTree``."""
    if subject[:1] == "$" and subject_filter[:1] in ("+", "#"):
        return False
    wanted, levels = subject_filter.split("/"), subject.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or (level != "+" and level != levels[index]):
            return False
    return len(wanted) == len(levels)


class _Node(Generic[V]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] = {}
        self.values: set[V] = set()


class FilterTree(Generic[V]):
    """
    Filters with values, matched against subjects: literals in one hash table, wildcards in a
    trie, so that the cost of a match does not grow with the number of literal filters.
    """

    def __init__(self) -> None:
        self._literal: dict[str, set[V]] = {}
        self._root: _Node[V] = _Node()
        self._wildcard_count = 0

    def add(self, subject_filter: str, value: V) -> None:
        if not has_wildcard(subject_filter):
            self._literal.setdefault(subject_filter, set()).add(value)
            return
        node = self._root
        for level in subject_filter.split("/"):
            node = node.children.setdefault(level, _Node())
        if value not in node.values:
            node.values.add(value)
            self._wildcard_count += 1

    def remove(self, subject_filter: str, value: V) -> None:
        """Forget it; nothing happens if it is not there."""
        if not has_wildcard(subject_filter):
            values = self._literal.get(subject_filter)
            if values is not None:
                values.discard(value)
                if not values:
                    del self._literal[subject_filter]
            return
        path: list[tuple[_Node[V], str]] = []
        node = self._root
        for level in subject_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                return
            path.append((node, level))
            node = child
        if value in node.values:
            node.values.discard(value)
            self._wildcard_count -= 1
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.values or child.children:
                break
            del parent.children[level]

    def match(self, subject: str) -> set[V]:
        """Every value whose filter matches *subject*."""
        literal = self._literal.get(subject)
        found = [literal] if literal else []
        if self._wildcard_count:
            self._walk(subject, found)
        if len(found) == 1:  # a copy hashes nothing anew
            return found[0].copy()
        return set().union(*found)

    def _walk(self, subject: str, found: list[set[V]]) -> None:
        """Add the values of every wildcard filter that matches."""
        nodes, may_be_wild = [self._root], subject[:1] != "$"
        for level in subject.split("/"):
            is_name = level not in ("+", "#")  # no subject has them, but who asks may be wrong
            following: list[_Node[V]] = []
            for node in nodes:
                children = node.children
                if is_name and (child := children.get(level)) is not None:
                    following.append(child)
                if may_be_wild:
                    if (child := children.get("+")) is not None:
                        following.append(child)
                    if (rest := children.get("#")) is not None and rest.values:
                        found.append(rest.values)
            if not following:
                return
            nodes, may_be_wild = following, True
        for node in nodes:
            if node.values:
                found.append(node.values)
            if (rest := node.children.get("#")) is not None and rest.values:
                found.append(rest.values)
