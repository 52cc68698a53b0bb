"""SASLprep (RFC 4013): names and passwords that look alike are alike, byte for byte."""

import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final

PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (  # RFC 4013, 2.3
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str, *, is_stored: bool = False) -> str:
    """
    *text* as it is compared. Raises ValueError for what no name or password may hold.

    Args:
        is_stored: it is to be kept, so characters that Unicode 3.2 does not assign are refused
            (RFC 3454, 7): what a later version makes of them is not known.
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        [
            " " if stringprep.in_table_c12(one) else one
            for one in text
            if not stringprep.in_table_b1(one)
        ]
    )
    found = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for one in found:
        if any(is_in(one) for is_in in PROHIBITED):
            raise ValueError(f"U+{ord(one):04X} may not be in a name or password")
        if is_stored and stringprep.in_table_a1(one):
            raise ValueError(f"U+{ord(one):04X} is not assigned in Unicode 3.2")
    _check_direction(found)
    return found


def _check_direction(text: str) -> None:
    """RFC 3454, 6: right-to-left text is so from end to end."""
    if not any(stringprep.in_table_d1(one) for one in text):
        return
    if any(stringprep.in_table_d2(one) for one in text):
        raise ValueError("left-to-right characters in right-to-left text")
    if not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
        raise ValueError("right-to-left text begins and ends with such characters")
