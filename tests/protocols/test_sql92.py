"""The SQL92 filter: what passes, what is refused, what is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import Code, Refused
from protocols.sql92 import parse

PROPERTIES = {"a": "5", "b": "abc", "price": "2.5", "TAGS": "t1", "big": "3000000000"}


@pytest.mark.parametrize(
    "text",
    [
        "a = 5",
        "a > 4 AND a < 6",
        "a BETWEEN 0 AND 5",
        "a NOT BETWEEN 6 AND 7",
        "b IN ('x', 'abc')",
        "b not in ('x')",
        "missing IS NULL",
        "b IS NOT NULL",
        "b CONTAINS 'b' and b STARTSWITH 'a' and b ENDSWITH 'c'",
        "b NOT CONTAINS 'x'",
        "price >= 2.5",
        "price = 2.5e0",
        "TAGS = 't1'",
        "b <> 'x'",
        "a = 1 OR b = 'abc'",
        "NOT (a = 4)",
        "missing = 1 OR a = 5",  # NULL or TRUE
        "missing IS NULL AND (b = 'abc')",
        "big > 2147483648",
        "-5 < a",
        "a > 0.0",
        "a = 5 -- the end",
        "/* first */ a = 5",
    ],
)
def test_what_passes(text: str) -> None:
    """TRUE, and only TRUE, lets a message pass."""
    assert parse(text).matches(PROPERTIES)


@pytest.mark.parametrize(
    "text",
    [
        "a = 6",
        "missing = 1",  # NULL
        "NOT (missing = 1)",  # NULL
        "missing <> 1",  # NULL
        "missing = 1 AND a = 5",
        "missing NOT CONTAINS 'x'",
        "b CONTAINS ''",
        "b > 1",  # no number
        "b > 1 OR a = 5",  # no answer at all
        "big > 5",  # does not fit the 32 bits of the literal, as in Java
        "a",
        "missing",
        "NULL",
        "a = 5.5",
    ],
)
def test_what_does_not_pass(text: str) -> None:
    """FALSE, NULL and comparisons that cannot be made keep a message back."""
    assert not parse(text).matches(PROPERTIES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a =",
        "a = 5 b",
        "a LIKE 'x'",
        "a == 5",
        "a = NULL",
        "a > 'x'",
        "a > TRUE",
        "5",
        "'x'",
        "5 IN ('5')",
        "a IN ()",
        "a IN (5)",
        "a BETWEEN 5 AND 1",
        "a BETWEEN 'a' AND 'b'",
        "TRUE = 1",
        "a = 9223372036854775808",
        "a = 1e400",
        "a = 'open",
        "a NOT = 5",
        "(a = 5",
        "a = 5)",
        "a + 1 = 5",
        "a = 5;",
        "NOT 5",
    ],
)
def test_what_is_refused(text: str) -> None:
    """What is no expression has its own code and says where it went wrong."""
    with pytest.raises(Refused) as refused:
        parse(text)
    assert refused.value.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert refused.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "(" * 65 + "a = 5" + ")" * 65,
        "NOT " * 70 + "a",
        "a = " + "-" * 70 + "5",
        "a" + " = a" * 70,
        "a = '" + "x" * 4096 + "'",
    ],
)
def test_size_and_depth_are_bounded(text: str) -> None:
    """No expression takes more stack or time than its limits allow."""
    with pytest.raises(Refused):
        parse(text)


def test_many_alternatives_are_not_deep() -> None:
    """A long OR is one level, however many members it has."""
    text = " OR ".join(f"a = {number}" for number in range(300))
    assert not parse(text.replace("a = 5 ", "a = 4 ")).matches({"a": "400"})
    assert parse(text).matches({"a": "299"})


@given(st.text(max_size=60), st.dictionaries(st.sampled_from("ab"), st.text(max_size=10)))
def test_any_text_is_parsed_or_refused(text: str, properties: dict[str, str]) -> None:
    """Whatever a client sends, the outcome is a filter or a refusal."""
    try:
        found = parse(text)
    except Refused:
        return
    assert found.matches(properties) in (True, False)
