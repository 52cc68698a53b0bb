"""
Tokens → a filter, by recursive descent.

::

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
                       | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" string { "," string } ")" }
    unary      = ("+" | "-" | NOT) unary | literal | name | "(" or ")"

Source: ``SelectorParser.jj`` of Apache RocketMQ 5.4; note that NOT binds closer than ``=``.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from protocols.sql92 import evaluation
from protocols.sql92.evaluation import Filter, Incomparable, Long, Node, Value
from protocols.sql92.tokens import Kind, Token, illegal, tokens_of

CHARACTERS_MAX: Final = 4096
"""Longest expression."""

DEPTH_MAX: Final = 64
"""Deepest nesting, of brackets, signs and chained comparisons alike."""

CACHED_MAX: Final = 512
"""Expressions whose filters are remembered."""

_I32: Final = 1 << 31
_I64: Final = 1 << 63


class Part(NamedTuple):
    """A piece of the expression while it is put together."""

    node: Node
    depth: int
    is_boolean: bool = False
    name: str = ""
    """Of a bare property."""

    is_constant: bool = False
    value: Value = None
    """Of a constant."""


@lru_cache(maxsize=CACHED_MAX)
def parse(text: str) -> Filter:
    """The filter of an expression. Raises Refused(ILLEGAL_FILTER_EXPRESSION)."""
    if len(text) > CHARACTERS_MAX:
        raise illegal(f"longer than {CHARACTERS_MAX} characters")
    parser = _Parser(tokens_of(text))
    part = _as_boolean(parser.parse_or(0))
    parser.end()
    return Filter(text, part.node)


class _Parser:
    """One expression, read once from left to right."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._index = 0

    # ── tokens ──────────────────────────────────────────────────────────────────────────

    @property
    def _next(self) -> Token:
        return self._tokens[self._index]

    def _is(self, text: str, ahead: int = 0) -> bool:
        index = min(self._index + ahead, len(self._tokens) - 1)
        token = self._tokens[index]
        return token.kind in (Kind.KEYWORD, Kind.SIGN) and token.text == text

    def _takes(self, text: str) -> bool:
        if self._is(text):
            self._index += 1
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._takes(text):
            raise self._unexpected(f"'{text}'")

    def _string(self) -> str:
        token = self._next
        if token.kind is not Kind.STRING:
            raise self._unexpected("a text in quotes")
        self._index += 1
        return token.text

    def _unexpected(self, wanted: str) -> Exception:
        token = self._next
        found = f"'{token.text[:20]}'" if token.kind is not Kind.END else "the end"
        return illegal(f"{wanted} expected at {token.at}, found {found}")

    def end(self) -> None:
        if self._next.kind is not Kind.END:
            raise self._unexpected("the end")

    # ── grammar ─────────────────────────────────────────────────────────────────────────

    def parse_or(self, depth: int) -> Part:
        if depth > DEPTH_MAX:
            raise illegal(f"nested deeper than {DEPTH_MAX}")
        parts = [self._and(depth)]
        while self._takes("OR"):
            parts.append(self._and(depth))
        if len(parts) == 1:
            return parts[0]
        return _boolean(evaluation.or_([_as_boolean(part).node for part in parts]), *parts)

    def _and(self, depth: int) -> Part:
        parts = [self._equality(depth)]
        while self._takes("AND"):
            parts.append(self._equality(depth))
        if len(parts) == 1:
            return parts[0]
        return _boolean(evaluation.and_([_as_boolean(part).node for part in parts]), *parts)

    def _equality(self, depth: int) -> Part:
        left = self._comparison(depth)
        while True:
            if self._takes("="):
                left = _equal(left, self._comparison(depth))
            elif self._takes("<>"):
                same = _equal(left, self._comparison(depth))
                left = _boolean(evaluation.not_(same.node), same)
            elif self._takes("IS"):
                is_not = self._takes("NOT")
                self._need("NULL")
                node = evaluation.equal(left.node, evaluation.constant(None))
                left = _boolean(evaluation.not_(node) if is_not else node, left)
            else:
                return left

    def _comparison(self, depth: int) -> Part:
        left = self._unary(depth)
        while True:
            sign = self._next.text
            if self._next.kind is Kind.SIGN and sign in evaluation.RANKS:
                self._index += 1
                left = _rank(left, sign, self._unary(depth))
                continue
            is_not = self._is("NOT")
            word = self._tokens[self._index + is_not]
            if word.kind is not Kind.KEYWORD or word.text not in _COMPARISONS:
                if is_not:
                    raise self._unexpected("a comparison")
                return left
            self._index += 1 + is_not
            left = self._word(left, word.text, is_not, depth)

    def _word(self, left: Part, word: str, is_not: bool, depth: int) -> Part:
        if word == "BETWEEN":
            low = self._unary(depth)
            self._need("AND")
            return _between(left, low, self._unary(depth), is_not=is_not)
        if word == "IN":
            if not left.name:
                raise illegal("only a property can be IN a list")
            self._need("(")
            members = [self._string()]
            while self._takes(","):
                members.append(self._string())
            self._need(")")
            return _boolean(evaluation.in_(left.name, frozenset(members), is_not=is_not), left)
        node = evaluation.search(left.node, word, self._string(), is_not=is_not)
        return _boolean(node, left)

    def _unary(self, depth: int) -> Part:
        if depth > DEPTH_MAX:
            raise illegal(f"nested deeper than {DEPTH_MAX}")
        if self._takes("+"):
            return self._unary(depth + 1)
        if self._takes("-"):
            part = self._unary(depth + 1)
            return _checked(Part(evaluation.negate(part.node), part.depth + 1))
        if self._takes("NOT"):
            part = _as_boolean(self._unary(depth + 1))
            return _boolean(evaluation.not_(part.node), part)
        if self._takes("("):
            part = self.parse_or(depth + 1)
            self._need(")")
            return part
        return self._literal()

    def _literal(self) -> Part:
        kind, text, _ = self._next
        if kind is Kind.STRING:
            part = _constant(text)
        elif kind is Kind.INTEGER:
            part = _constant(_integer(text))
        elif kind is Kind.FLOAT:
            part = _constant(_float(text))
        elif kind is Kind.NAME:
            part = Part(evaluation.property_(text), 1, name=text)
        elif kind is Kind.KEYWORD and text in _WORDS:
            part = _constant(_WORDS[text])._replace(is_boolean=True)
        else:
            raise self._unexpected("a value")
        self._index += 1
        return part


