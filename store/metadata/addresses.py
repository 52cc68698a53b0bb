"""
Addresses by their levels: what a filter with wildcards matches, without a look at all of them.

A node is a dictionary by level; where nothing lies below an address its value stands in the
node's place, so that a million addresses cost a dictionary entry each. ``None`` is the level of
the address that ends at a node. (Matching rules: [MQTT 5, 4.7].)
"""

from collections.abc import Iterator
from typing import Union

Node = dict[str | None, Union["Node", int]]


class AddressTree:
    """Address → number."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: Node = {}

    def put(self, address: str, value: int) -> None:
        node = self._root
        *above, last = address.split("/")
        for level in above:
            below = node.get(level)
            if not isinstance(below, dict):
                below = node[level] = {} if below is None else {None: below}
            node = below
        found = node.get(last)
        if isinstance(found, dict):
            found[None] = value
        else:
            node[last] = value

    def remove(self, address: str) -> None:
        """Must be there."""
        node = self._root
        path: list[tuple[Node, str]] = []
        for level in address.split("/"):
            path.append((node, level))
            below = node[level]
            if not isinstance(below, dict):
                break
            node = below
        else:
            del node[None]
            if node:
                return
        for node, level in reversed(path):
            del node[level]
            if node:
                return

    def find(self, address_filter: str) -> Iterator[int]:
        """Values of the addresses that *address_filter* matches, in no order."""
        nodes: list[Node] = [self._root]
        levels = address_filter.split("/")
        if levels[0] in ("+", "#"):  # none that begins with "$" [MQTT-4.7.2-1]
            plain = {key: below for key, below in self._root.items() if (key or "")[:1] != "$"}
            nodes = [plain]
        *above, last = levels
        if last == "#" and above:  # a/# is a, too
            yield from self._ends(nodes, above)
        for level in above:
            nodes = [below for node in nodes for below in _step(node, level)]
        if last == "#":
            for node in nodes:
                yield from _all(node, skips_own=bool(above))
        else:
            yield from self._ends(nodes, [last])

    def _ends(self, nodes: list[Node], levels: list[str]) -> Iterator[int]:
        """Values of addresses that end where *levels* end."""
        *above, last = levels
        for level in above:
            nodes = [below for node in nodes for below in _step(node, level)]
        for node in nodes:
            keys = [last] if last != "+" else [key for key in node if key is not None]
            for key in keys:
                found = node.get(key)
                value = found.get(None) if isinstance(found, dict) else found
                if isinstance(value, int):
                    yield value


def _step(node: Node, level: str) -> Iterator[Node]:
    """Nodes one level below."""
    if level == "+":
        for key, below in node.items():
            if key is not None and isinstance(below, dict):
                yield below
    elif isinstance(found := node.get(level), dict):
        yield found


def _all(node: Node, *, skips_own: bool) -> Iterator[int]:
    """Every value below a node."""
    waiting = [node]
    while waiting:
        for key, below in waiting.pop().items():
            if isinstance(below, dict):
                waiting.append(below)
            elif key is not None or not skips_own:
                yield below
        skips_own = False
