"""Tag expressions: ``*`` or ``A || B``."""

from protocols.errors import Code, Refused

EXPRESSION_CHARACTERS_MAX = 4096


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
