"""
Between routing keys and subjects: ``amq.topic`` and MQTT see the same addresses.

``.`` and ``/`` swap, and ``*`` is ``+``, as in RabbitMQ's MQTT plug-in; what would be a wildcard
inside a subject's level is percent-encoded. AMQP's ``#`` may stand anywhere and MQTT's only at
the end: a pattern with an inner one becomes several filters.
"""

from itertools import product
from typing import Final

AMQ_TOPIC: Final = "amq.topic"

INNER_WORDS_MAX: Final = 8
"""Words that a ``#`` inside a pattern stands for, at most: each is a filter of its own."""

FILTERS_MAX: Final = 128
"""Filters that one binding may become."""

_SWAP: Final = str.maketrans("./", "/.")
_ESCAPES: Final = {"+": "%2B", "#": "%23", "\x00": "%00"}


def _escaped(word: str) -> str:
    for char, code in _ESCAPES.items():
        word = word.replace(char, code)
    return word.replace("*", "%2B")


def subject_of(routing_key: str) -> str:
    """The subject that a message with this key is published to."""
    return _escaped(routing_key.translate(_SWAP))


def routing_key_of(subject: str) -> str:
    """The key that an AMQP consumer sees for a subject."""
    return subject.translate(_SWAP).replace("%2B", "*").replace("%23", "#")


def simplified(pattern: str) -> list[str]:
    """Words, with runs of ``#`` as one and ``*`` before ``#`` (they commute)."""
    words: list[str] = []
    for word in pattern.split("."):
        while word == "*" and words and words[-1] == "#":
            words.pop()
            words += ["*", "#"]
            break
        else:
            if not (word == "#" and words and words[-1] == "#"):
                words.append(word)
    return words


def filters_of(pattern: str) -> list[str]:
    """
    The MQTT filters that together match what the AMQP pattern matches.

    Exact, but for an inner ``#`` that would have to stand for more than ``INNER_WORDS_MAX``
    words. An empty list: the pattern needs more than ``FILTERS_MAX`` filters.
    """
    if not pattern:
        return []  # the empty key has no subject; see ``topology`` for who gets it
    words = simplified(pattern)
    inner = [index for index, word in enumerate(words[:-1]) if word == "#"]
    if (INNER_WORDS_MAX + 1) ** len(inner) > FILTERS_MAX:
        return []
    found: list[str] = []
    for counts in product(range(INNER_WORDS_MAX + 1), repeat=len(inner)):
        lengths = dict(zip(inner, counts, strict=True))
        levels: list[str] = []
        for index, word in enumerate(words):
            if index in lengths:
                levels += ["+"] * lengths[index]
            elif word in ("*", "#"):
                levels.append("+" if word == "*" else "#")
            else:
                levels.append(_escaped(word.translate(_SWAP)))
        found.append("/".join(levels))
    return list(dict.fromkeys(item for item in found if item))
