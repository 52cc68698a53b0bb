"""
Weights of routes' targets that an operator sets while gateways run, over those of the file.

Each route's is a row of the directory, so that all gateways, and those that start later, share
keys alike. It holds until it is taken back; a target that the row does not name keeps the
file's weight.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from gateway.config import GatewayConfig
from gateway.ruleconfig import RouteConfig, TargetConfig
from protocols.directory import Directory, Put, Record
from protocols.errors import Code, Refused

logger = logging.getLogger("tidegate.weights")

PREFIX: Final = "weight/"
WEIGHT_MAX: Final = 1_000_000
"""As in the file."""

Row = dict[str, int]
"""Cluster, or ``cluster/topic`` where a route has several targets there → weight."""


class Weights:
    """The rows, and what they make of a configuration."""

    def __init__(self, directory: Directory, changed: Callable[[], None]) -> None:
        self._directory = directory
        self._changed = changed
        self._rows: dict[str, Row] = {}
        self._undo = directory.watch(PREFIX, self._apply)

    async def close(self) -> None:
        self._undo()

    def applied(self, config: GatewayConfig) -> GatewayConfig:
        """*config* with the weights in force; a row that leaves a route nowhere to go is not."""
        if not self._rows:
            return config
        routes = tuple(self._route(route) for route in config.routes)
        return config.model_copy(update={"routes": routes})

    async def set(self, config: GatewayConfig, route: str, weights: Mapping[str, object]) -> None:
        """For all gateways, and for good. Raises Refused."""
        found = _find(config, route)
        names = {name for target in found.to for name in _names(target)}
        row: Row = {}
        for name, weight in weights.items():
            if name not in names:
                raise Refused(Code.NOT_FOUND, name, f"route {route} has {', '.join(sorted(names))}")
            if type(weight) is not int or not 0 <= weight <= WEIGHT_MAX:
                raise Refused(Code.BAD_REQUEST, name, f"a weight is 0 to {WEIGHT_MAX}")
            row[name] = weight
        row = self._rows.get(route, {}) | row
        if not _goes_somewhere(found, row):
            raise Refused(Code.BAD_REQUEST, route, "no target would have a weight")
        await self._directory.put([Put(PREFIX + route, msgspec.json.encode(row))])

    async def reset(self, route: str) -> bool:
        """Back to the file; False: nothing had been set. Raises Refused."""
        if route not in self._rows:
            return False
        await self._directory.put([Put(PREFIX + route, None)])
        return True

    def table(self, config: GatewayConfig) -> list[dict[str, object]]:
        """Every target of every route, as the file has it and as it is in force."""
        return [
            {
                "route": route.name,
                "cluster": target.cluster,
                "topic": target.topic,
                "weight": now.weight,
                "file_weight": target.weight,
            }
            for route in config.routes
            for target, now in zip(route.to, self._route(route).to, strict=True)
        ]

    def _route(self, route: RouteConfig) -> RouteConfig:
        row = self._rows.get(route.name)
        if row is None or not _goes_somewhere(route, row):
            return route
        targets = tuple(
            target.model_copy(update={"weight": _weight(target, row)}) for target in route.to
        )
        return route.model_copy(update={"to": targets})

    def _apply(self, records: Sequence[Record]) -> None:
        for record in records:
            route = record.key.removeprefix(PREFIX)
            self._rows.pop(route, None)
            if record.value is not None:
                try:
                    self._rows[route] = msgspec.json.decode(record.value, type=Row)
                except msgspec.MsgspecError as error:
                    logger.error("%s: %s", record.key, error)
        self._changed()


def _find(config: GatewayConfig, name: str) -> RouteConfig:
    for route in config.routes:
        if route.name == name:
            return route
    raise Refused(Code.NOT_FOUND, name, "no route of that name")


def _names(target: TargetConfig) -> tuple[str, str]:
    """What a row may call it."""
    exactly = f"{target.cluster}/{target.topic}" if target.topic else target.cluster
    return target.cluster, exactly


def _weight(target: TargetConfig, row: Row) -> int:
    cluster, exactly = _names(target)
    return row.get(exactly, row.get(cluster, target.weight))


def _goes_somewhere(route: RouteConfig, row: Row) -> bool:
    return bool(route.failover) or any(_weight(target, row) for target in route.to)
