"""The base of all models of settings: what pydantic lets pass and an operator did not mean."""

import types
import typing
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class CheckedModel(BaseModel):
    """``true`` is no number here; pydantic takes it for 1."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and not _takes_truth(cls, info.field_name or ""):
            raise PydanticCustomError("truth_for_another", "should not be true or false")
        return value


@cache
def _takes_truth(model: type[BaseModel], field: str) -> bool:
    return any(arm in (bool, Any, object) for arm in _arms(model.model_fields[field].annotation))


def _arms(annotation: Any) -> list[Any]:
    """The members of a union, without their notes."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _arms(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [arm for member in typing.get_args(annotation) for arm in _arms(member)]
    return [annotation]