_COMPARISONS: Final = frozenset((*evaluation.SEARCHES, "BETWEEN", "IN"))
_WORDS: Final[dict[str, Value]] = {"TRUE": True, "FALSE": False, "NULL": None}


# ── what may be combined ────────────────────────────────────────────────────────────────


def _boolean(node: Node, *parts: Part) -> Part:
    return _checked(Part(node, 1 + max([part.depth for part in parts]), is_boolean=True))


def _checked(part: Part) -> Part:
    if part.depth > DEPTH_MAX:
        raise illegal(f"nested deeper than {DEPTH_MAX}")
    return part


def _constant(value: Value) -> Part:
    return Part(evaluation.constant(value), 1, is_constant=True, value=value)


def _integer(text: str) -> int:
    digits = text.rstrip("lL")
    number = int(digits) if len(digits) < 20 else _I64
    if number >= _I64:
        raise illegal(f"{digits[:25]} does not fit 64 bits")
    return number if number < _I32 else Long(number)


def _float(text: str) -> float:
    number = float(text)
    if number == float("inf"):
        raise illegal(f"{text[:25]} is no double")
    return number


def _as_boolean(part: Part) -> Part:
    """As a condition. Raises Refused for numbers and texts."""
    if part.is_boolean:
        return part
    if part.name:
        return _boolean(evaluation.boolean_cast(part.node), part)
    raise illegal("a number or text is no condition")


def _equal(left: Part, right: Part) -> Part:
    for part in (left, right):
        if part.is_constant and part.value is None:
            raise illegal("NULL is compared with IS NULL")
    both = left.is_constant and right.is_constant
    if both and left.is_boolean and not right.is_boolean:
        raise illegal("TRUE and FALSE cannot be compared with a number or text")
    return _boolean(evaluation.equal(left.node, right.node), left, right)


def _rank(left: Part, sign: str, right: Part) -> Part:
    for part in (left, right):
        if part.is_boolean or (part.is_constant and isinstance(part.value, str)):
            raise illegal(f"'{sign}' compares numbers and properties only")
    return _boolean(evaluation.rank(left.node, sign, right.node), left, right)


def _between(value: Part, low: Part, high: Part, *, is_not: bool) -> Part:
    if is_not:
        parts = (_rank(value, "<", low), _rank(value, ">", high))
        return _boolean(evaluation.or_([part.node for part in parts]), *parts)
    if low.is_constant and high.is_constant:
        _check_bounds(low.value, high.value)
    parts = (_rank(value, ">=", low), _rank(value, "<=", high))
    return _boolean(evaluation.and_([part.node for part in parts]), *parts)


def _check_bounds(low: Value, high: Value) -> None:
    try:
        is_wrong = low is None or high is None or evaluation.compare(high, low) < 0
    except Incomparable:
        is_wrong = True
    if is_wrong:
        raise illegal("BETWEEN needs a lower and an upper bound")
