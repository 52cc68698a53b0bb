"""Our SQL92 filter against Apache's Java evaluator, over generated expressions."""

import base64
import random

import pytest

from protocols.errors import Refused
from protocols.sql92 import parse
from tests.support import java_tools

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

SEED = 20_261_121
EXPRESSION_COUNT = 3000
MESSAGES_PER_EXPRESSION = 4
NAMES = ("a", "b", "c", "TAGS", "a$1", "_x")
TEXTS = ("", "x", "abc", "it''s", "5", "TRUE", "10", "2.5", "é", "-3", "日本")
NUMBERS = (
    *("0", "1", "5", "10", "2147483647", "2147483648", "9223372036854775807"),
    *("2.5", "1e3", ".5", "5.", "3l", "1E400", "9223372036854775808", "1e-3"),
)
VALUES = (
    *("", "x", "abc", "it's", "5", "10", "2.5", "-3", "+5", " 5", "5 ", "1e3", "true", "TRUE"),
    *("false", "NaN", "Infinity", "-0.0", "0", "2147483648", "9223372036854775808", "0x1p3"),
    *("1d", "5f", "é", "日本", "1_000", "5.", ".", "x5"),
)
SIGNS = ("=", "<>", ">", ">=", "<", "<=")
SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH", "contains")


class Maker:
    """Expressions as users write them, and some that cannot be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self) -> str:
        pick = self.random.random()
        if pick < 0.5:
            return self.random.choice(NAMES)
        if pick < 0.75:
            sign = self.random.choice(("", "", "", "-", "+", "- "))
            return sign + self.random.choice(NUMBERS)
        if pick < 0.93:
            return f"'{self.random.choice(TEXTS)}'"
        return self.random.choice(("TRUE", "false", "NULL"))

    def comparison(self, depth: int) -> str:
        left = self.value() if self.random.random() < 0.9 else f"({self.expression(depth - 1)})"
        no = self.random.choice(("", "", "NOT "))
        match self.random.randrange(6):
            case 0 | 1:
                return f"{left} {self.random.choice(SIGNS)} {self.value()}"
            case 2:
                text = self.random.choice(TEXTS)
                return f"{left} {no}{self.random.choice(SEARCHES)} '{text}'"
            case 3:
                return f"{left} {no}BETWEEN {self.value()} AND {self.value()}"
            case 4:
                count = self.random.choice((1, 2, 6))
                members = ", ".join(f"'{self.random.choice(TEXTS)}'" for _ in range(count))
                return f"{left} {no}IN ({members})"
            case _:
                return f"{left} IS {no}NULL"

    def expression(self, depth: int) -> str:
        if depth <= 0:
            return self.comparison(0)
        match self.random.randrange(7):
            case 0 | 1:
                return f"{self.expression(depth - 1)} AND {self.expression(depth - 1)}"
            case 2 | 3:
                return f"{self.expression(depth - 1)} or {self.expression(depth - 1)}"
            case 4:
                return f"NOT ({self.expression(depth - 1)})"
            case 5:
                return f"({self.expression(depth - 1)})"
            case _:
                return self.comparison(depth)

    def properties(self) -> dict[str, str]:
        names = [name for name in NAMES if self.random.random() < 0.7]
        return {name: self.random.choice(VALUES) for name in names}


def judge(text: str, properties: dict[str, str]) -> str:
    try:
        return "T" if parse(text).matches(properties) else "F"
    except Refused:
        return "E"


def stored(properties: dict[str, str]) -> str:
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_generated_expressions_mean_the_same() -> None:
    """Parsed or refused alike, and every message passes or not as in Apache's broker."""
    maker = Maker(SEED)
    cases = [
        (text, maker.properties())
        for text in (maker.expression(maker.random.randrange(4)) for _ in range(EXPRESSION_COUNT))
        for _ in range(MESSAGES_PER_EXPRESSION)
    ]
    lines = [f"{encode(text)}\t{encode(stored(properties))}" for text, properties in cases]
    theirs = java_tools.run("FilterOracle", lines=lines)
    assert len(theirs) == len(cases)
    ours = [judge(text, properties) for text, properties in cases]
    differing = [
        (text, properties, our, their)
        for (text, properties), our, their in zip(cases, ours, theirs, strict=True)
        if our != their
    ]
    assert differing == [], f"seed {SEED}"
    assert min(theirs.count(answer) for answer in "TFE") > 200  # the cases are no mere noise
