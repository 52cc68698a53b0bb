"""The base of all models of settings: what pydantic lets pass and an operator did not mean."""

import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, model_validator

TRUTHS: Final = ("true", "false")


class CheckedModel(BaseModel):
    """``true`` is no number here, and 0, 1 or "yes" no truth; pydantic takes each for the other."""

    # One check of a model, not one of each field: those cost 60 ms of CPU at every start.
    @model_validator(mode="before")
    @classmethod
    def _truth_is_truth(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        truths = _truths(cls)
        mistaken = {
            name: Mistaken(value)
            for name, value in given.items()
            if name in truths and _is_mistaken(truths[name], value)
        }
        return {**given, **mistaken} if mistaken else given


class Mistaken:
    """Takes the place of a value, so that pydantic says what should be there."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return str(self._value).lower() if isinstance(self._value, bool) else repr(self._value)


class Truth(Enum):
    """Whether a setting may be true or false."""

    NEVER = 0
    TOO = 1
    ONLY = 2


def _is_mistaken(truth: Truth, value: object) -> bool:
    if isinstance(value, bool):
        return truth is Truth.NEVER
    return truth is Truth.ONLY and value is not None and str(value).lower() not in TRUTHS


@cache
def _truths(model: type[BaseModel]) -> Mapping[str, Truth]:
    return {name: _truth(field.annotation) for name, field in model.model_fields.items()}


def _truth(annotation: Any) -> Truth:
    arms = _arms(annotation)
    if not any(arm in (bool, Any, object) for arm in arms):
        return Truth.NEVER
    return Truth.ONLY if set(arms) <= {bool, types.NoneType} else Truth.TOO


def _arms(annotation: Any) -> list[Any]:
    """The members of a union, without their notes."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _arms(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [arm for member in typing.get_args(annotation) for arm in _arms(member)]
    return [annotation]
