"""What a reload takes and what waits for the next start."""

from collections.abc import Iterator
from typing import Final

from gateway.config import (
    ADMIN_PROTOCOL,
    OTHER_DAEMONS,
    GatewayConfig,
    ListenerConfig,
    Loaded,
)
from gateway.ruleconfig import RouteConfig
from protocols.errors import ConfigError
from protocols.tls import make_context

READ_AT_START: Final = ("name", "zone", "directory", "cluster_auth", "clusters", "limits")
"""A reload takes all other keys as they are now, the listeners of protocols included."""


def waiting_keys(running: Loaded, new: Loaded, *, is_local: bool) -> list[str]:
    """
    Keys that differ from what is in force and that a reload does not look at.

    Args:
        is_local: store and name server are in this process, with their blocks of the file.
    """
    old = running.config
    changed = [key for key in READ_AT_START if getattr(old, key) != getattr(new.config, key)]
    admins, new_admins = _admins(old), _admins(new.config)
    names = {**admins, **new_admins}
    changed += [f"listeners.{name}" for name in names if admins.get(name) != new_admins.get(name)]
    if is_local:
        blocks, new_blocks = running.document.value, new.document.value
        changed += [key for key in OTHER_DAEMONS if blocks.get(key) != new_blocks.get(key)]
    return changed


def in_force(running: GatewayConfig, new: GatewayConfig) -> GatewayConfig:
    """*new*, and what a reload does not look at as it was: all that is running agrees on it."""
    kept: dict[str, object] = {key: getattr(running, key) for key in READ_AT_START}
    admins = _admins(new)
    listeners = {name: item for name, item in new.listeners.items() if name not in admins}
    return new.model_copy(update={**kept, "listeners": {**listeners, **_admins(running)}})


def refuse_new_clusters(running: GatewayConfig, new: Loaded) -> None:
    """Routes lead to clusters that are connected. Raises ConfigError."""
    problems = [
        new.document.problem(("routes", index), f"cluster '{name}' is there from the next start on")
        for index, route in enumerate(new.config.routes)
        for name in _clusters_of(route)
        if name not in running.clusters
    ]
    if problems:
        raise ConfigError(problems)


def refuse_unreadable_tls(running: GatewayConfig, new: Loaded) -> None:
    """Before a listener that changed is closed for it. Raises ConfigError."""
    problems: list[str] = []
    for name, item in new.config.listeners.items():
        if item.tls is None or not item.enabled or item == running.listeners.get(name):
            continue
        try:
            make_context(item.tls)
        except OSError as error:
            problems.append(new.document.problem(("listeners", name, "tls"), str(error)))
    if problems:
        raise ConfigError(problems)


def _admins(config: GatewayConfig) -> dict[str, ListenerConfig]:
    return {
        name: item for name, item in config.listeners.items() if item.protocol == ADMIN_PROTOCOL
    }


def _clusters_of(route: RouteConfig) -> Iterator[str]:
    yield from dict.fromkeys(
        (
            *[target.cluster for target in route.to],
            *[mirror.cluster for mirror in route.mirror],
            *route.failover,
        )
    )
