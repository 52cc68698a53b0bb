"""
What a dead letter looks like: the headers that tell of its deaths, and who must not get it again.

Pure functions. Source: RabbitMQ ``rabbit_dead_letter``; the fields of an entry are sorted by
name, the newest death is first, one entry per (queue, reason).
"""

from typing import Final, NamedTuple

from protocols.amqp.fields import Field, Table, field_of
from protocols.amqp.mapping import Content
from protocols.amqp.properties import decode_properties, encode_properties

X_DEATH: Final = "x-death"
FACTS: Final = ("reason", "queue", "exchange")


class Death(NamedTuple):
    """One message that left a queue without being delivered."""

    queue: str
    reason: str
    at_s: int
    """Wall time, seconds."""


class Letter(NamedTuple):
    """Ready to be published to the dead-letter exchange."""

    properties: bytes
    keys: list[str]
    """Routing keys: the queue's own for dead letters, or all that the message had."""

    deaths: list[Table]
    headers: Table


def make_letter(content: Content, death: Death, routing_key: str | None) -> Letter:
    """
    Write the death into the headers of *content*.

    Args:
        routing_key: the queue's key for dead letters; None: they keep their own keys.
    """
    properties = decode_properties(content.properties)
    headers = dict(properties.headers or {})
    carbon = _texts(headers.get("CC"))
    deaths = _deaths(headers.get(X_DEATH))
    entry = _entry(death, content, [content.routing_key, *carbon], properties.expiration)
    same = [item for item in deaths if _is_same(item, death)]
    if same:
        entry = {**same[0], "count": Field("l", _count(same[0]) + 1)}
    deaths = [entry, *[item for item in deaths if not _is_same(item, death)]]
    headers[X_DEATH] = Field("A", [Field("F", item) for item in deaths])
    told = {"reason": death.reason, "queue": death.queue, "exchange": content.exchange}
    for name in FACTS:
        headers.setdefault(f"x-first-death-{name}", field_of(told[name]))
        headers[f"x-last-death-{name}"] = field_of(told[name])
    if routing_key is not None:
        headers.pop("CC", None)
    keys = [routing_key] if routing_key is not None else [content.routing_key, *carbon]
    block = encode_properties(properties._replace(headers=headers, expiration=""))
    return Letter(block, keys, deaths, headers)


def is_cycle(queue: str, deaths: list[Table]) -> bool:
    """
    The letter died in *queue* before and nobody rejected it since: it would go round for ever.
    """
    for place, death in enumerate(deaths):
        if _value(death, "queue") == queue:
            return all(_value(item, "reason") != "rejected" for item in deaths[: place + 1])
    return False


def _entry(death: Death, content: Content, keys: list[str], expiration: str) -> Table:
    entry: Table = {
        "count": Field("l", 1),
        "exchange": Field("S", content.exchange),
        "queue": Field("S", death.queue),
        "reason": Field("S", death.reason),
        "routing-keys": Field("A", [Field("S", key) for key in keys]),
        "time": Field("T", death.at_s),
    }
    if expiration:
        entry["original-expiration"] = Field("S", expiration)
    return dict(sorted(entry.items()))


def _deaths(field: Field | None) -> list[Table]:
    if field is None or not isinstance(field.value, list):
        return []
    return [item.value for item in field.value if isinstance(item.value, dict)]


def _texts(field: Field | None) -> list[str]:
    if field is None or not isinstance(field.value, list):
        return []
    return [item.value for item in field.value if isinstance(item.value, str)]


def _is_same(entry: Table, death: Death) -> bool:
    return _value(entry, "queue") == death.queue and _value(entry, "reason") == death.reason


def _value(entry: Table, name: str) -> object:
    field = entry.get(name)
    return field.value if field is not None else None


def _count(entry: Table) -> int:
    value = _value(entry, "count")
    return value if isinstance(value, int) else 0
