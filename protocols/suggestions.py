"""What somebody who wrote a wrong word may have meant."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing."""
    match = difflib.get_close_matches(word, [str(item) for item in known], n=1, cutoff=0.5)
    return f" (did you mean '{match[0]}'?)" if match else ""
