"""
Filter dialects of the CloudEvents Subscriptions API: exact, prefix, suffix, all, any, not.

A filter list is and-ed. Filters are compiled once, when a subscription is made.

Source: CloudEvents Subscriptions API 0.1, section 3.2.4.1.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from protocols.cloudevents.modes import Event

Filter = Callable[[Event], bool]
DEPTH_MAX: Final = 16

_COMPARE: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "exact": lambda value, wanted: value == wanted,
    "prefix": lambda value, wanted: value.startswith(wanted),
    "suffix": lambda value, wanted: value.endswith(wanted),
}


def compile_filters(filters: Sequence[Any], *, where: str = "filters") -> Filter:
    """One predicate for a whole list; an empty list matches everything. Raises ValueError."""
    compiled = _compile_list(filters, where, 0)
    return lambda event: all(test(event) for test in compiled)


def _compile_list(filters: Any, where: str, depth: int) -> list[Filter]:
    if not isinstance(filters, list):
        raise ValueError(f"{where}: an array of filters")
    return [_compile(item, f"{where}[{index}]", depth) for index, item in enumerate(filters)]


def _compile(item: Any, where: str, depth: int) -> Filter:
    if depth > DEPTH_MAX:
        raise ValueError(f"{where}: nested deeper than {DEPTH_MAX}")
    if not isinstance(item, dict) or len(item) != 1:
        raise ValueError(f"{where}: an object with one member, the dialect")
    ((dialect, argument),) = item.items()
    here = f"{where}.{dialect}"
    if dialect in _COMPARE:
        return _comparison(_COMPARE[dialect], argument, here)
    if dialect == "not":
        negated = _compile(argument, here, depth + 1)
        return lambda event: not negated(event)
    if dialect in ("all", "any"):
        parts = _compile_list(argument, here, depth + 1)
        if not parts:
            raise ValueError(f"{here}: must not be empty")
        quantifier = all if dialect == "all" else any
        return lambda event: quantifier(part(event) for part in parts)
    known = ", ".join([*_COMPARE, "all", "any", "not"])
    raise ValueError(f"{where}: unknown dialect '{dialect}' (there are {known})")


def _comparison(compare: Callable[[str, str], bool], argument: Any, where: str) -> Filter:
    """Every named attribute must be there and compare true."""
    if not isinstance(argument, dict) or not argument:
        raise ValueError(f"{where}: an object of attribute names and values")
    for name, wanted in argument.items():
        if not isinstance(wanted, str) or not wanted:
            raise ValueError(f"{where}.{name}: a text that is not empty")
    wanted_values: dict[str, str] = argument

    def test(event: Event) -> bool:
        for name, wanted in wanted_values.items():
            value = event.attributes.get(name)
            if name == "datacontenttype":
                value = event.content_type or None
            if value is None or not compare(value, wanted):
                return False
        return True

    return test
