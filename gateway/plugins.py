"""
Protocols by entry point (group ``gateway.protocols``): built-in ones come in by the same door.

A protocol's module is imported only when a listener of it exists.
"""

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from pydantic import BaseModel

from gateway.config import ADMIN_PROTOCOL, GatewayConfig, Loaded, default_listener
from protocols.adapter import ENTRY_POINT_GROUP, ProtocolAdapter
from protocols.daemon.config import ConfigModel
from protocols.daemon.documents import KeyPath
from protocols.errors import ConfigError

_LISTENERS: Final = "listeners"

_KEYS: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
"""The keys of ``rewrite[0].to``."""


def section_of(loaded: Loaded, name: str) -> dict[str, Any]:
    """What an adapter is built from: its protocol's block with the listener's keys on top."""
    listener = loaded.config.listeners[name]
    together = keys_of_all(listener.protocol)
    block = loaded.document.value.get(listener.protocol) or {}
    shared = {key: value for key, value in block.items() if key not in together}
    own = (loaded.document.value.get(_LISTENERS) or {}).get(name) or {}
    return {**shared, **default_listener(name), **own}


def keys_of_all(protocol: str) -> frozenset[str]:
    """Keys in the block of *protocol* that are the gateway's: they cannot differ by listener."""
    block = GatewayConfig.model_fields.get(protocol)
    is_block = block is not None and isinstance(block.default, ConfigModel)
    return frozenset(type(block.default).model_fields) if block and is_block else frozenset()


def settings_model(protocol: str) -> type[BaseModel] | None:
    """The model of a listener's keys, where the adapter names one. Raises ConfigError."""
    model: type[BaseModel] | None = getattr(_load(protocol), "SETTINGS", None)
    return model


EXTRA: Final = "Extra inputs are not permitted"
"""pydantic's words for a key that no field has."""


def build_adapters(loaded: Loaded, *, skips_missing: bool = False) -> dict[str, ProtocolAdapter]:
    """
    An adapter for each enabled listener, none of them open yet; ``admin`` is not among them.

    Args:
        skips_missing: leave out protocols whose module is not there instead of refusing.

    Raises:
        ConfigError: all that the adapters say about their sections, with positions.
    """
    problems: list[str] = []
    adapters: dict[str, ProtocolAdapter] = {}
    for name, listener in loaded.config.listeners.items():
        if not listener.enabled:
            continue
        if listener.protocol == ADMIN_PROTOCOL:  # has no adapter that would say so
            extra = listener.model_extra or {}
            problems += [_with_position(loaded, name, f"{key}: {EXTRA}") for key in extra]
            continue
        if misplaced := keys_of_all(listener.protocol).intersection(listener.model_extra or ()):
            text = f"is the same for all listeners: write it under `{listener.protocol}:`"
            paths = [(_LISTENERS, name, key) for key in sorted(misplaced)]
            problems += [loaded.document.problem(path, text, of_key=True) for path in paths]
            continue
        try:
            kind = _load(listener.protocol)
            adapters[name] = kind.from_config(name, section_of(loaded, name))
        except ImportError as error:
            if not skips_missing:
                problems.append(f"listeners.{name}: protocol {listener.protocol}: {error}")
        except ConfigError as error:
            problems += [_with_position(loaded, name, line) for line in error.problems]
    if problems:
        raise ConfigError([*dict.fromkeys(problems)])  # listeners share their protocol's block
    return adapters


def build_adapter(name: str, section: Mapping[str, Any]) -> ProtocolAdapter:
    """The adapter of one listener, from what ``section_of`` gave. Raises ConfigError."""
    return _load(str(section["protocol"])).from_config(name, section)


def _load(protocol: str) -> type[ProtocolAdapter]:
    points = [*entry_points(group=ENTRY_POINT_GROUP, name=protocol)]
    if not points:
        raise ConfigError([f"protocol: no plug-in '{protocol}' is installed"])
    kind: type[ProtocolAdapter] = points[0].load()
    return kind


def _with_position(loaded: Loaded, name: str, line: str) -> str:
    """*line* with file, line and column of the key it begins with."""
    prefix = f"{_LISTENERS}.{name}"
    text = line.removeprefix(prefix).removeprefix(".").removeprefix(": ")
    key, separator, rest = text.partition(": ")
    path: KeyPath = (_LISTENERS, name)
    if separator and " " not in key:
        parts: KeyPath = tuple(
            int(number) if number else word for word, number in _KEYS.findall(key)
        )
        shared: Mapping[str, Any] = (
            loaded.document.value.get(loaded.config.listeners[name].protocol) or {}
        )
        if parts and parts[0] in shared:
            path = (loaded.config.listeners[name].protocol, *parts)
        else:
            path = (*path, *parts)
        text = rest
    is_unknown = text == EXTRA
    text = "unknown key" if is_unknown else text
    return loaded.document.problem(path, text, of_key=is_unknown or "unknown" in text)
