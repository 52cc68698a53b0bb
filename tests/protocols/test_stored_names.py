"""Properties that anybody may have written."""

import pytest

from protocols.stored_names import number_of


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        (b"7", 7),
        ("", -1),
        ("-1", -1),
        ("1_0", -1),
        ("²", -1),
        ("٣", -1),
        ("9" * 5000, -1),
    ],
)
def test_a_number_is_one_that_can_be_meant(text: str | bytes, number: int) -> None:
    assert number_of(text) == number
