"""
The page conf/README.md, made from the configuration classes.

``python -m gateway.manual`` prints it; a test compares it with what is checked in.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gateway.config import DEFAULT_LISTENERS, GatewayConfig, ListenerConfig, ProtocolSection
from gateway.plugins import settings_model
from gateway.texts import describe, models_in

INTRODUCTION = """\
# Configuration

One schema for all daemons; each reads its own blocks of the same file and leaves the others
alone. Blocks may live in several files joined by `include:`. `${VAR}` and `${VAR:-default}` are
filled in from the environment. Durations are written `200ms`, `5s`, `10m`; counts `50k`; sizes
`64KiB`; rates `20/s`, `64KiB/s`. On the command line `--set dotted.key=value` overrides anything.

    tidegate config validate FILE      every mistake at once, with file:line:column, and the tests
    tidegate config schema             JSON Schema, for editors
    tidegate config show --effective   with defaults, includes and settings applied
    tidegate config diff OLD NEW       as they are understood
    tidegate explain …                 why a request is allowed and where it goes

A reload (SIGHUP) takes the file as it is now, or changes nothing if it has a mistake, a
certificate cannot be read or a listener cannot open. A listener of which a key changed opens
anew: its clients are told and come back; the others are not touched. What is read at the start
only (`name`, `zone`, `directory`, `cluster_auth`, `clusters`, `limits`, the admin listener; with
`tidegate up` also `store` and `namesrv`) is named in the log when it differs from what is in
force, and stays as it is; a route to a new cluster is refused until then. Stores and name servers
of their own read their blocks at the start only.

The files here are examples that pass `config validate`; `routing.yaml` and `acl.yaml` do as parts
of `gateway.yaml`, which includes them. This page is generated from the configuration classes:
`python -m gateway.manual > conf/README.md`.
"""


def manual(models: dict[str, type[BaseModel]]) -> str:
    """The whole page; *models* are the blocks of other daemons by name."""
    describe(GatewayConfig, *models.values())
    lines = [INTRODUCTION, "## The file", ""]
    lines += _table(GatewayConfig)
    lines += ["", "Default listeners: " + ", ".join(_default_listeners()) + ".", ""]
    seen: set[type[BaseModel]] = set()
    for name, info in GatewayConfig.model_fields.items():
        for model in models_in(info.annotation):
            if issubclass(model, ProtocolSection):
                lines += _protocol(name, model, seen)
            else:
                lines += _section(name, model, seen)
    for name, model in models.items():
        lines += _section(name, model, seen)
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[str]:
    if model in seen:
        return
    seen.add(model)
    if not model.model_fields:
        return
    yield f"## `{name}`"
    yield ""
    if model.__doc__:
        yield " ".join(model.__doc__.split()).replace("``", "`")
        yield ""
    yield from _table(model)
    yield ""
    for field, info in model.model_fields.items():
        for inner in models_in(info.annotation):
            yield from _section(f"{name}.{field}", inner, seen)


def _protocol(name: str, block: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[str]:
    """What the listeners of one protocol have beside the keys that all listeners have."""
    model = settings_model(name)
    assert model is not None
    describe(model)
    yield f"## `{name}`"
    yield ""
    of_all = ", ".join(f"`{key}`" for key in block.model_fields)
    yield "Keys of its listeners, in this block for all of them or at one listener."
    if of_all:
        yield f"Only here: {of_all}."
    yield ""
    yield from _table(block, model, without=ListenerConfig)
    yield ""
    for field, info in model.model_fields.items():
        if field not in ListenerConfig.model_fields:
            for inner in models_in(info.annotation):
                yield from _section(f"{name}.{field}", inner, seen)


def _table(*models: type[BaseModel], without: type[BaseModel] = BaseModel) -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "| --- | --- | --- |"
    fields = {name: info for model in models for name, info in model.model_fields.items()}
    for name, info in fields.items():
        if name in without.model_fields:
            continue
        text = " ".join((info.description or "").split()).replace("``", "`").replace("|", "\\|")
        yield f"| `{info.alias or name}` | {_default(info)} | {text} |"


def _default(info: Any) -> str:
    if info.is_required():
        return "required"
    value = info.default if info.default is not PydanticUndefined else info.default_factory()
    if isinstance(value, BaseModel) or value in (None, "", (), {}):
        return ""
    if isinstance(value, tuple | frozenset):
        return ", ".join(f"`{item}`" for item in sorted(value))
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _default_listeners() -> Iterator[str]:
    for name, (protocol, bind) in DEFAULT_LISTENERS.items():
        yield f"`{name}` ({protocol}, {bind})"


if __name__ == "__main__":
    from gateway.local import other_models

    print(manual(other_models()), end="")
