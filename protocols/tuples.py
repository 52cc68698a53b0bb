"""Named tuples on hot paths."""

from typing import Any, Final

new_tuple: Final[Any] = tuple.__new__
"""Makes a named tuple without the Python function that its class has for it; nothing is checked."""
