"""How a protocol checks its entry of ``listeners:``; every mistake is named by its key."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protocols.addresses import split_bind
from protocols.daemon.documents import show_path
from protocols.errors import ConfigError
from protocols.suggestions import nearest
from protocols.wording import wrong

Settings = TypeVar("Settings", bound=BaseModel)


def checked(
    model: type[Settings], name: str, section: Mapping[str, Any], *addresses: str
) -> Settings:
    """
    The settings of listener *name*; *addresses* are its fields of the form ``host:port``, all
    but ``bind`` may be empty. Raises ConfigError.
    """
    where = f"listeners.{name}"
    try:
        settings = model.model_validate(dict(section), from_attributes=True)
    except ValidationError as error:
        raise ConfigError([_line(where, model, item) for item in error.errors()]) from error
    for field in addresses:
        try:
            value = getattr(settings, field)
            if value or field == "bind":
                split_bind(value)
        except ValueError as error:
            raise ConfigError([f"{where}.{field}: {error}"]) from error
    return settings


def _line(where: str, model: type[BaseModel], item: ErrorDetails) -> str:
    place, text = item["loc"], wrong(item)
    if item["type"] == "extra_forbidden":
        known = model.model_fields if len(place) == 1 else ()
        text = f"unknown key{nearest(str(place[-1]), known)}"
    return f"{where}.{show_path(place)}: {text}"
