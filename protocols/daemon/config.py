"""
From a document to a checked model: every mistake at once, each with file, line and key path.

All daemons read the same file. Each validates its own blocks and leaves the others alone; a
block that no daemon knows is a mistake everywhere.
"""

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from protocols.checking import CheckedModel
from protocols.daemon.documents import Document, KeyPath, load
from protocols.daemon.settings import apply_settings
from protocols.errors import ConfigError
from protocols.suggestions import nearest
from protocols.wording import wrong

BLOCKS: Final = (
    "version",
    "zone",
    "include",
    "name",
    "directory",
    "cluster_auth",
    "clusters",
    "listeners",
    "routes",
    "tests",
    "users",
    "authenticators",
    "acl",
    "acl_file",
    "throttle",
    "limits",
    "mqtt",
    "amqp",
    "cloudevents",
    "grpc",
    "remoting",
    "store",
    "namesrv",
    "spark",
)
"""Every top-level key of the one schema, of all daemons."""

M = TypeVar("M", bound=BaseModel)

_NOTHING: Final = object()


class ConfigModel(CheckedModel):
    """Base of all configuration models; the docstring under a field is its manual."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        hide_input_in_errors=True,
    )


class ClusterAuth(ConfigModel):
    """What store, name server and gateway show one another (``cluster_auth:``)."""

    access_key: str = Field(min_length=1)
    """Name the signature is made with."""

    secret_file: Path | None = None
    """File with the secret; white space around it is ignored."""

    secret: str | None = None
    """The secret itself, usually ``${VAR}``; prefer ``secret_file``."""

    def read_secret(self) -> bytes:
        """The secret. Raises ConfigError if it cannot be read or is empty."""
        if self.secret_file is None:
            found = (self.secret or "").encode()
        else:
            try:
                found = self.secret_file.read_bytes().strip()
            except OSError as error:
                where = f"cluster_auth.secret_file: {self.secret_file}"
                raise ConfigError([f"{where} cannot be read: {error.strerror}"]) from error
        if not found:
            raise ConfigError(["cluster_auth: the secret is empty (secret_file or secret)"])
        return found


def read(path: Path | None, settings: Iterable[str] = ()) -> Document:
    """
    The document of ``-c FILE`` with ``--set`` on top; unknown blocks are refused.

    Raises ConfigError.
    """
    document = load(path)
    apply_settings(document, settings)
    check_blocks(document)
    return document


def check_blocks(document: Document) -> None:
    """Refuse top-level keys that no daemon knows. Raises ConfigError."""
    problems = unknown_blocks(document)
    if problems:
        raise ConfigError(problems)


def unknown_blocks(document: Document) -> list[str]:
    """A problem line for each top-level key that no daemon knows."""
    return [
        document.problem((key,), f"unknown block{nearest(key, BLOCKS)}", of_key=True)
        for key in document.value
        if key not in BLOCKS
    ]


def section(document: Document, name: str, model: type[M]) -> M:
    """The block *name* as *model*; defaults if it is not there. Raises ConfigError."""
    value = document.value.get(name)
    return build(document, model, {} if value is None else value, at=(name,))


def cluster_auth(document: Document) -> ClusterAuth | None:
    """The block ``cluster_auth``; None if there is none. Raises ConfigError."""
    if document.value.get("cluster_auth") is None:
        return None
    return section(document, "cluster_auth", ClusterAuth)


def build(
    document: Document,
    model: type[M],
    value: Any,
    *,
    at: KeyPath = (),
    context: Mapping[str, Any] | None = None,
) -> M:
    """
    Validate *value*, which stands at *at* in *document*.

    Args:
        context: handed to validators, e.g. the names that a field may refer to.

    Raises:
        ConfigError: every mistake, in the order of the files.
    """
    try:
        return model.model_validate(value, context=context)
    except ValidationError as error:
        raise ConfigError(explain_errors(document, model, error, at=at)) from None


def explain_errors(
    document: Document, model: type[BaseModel], error: ValidationError, *, at: KeyPath = ()
) -> list[str]:
    """One line for each mistake, sorted by position."""
    found: list[tuple[tuple[str, int, int], str]] = []
    for item in error.errors(include_url=False):
        path = (*at, *_written_path(document, at, item["loc"]))
        of_key = item["type"] == "extra_forbidden"
        line = document.problem(path, _message(model, item), of_key=of_key)
        at_position = document.position(path, of_key=of_key)
        order = ((at_position.file, at_position.line, at_position.column), line)
        if order not in found:
            found.append(order)
    return [line for _, line in sorted(found)]


# ── inside ──────────────────────────────────────────────────────────────────────────────


def _written_path(document: Document, at: KeyPath, loc: Sequence[int | str]) -> KeyPath:
    """*loc* without the parts that pydantic adds for unions and validators."""
    node: Any = document.value
    for key in at:
        node = node.get(key, {}) if isinstance(node, dict) else {}
    path: list[str | int] = []
    for index, key in enumerate(loc):
        is_last = index == len(loc) - 1
        child = _child(node, key)
        if child is not _NOTHING:
            node = child
        elif not (is_last and isinstance(node, dict) and str(key).isidentifier()):
            continue  # the member of a union, or the name of a validator
        path.append(key)
    return tuple(path)


def _child(node: Any, key: int | str) -> Any:
    if isinstance(node, dict):
        return node.get(key, _NOTHING)
    if isinstance(node, list) and isinstance(key, int) and key < len(node):
        return node[key]
    return _NOTHING


def _message(model: type[BaseModel], item: ErrorDetails) -> str:
    kind, loc = item["type"], item["loc"]
    if kind == "extra_forbidden":
        return f"unknown key{nearest(str(loc[-1]), _known_keys(model, loc[:-1]))}"
    return wrong(item)


def _known_keys(model: type[BaseModel], loc: Sequence[int | str]) -> set[str]:
    """Field names that are allowed at *loc*, over all members of unions."""
    kinds: set[type[BaseModel]] = {model}
    for key in loc:
        following: set[type[BaseModel]] = set()
        for kind in kinds:
            if isinstance(key, str) and (info := _field(kind, key)) is not None:
                following |= _models(info)
        kinds = following or kinds
    return {name for kind in kinds for name in _names(kind)}


def _field(kind: type[BaseModel], key: str) -> Any:
    for name, info in kind.model_fields.items():
        if key in (name, info.alias):
            return info.annotation
    return None


def _names(kind: type[BaseModel]) -> Iterable[str]:
    return [info.alias or name for name, info in kind.model_fields.items()]


def _models(annotation: Any) -> set[type[BaseModel]]:
    """The models an annotation can hold, through unions, lists, maps and Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    if isinstance(annotation, types.GenericAlias | types.UnionType) or typing.get_origin(
        annotation
    ):
        return {found for part in typing.get_args(annotation) for found in _models(part)}
    return set()
