"""Values with units, as people write them: ``5s``, ``64KiB``, ``20/s``, ``50k``, ``a:p;b:p``."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator

from protocols import unix_sockets
from protocols.addresses import split_bind

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_DURATION_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_COUNTS: Final = {"": 1, "k": 1000, "M": 1_000_000, "G": 1_000_000_000}
_BYTES: Final = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1_000_000,
    "GB": 1_000_000_000,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_PER_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration_ms(value: object) -> object:
    """``200ms``, ``5s``, ``10m``, ``1h``, ``2d``, or a number of milliseconds."""
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if found is None:
            raise ValueError(f"'{value}' is no duration such as 200ms, 5s, 10m, 1h")
        return int(float(found[1]) * _DURATION_MS[found[2]])
    return value


def parse_count(value: object) -> object:
    """``50k``, ``2M``, or a number."""
    return _scaled(value, _COUNTS, "count such as 500, 20k, 2M")


def parse_bytes(value: object) -> object:
    """``64KiB``, ``1GB``, or a number of bytes."""
    return _scaled(value, _BYTES, "size such as 500, 64KiB, 1GiB")


def parse_rate(value: object) -> object:
    """``20/s``, ``5k/s``, ``64KiB/s``, ``100/m`` as a number per second."""
    if not isinstance(value, str):
        return value
    amount, separator, period = value.partition("/")
    if not separator or period.strip() not in _PER_S:
        raise ValueError(f"'{value}' is no rate such as 20/s, 5k/s, 64KiB/s, 100/m")
    scaled = _scaled(amount.strip(), {**_BYTES, **_COUNTS}, "rate such as 20/s, 64KiB/s")
    return float(str(scaled)) / _PER_S[period.strip()]


def split_list(value: object) -> object:
    """A YAML list, or ``a;b`` as one."""
    if isinstance(value, str):
        return [item.strip() for item in value.replace(",", ";").split(";") if item.strip()]
    return value


def as_list(value: object) -> object:
    """One value where a list may stand."""
    return value if isinstance(value, list | tuple) or value is None else [value]


def check_address(value: str) -> str:
    """``host:port``. Raises ValueError."""
    split_bind(value)
    return value


def check_bind(value: str) -> str:
    """``host:port`` or ``unix:<file>``. Raises ValueError."""
    if not unix_sockets.path_of(value):
        split_bind(value)
    return value


def _scaled(value: object, units: dict[str, int], wanted: str) -> object:
    if not isinstance(value, str):
        return value
    found = _COUNT.fullmatch(value.strip())
    if found is None or found[2] not in units:
        raise ValueError(f"'{value}' is no {wanted}")
    return int(float(found[1]) * units[found[2]])


DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]
Count = Annotated[int, BeforeValidator(parse_count)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Rate = Annotated[float, BeforeValidator(parse_rate)]
Address = Annotated[str, AfterValidator(check_address)]
Bind = Annotated[str, AfterValidator(check_bind)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(split_list)]
Texts = Annotated[tuple[str, ...], BeforeValidator(as_list)]
"""A list of texts; a single one may stand for it."""
