"""What a consumer filters by: tags (``*`` or ``A || B``) or an SQL92 expression."""

from collections.abc import Callable
from typing import Final, NamedTuple

from protocols import sql92
from protocols.errors import Code, Refused
from store.log.messages import properties_of

EXPRESSION_CHARACTERS_MAX: Final = 4096
TAG: Final = "TAG"
SQL92: Final = "SQL92"


class Wants(NamedTuple):
    """A filter as the engine takes it."""

    tags: frozenset[str] = frozenset()
    """Empty: all."""

    matches: Callable[[bytes], bool] | None = None
    """Of a stored record."""


ALL: Final = Wants()


def parse_filter(kind: str, expression: str) -> Wants:
    """The filter of an expression. Raises Refused(ILLEGAL_FILTER_EXPRESSION)."""
    if kind in (TAG, ""):
        return Wants(parse_tags(expression))
    if kind == SQL92:
        return parse_sql(expression)
    raise Refused(
        Code.ILLEGAL_FILTER_EXPRESSION, "subscription", f"{kind[:20]} is neither TAG nor SQL92"
    )


def parse_sql(expression: str) -> Wants:
    """The filter of an SQL92 expression; empty: all."""
    if not expression:
        return ALL
    found = sql92.parse(expression)
    return Wants(matches=lambda record: found.matches(properties_of(record)))


def parse_tags(expression: str) -> frozenset[str]:
    """The tags of an expression; empty: all. Raises Refused(ILLEGAL_FILTER_EXPRESSION)."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, "subscription", "expression is too long")
    text = expression.strip()
    if text in ("", "*"):
        return frozenset()
    tags = frozenset(part.strip() for part in text.split("||"))
    if "" in tags:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, "subscription", f"'{text}' has an empty tag")
    return frozenset() if "*" in tags else tags
