"""
What stands under each field of a configuration class, for the manual and the schema.

pydantic would collect these texts itself, by reading and parsing the source of every class
whenever a daemon starts: a fifth of the start's time, for texts that a daemon never shows.
"""

import ast
import inspect
import textwrap
import types
import typing
from itertools import pairwise
from typing import Any

from pydantic import BaseModel


def describe(*models: type[BaseModel]) -> None:
    """Give the fields of *models*, and of the models inside, their texts as descriptions."""
    seen: set[type[BaseModel]] = set()
    for model in models:
        _describe(model, seen)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field's type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.GenericAlias | types.UnionType) or typing.get_origin(
        annotation
    ):
        return [found for part in typing.get_args(annotation) for found in models_in(part)]
    return []


def _describe(model: type[BaseModel], seen: set[type[BaseModel]]) -> None:
    if model in seen:
        return
    seen.add(model)
    texts: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if kind is not BaseModel and issubclass(kind, BaseModel):
            texts.update(_texts(kind))
    for name, info in model.model_fields.items():
        for inner in models_in(info.annotation):
            _describe(inner, seen)
        info.description = info.description or texts.get(name)
    model.model_rebuild(force=True)  # those inside first: it takes them as they are


def _texts(kind: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
