"""
What each exchange type does with a message: pure functions of bindings, key and headers.

Source: AMQP 0-9-1 section 3.1.3; details as measured on RabbitMQ 3.10 (empty words, integer
widths, ``x-`` arguments).
"""

from collections.abc import Callable
from typing import Final

from protocols.amqp.fields import Table, are_equal, text_of
from protocols.subjects import FilterTree

TYPES: Final = ("direct", "fanout", "topic", "headers")
DELAYED: Final = "x-delayed-message"
"""A type that waits first and then does what its argument ``x-delayed-type`` says."""
DELAYED_TYPE: Final = "x-delayed-type"

X_MATCHES: Final[dict[str, tuple[Callable[..., bool], bool]]] = {
    "all": (all, False),
    "any": (any, False),
    "all-with-x": (all, True),
    "any-with-x": (any, True),
}
"""Value of ``x-match``: how conditions combine, and whether ``x-`` arguments are conditions."""


def matches_headers(arguments: Table, headers: Table) -> bool:
    """Binding arguments against a message's headers; void asks only that the header exists."""
    combine, has_x = X_MATCHES.get(text_of(arguments, "x-match") or "all", (all, False))
    conditions = [
        name in headers and (wanted.tag == "V" or are_equal(wanted, headers[name]))
        for name, wanted in arguments.items()
        if name != "x-match" and (has_x or not name.startswith("x-"))
    ]
    return combine(conditions)


def matches_topic(pattern: list[str], words: list[str]) -> bool:
    """Words of a binding key against words of a routing key; ``#`` anywhere."""
    reachable = {0}
    for wanted in pattern:
        if wanted == "#":
            reachable = set(range(min(reachable), len(words) + 1)) if reachable else set()
        else:
            reachable = {
                at + 1 for at in reachable if at < len(words) and wanted in ("*", words[at])
            }
    return len(words) in reachable


def words_of(key: str) -> list[str]:
    """The empty key is no word at all."""
    return key.split(".") if key else []


class TopicIndex:
    """
    Patterns of one topic exchange with their destinations.

    Those that MQTT could say too go into the filter tree (cost of a match independent of their
    number); a ``#`` inside a pattern is tried one by one.
    """

    def __init__(self) -> None:
        self._tree: FilterTree[tuple[str, str]] = FilterTree()
        self._inner: dict[tuple[str, tuple[str, str]], list[str]] = {}

    def add(self, pattern: str, destination: tuple[str, str]) -> None:
        words = words_of(pattern)
        if "#" in words[:-1]:
            self._inner[pattern, destination] = words
        else:
            self._tree.add(_tree_filter(words), destination)

    def remove(self, pattern: str, destination: tuple[str, str]) -> None:
        words = words_of(pattern)
        if "#" in words[:-1]:
            self._inner.pop((pattern, destination), None)
        else:
            self._tree.remove(_tree_filter(words), destination)

    def match(self, key: str) -> set[tuple[str, str]]:
        words = words_of(key)
        found = self._tree.match("/".join(("k", *map(_level, words))))
        for (_, destination), pattern in self._inner.items():
            if matches_topic(pattern, words):
                found.add(destination)
        return found


def _level(word: str) -> str:
    """A word as one level: no separator, never a wildcard by accident."""
    return "=" + word.replace("/", "\x00")


def _tree_filter(words: list[str]) -> str:
    """Begins with a fixed level, so that no word is first (``$`` is nothing special here)."""
    levels = ("+" if word == "*" else "#" if word == "#" else _level(word) for word in words)
    return "/".join(("k", *levels))
