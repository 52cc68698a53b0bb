"""
What an expression means for a message: nodes as functions, values with Java's types.

A value is a text (properties and string literals), a number, True or False, or None for NULL.
``Long`` marks what Java holds in 64 bits: it decides how a property's text is read when it is
compared. A comparison that cannot be made (text that is no number) raises ``Incomparable``: the
message does not match, whatever the rest of the expression says, as in Apache's broker.

Source: ``ComparisonExpression``, ``LogicExpression``, ``UnaryExpression``.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

T = TypeVar("T", bytes, bool, int, tuple[bool, float, bool])
Properties = Mapping[str, str]
Value = str | bool | int | float | None
Node = Callable[[Properties], Value]


class Long(int):
    """An integer that Java holds as ``Long``; plain ints are its ``Integer``."""


class Incomparable(Exception):
    """The two sides cannot be compared: no answer for the whole message."""


class Filter:
    """A parsed expression."""

    __slots__ = ("_node", "text")

    def __init__(self, text: str, node: Node) -> None:
        self.text = text
        self._node = node

    def matches(self, properties: Properties) -> bool:
        """Whether a message with *properties* passes: only TRUE does, NULL does not."""
        try:
            return self._node(properties) is True
        except Incomparable:
            return False

    def __repr__(self) -> str:
        return f"<sql92 {self.text}>"


# ── text to numbers, as Java reads it ───────────────────────────────────────────────────

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,24}")
_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEX: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)
_NUMBER_CHARACTERS_MAX: Final = 400
_JAVA_BLANKS: Final = "".join(map(chr, range(33)))
"""``String.trim`` takes these off before ``Double.valueOf`` reads."""


def _to_integer(text: str, bits: int) -> int:
    """``Integer.valueOf`` and ``Long.valueOf``."""
    if _INTEGER.fullmatch(text) is None:
        raise Incomparable(text[:40])
    number = int(text)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise Incomparable(text)
    return number


def to_double(text: str) -> float:
    """``Double.valueOf``. Raises Incomparable."""
    text = text.strip(_JAVA_BLANKS)
    if len(text) > _NUMBER_CHARACTERS_MAX:
        raise Incomparable(text[:40])
    if _DECIMAL.fullmatch(text):
        return float(text if text[-1] in "Ny" else text.rstrip("fFdD"))
    if _HEX.fullmatch(text):
        try:
            return float.fromhex(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    raise Incomparable(text[:40])


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# ── comparison ──────────────────────────────────────────────────────────────────────────


def compare(left: Value, right: Value) -> int:
    """
    Negative, 0 or positive; of two types that have nothing in common: negative.

    Raises Incomparable. Source: ``ComparisonExpression.__compare``.
    """
    if isinstance(left, str) and isinstance(right, str):
        return _order(left.encode("utf-16-be"), right.encode("utf-16-be"))
    if isinstance(left, bool):
        if isinstance(right, str):
            raise Incomparable(right[:40])  # Java casts the wrong side
        return _order(left, right) if isinstance(right, bool) else -1
    if isinstance(left, str):
        if isinstance(right, bool):
            return _order(left.lower() == "true", right)
        left = _as_number(left, right)
    elif isinstance(right, str):
        right = _as_number(right, left)
    elif isinstance(right, bool):
        return -1
    return _order_numbers(left, right)


def _as_number(text: str, like: Value) -> int | float:
    """*text* as a number of the type that it is compared with."""
    if isinstance(like, float):
        return to_double(text)
    return _to_integer(text, 64 if isinstance(like, Long) else 32)


def _order_numbers(left: Value, right: Value) -> int:
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if isinstance(left, float) or isinstance(right, float):
        return _order(_double_rank(float(left)), _double_rank(float(right)))
    return _order(left, right)


def _double_rank(value: float) -> tuple[bool, float, bool]:
    """``Double.compareTo``: NaN is above all and like itself, -0.0 is below 0.0."""
    if math.isnan(value):
        return True, 0.0, False
    return False, value, math.copysign(1.0, value) > 0


def _order(left: T, right: T) -> int:
    return (left > right) - (left < right)


# ── nodes ───────────────────────────────────────────────────────────────────────────────


def constant(value: Value) -> Node:
    return lambda properties: value


def property_(name: str) -> Node:
    return lambda properties: properties.get(name)


def boolean_cast(node: Node) -> Node:
    """A bare property in place of a condition: it is text, so never TRUE."""
    return lambda properties: None if node(properties) is None else False


def negate(node: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        value = node(properties)
        if isinstance(value, float):
            return -value
        if not _is_number(value):
            return None
        assert isinstance(value, int)
        return Long(-value) if isinstance(value, Long) else -value

    return evaluate


def not_(node: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        value = node(properties)
        return None if value is None else value is not True

    return evaluate


def and_(nodes: Sequence[Node]) -> Node:
    """FALSE as soon as one is; NULL if one is and none is FALSE."""

    def evaluate(properties: Properties) -> Value:
        found: Value = True
        for node in nodes:
            value = node(properties)
            if value is False:
                return False
            if value is None:
                found = None
        return found

    return evaluate


def or_(nodes: Sequence[Node]) -> Node:
    """TRUE as soon as one is; NULL if one is and none is TRUE."""

    def evaluate(properties: Properties) -> Value:
        found: Value = False
        for node in nodes:
            value = node(properties)
            if value is True:
                return True
            if value is None:
                found = None
        return found

    return evaluate


def equal(left: Node, right: Node) -> Node:
    """NULL on the left alone gives NULL, on the right alone FALSE, on both TRUE."""

    def evaluate(properties: Properties) -> Value:
        a, b = left(properties), right(properties)
        if a is None or b is None:
            return None if a is None and b is not None else a is b
        if type(a) is type(b) and a == b and not isinstance(a, float):
            return True
        return compare(a, b) == 0

    return evaluate


RANKS: Final[Mapping[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def rank(left: Node, sign: str, right: Node) -> Node:
    """``<`` and its kind: numbers only; two texts are read as numbers."""
    is_so = RANKS[sign]

    def evaluate(properties: Properties) -> Value:
        a = left(properties)
        if a is None:
            return None
        b = right(properties)
        if b is None:
            return None
        if isinstance(a, str) and isinstance(b, str):
            a, b = to_double(a), to_double(b)
        return is_so(compare(a, b))

    return evaluate


def in_(name: str, members: frozenset[str], *, is_not: bool) -> Node:
    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in members) is not is_not

    return evaluate


SEARCHES: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": lambda text, part: text.startswith(part),
    "ENDSWITH": lambda text, part: text.endswith(part),
}


def search(node: Node, word: str, part: str, *, is_not: bool) -> Node:
    """Part of a text. What is no text, and an empty part, give FALSE both ways."""
    has = SEARCHES[word]

    def evaluate(properties: Properties) -> Value:
        value = node(properties)
        if not part or not isinstance(value, str):
            return False
        return has(value, part) is not is_not

    return evaluate
