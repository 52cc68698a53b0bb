"""The base of all models of settings: what pydantic lets pass and an operator did not mean."""

import types
import typing
from enum import Enum
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

TRUTHS: Final = ("true", "false")


class CheckedModel(BaseModel):
    """``true`` is no number here, and 0, 1 or "yes" no truth; pydantic takes each for the other."""

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_truth(cls, value: Any, info: ValidationInfo) -> Any:
        truth = _truth(cls, info.field_name or "")
        if isinstance(value, bool):
            if truth is Truth.NEVER:
                raise PydanticCustomError("truth_for_another", "should not be true or false")
        elif truth is Truth.ONLY and value is not None and str(value).lower() not in TRUTHS:
            raise PydanticCustomError("another_for_truth", "should be true or false")
        return value


class Truth(Enum):
    """Whether a setting may be true or false."""

    NEVER = 0
    TOO = 1
    ONLY = 2


@cache
def _truth(model: type[BaseModel], field: str) -> Truth:
    arms = _arms(model.model_fields[field].annotation)
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
