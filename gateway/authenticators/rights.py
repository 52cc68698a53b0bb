"""Rights that a token or a web service hands out, in the two forms that are in use."""

from typing import Any, Final

from gateway.rules import named_placeholders
from protocols.canonical import Right
from protocols.subjects import is_valid_filter

RIGHTS_MAX: Final = 200
"""Rules of one token; a token with more is refused."""

OPERATIONS: Final[dict[str, tuple[str, ...]]] = {
    "pub": ("publish",),
    "publish": ("publish",),
    "sub": ("consume",),
    "subscribe": ("consume",),
    "all": ("all",),
    "pubsub": ("publish", "consume"),
}


def rights_of(claim: Any) -> tuple[Right, ...] | None:
    """
    The rules in *claim*, in order; None: there is no claim. Raises ValueError.

    A right that cannot be read makes the whole claim worthless: a denial left out would be a grant.
    """
    if claim is None:
        return None
    if isinstance(claim, dict):
        pairs = [
            (True, word, topic)
            for word, topics in claim.items()
            for topic in (topics if isinstance(topics, list) else [topics])
        ]
    elif isinstance(claim, list):
        pairs = [_pair(item) for item in claim]
    else:
        raise ValueError("rights are a map or a list")
    if len(pairs) > RIGHTS_MAX:
        raise ValueError(f"more than {RIGHTS_MAX} rights")
    return tuple(_right(*pair) for pair in pairs)


def _pair(item: Any) -> tuple[bool, Any, Any]:
    if not isinstance(item, dict) or item.get("permission", "allow") not in ("allow", "deny"):
        raise ValueError(f"{item!r} is no right")
    return item.get("permission", "allow") == "allow", item.get("action", "all"), item.get("topic")


def _right(is_allow: bool, word: Any, topic: Any) -> Right:
    operations = OPERATIONS.get(word) if isinstance(word, str) else None
    if operations is None or not isinstance(topic, str):
        raise ValueError(f"{word!r} on {topic!r} is no right")
    pattern = named_placeholders(topic)
    if not is_valid_filter(pattern):
        raise ValueError(f"'{topic}' is no topic filter")
    return Right(is_allow, operations, pattern)


def roles_of(claim: Any) -> tuple[str, ...]:
    """A list of names, or names in one text. Raises ValueError."""
    if claim is None:
        return ()
    if isinstance(claim, str):
        return tuple(claim.replace(",", " ").split())
    if isinstance(claim, list) and all(isinstance(item, str) for item in claim):
        return tuple(claim)
    raise ValueError("roles are a list of names")
