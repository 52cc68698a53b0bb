"""``--set dotted.key=value``: one-off changes on the command line, above the file."""

from collections.abc import Iterable

from protocols.daemon.documents import Document, KeyPath, Position, parse_value
from protocols.errors import ConfigError


def apply_settings(document: Document, settings: Iterable[str]) -> None:
    """
    Put each ``dotted.key=value`` into *document*, in order; the value is YAML.

    A part of the key that is a number names a list entry: ``routes.0.name=x``.
    Raises ConfigError naming every setting that is wrong.
    """
    problems: list[str] = []
    for text in settings:
        origin = Position(f"--set {text.partition('=')[0]}", 0, 0)
        try:
            path, value = _parse(text)
            document.take(path, value, origin)
        except ValueError as error:
            problems.append(f"{origin}: {error}")
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def _parse(text: str) -> tuple[KeyPath, object]:
    key, separator, value = text.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ValueError("dotted.key=value is wanted")
    path = tuple(int(part) if part.isdigit() else part for part in parts)
    return path, parse_value(value)
