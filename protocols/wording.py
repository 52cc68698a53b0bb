"""What is wrong with a setting, in an operator's words instead of pydantic's."""

from typing import Final

from pydantic_core import ErrorDetails

TEXTS: Final = {
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "dict_type": "should be a map",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "frozen_set_type": "should be a list",
    "int_from_float": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "list_type": "should be a list",
    "mapping_type": "should be a map",
    "int_parsing_size": "is too large",
    "missing": "is missing",
    "model_attributes_type": "should be a map",
    "model_type": "should be a map",
    "path_type": "should be a path",
    "tuple_type": "should be a list",
}
"""pydantic's types of errors that speak of Python."""

SHOWN: Final = frozenset(
    (
        "bool_parsing",
        "enum",
        "float_parsing",
        "greater_than",
        "greater_than_equal",
        "int_from_float",
        "int_parsing",
        "less_than",
        "less_than_equal",
        "literal_error",
        "multiple_of",
    )
)
"""Errors whose value is repeated: of numbers and of words to choose from, which are no secrets."""

_PREFIXES: Final = ("Value error, ", "Assertion failed, ", "Input ", "String ")


TEXT_CHARS_MAX: Final = 400
"""Of one problem: a value that stands in it may be a whole file by mistake."""


def printable(text: str) -> str:
    """*text* on one line of bounded length: control characters of a value are written out."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return shown if len(shown) <= TEXT_CHARS_MAX else f"{shown[:TEXT_CHARS_MAX]}…"


def wrong(item: ErrorDetails) -> str:
    """What stands behind the key. Values of texts are left out: a password may be among them."""
    kind, value = item["type"], item["input"]
    text = TEXTS.get(kind, item["msg"])
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    if kind == "string_type":
        text = "should be text" + (": quote it" if isinstance(value, int | float) else "")
    if kind in SHOWN and isinstance(value, str | int | float):
        text = f"'{str(value)[:80]}' {text}"
    return text
