"""Text of an expression → tokens."""

import re
from enum import Enum
from typing import Final, NamedTuple

from protocols.errors import Code, Refused


class Kind(Enum):
    """What a token is; keywords and signs are told apart by their text."""

    KEYWORD = "keyword"
    SIGN = "sign"
    NAME = "name"
    INTEGER = "integer"
    FLOAT = "float"
    STRING = "string"
    END = "end"


class Token(NamedTuple):
    kind: Kind
    text: str
    """Keywords in upper case; strings without quotes."""

    at: int
    """Index in the expression, for error texts."""


KEYWORDS: Final = frozenset(
    (
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    )
)

_TOKEN: Final = re.compile(
    r"""
    (?P<blank>[ \t\n\r\f]+ | --[^\r\n]*(?:\r\n|\r|\n|\Z) | /\*.*?\*/)
  | (?P<float>(?:[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?
              | \.[0-9]+(?:[eE][+-]?[0-9]+)?
              | [0-9]+[eE][+-]?[0-9]+))
  | (?P<integer>(?:0|[1-9][0-9]*[lL]?))
  | (?P<string>'(?:''|[^'])*')
  | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
  | (?P<sign><>|<=|>=|[=<>(),+-])
    """,
    re.VERBOSE | re.DOTALL,
)
_KINDS: Final = {
    "float": Kind.FLOAT,
    "integer": Kind.INTEGER,
    "name": Kind.NAME,
    "sign": Kind.SIGN,
}


def tokens_of(text: str) -> list[Token]:
    """All tokens, an END behind them. Raises Refused(ILLEGAL_FILTER_EXPRESSION)."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise illegal(f"'{text[at : at + 10]}' at {at} is no token")
        group, word = match.lastgroup or "", match.group()
        if group == "string":
            tokens.append(Token(Kind.STRING, word[1:-1].replace("''", "'"), at))
        elif group == "name" and word.upper() in KEYWORDS:
            tokens.append(Token(Kind.KEYWORD, word.upper(), at))
        elif group != "blank":
            tokens.append(Token(_KINDS[group], word, at))
        at = match.end()
    tokens.append(Token(Kind.END, "", at))
    return tokens


def illegal(hint: str) -> Refused:
    return Refused(Code.ILLEGAL_FILTER_EXPRESSION, "SQL92 expression", hint)
