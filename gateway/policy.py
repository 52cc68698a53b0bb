"""
The rules in force: routes, ACL and throttles of one configuration, swapped as one reference.
"""

from dataclasses import dataclass
from itertools import count
from typing import Self

from gateway.acl import Acl
from gateway.config import GatewayConfig
from gateway.mosquitto import read_acl_file
from gateway.routing import RouteTable
from gateway.throttle import Throttle

_versions = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the pipeline asks; caches made under one ``version`` are void under another."""

    version: int
    acl: Acl
    throttle: Throttle
    routes: RouteTable

    @classmethod
    def from_config(cls, config: GatewayConfig, previous: "Policy | None" = None) -> Self:
        """
        Build all of it; throttle entries that did not change keep their buckets.

        Raises ConfigError: the ACL file.
        """
        version = next(_versions)
        return cls(
            version=version,
            acl=Acl(
                config.acl,
                version=version,
                file=read_acl_file(config.acl_file) if config.acl_file is not None else None,
            ),
            throttle=Throttle(
                config.throttle,
                version=version,
                previous=previous.throttle if previous else None,
            ),
            routes=RouteTable(config.routes, version=version),
        )
