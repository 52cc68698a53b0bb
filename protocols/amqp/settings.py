"""One AMQP listener's part of ``gateway.yaml``."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from protocols.daemon.units import Bytes
from protocols.doors import DoorSettings
from protocols.sections import checked


class AmqpSettings(DoorSettings):
    """Keys of an AMQP listener, and of ``amqp:`` for all of them."""

    protocol: str = "amqp"
    bind: str = "127.0.0.1:5672"
    """``host:port``; port 0: any."""

    enabled: bool = True
    tenant: str = "from_vhost"
    """``from_vhost``: a virtual host is the tenant of its name, ``/`` the one without a name; or
    a fixed tenant for all."""

    advertise: str = ""
    websocket: bool = False
    path: str = ""
    vhosts: tuple[str, ...] = ("/",)
    """Virtual hosts that exist; others are refused with 530."""

    heartbeat_s: int = Field(default=60, ge=0, le=65_535)
    """Heartbeat interval offered to clients, who may choose another; 0: none."""

    message_bytes_max: Bytes = Field(default=4_000_000, ge=1024, le=4_194_304)
    """Largest body; a store keeps 4 MiB at most."""

    @property
    def has_certificates(self) -> bool:
        """Whether a client may show one, here or to the load balancer in front."""
        return bool(self.proxy_protocol) or (
            self.tls is not None and self.tls.client_ca is not None
        )

    def tenant_of(self, vhost: str) -> str:
        """Whose names the clients of this virtual host see."""
        if self.tenant and self.tenant != "from_vhost":
            return self.tenant
        return vhost.strip("/")


def read_settings(name: str, section: Mapping[str, Any]) -> AmqpSettings:
    """The settings of listener *name*. Raises ConfigError with every mistake."""
    return checked(AmqpSettings, name, section, "bind")
