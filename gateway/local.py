"""
LOCAL mode's own store and name server, in the gateway's process; the checks and the schema of
their blocks. The one place that imports the other daemons.
"""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, create_model

from gateway.config import ClusterConfig, GatewayConfig, Loaded
from protocols.daemon.config import ClusterAuth, section
from protocols.remoting.client import RemotingClient, local_pair
from protocols.remoting.peer import Receive

if TYPE_CHECKING:
    from namesrv.app import NameServer
    from namesrv.config import NamesrvConfig
    from store.app import Store
    from store.config import StoreConfig


class LocalParts:
    """
    The store, and the name server unless there is one elsewhere, in this process.

    Args:
        store: its checked block.
        namesrv: None: the store registers with the name servers its block names.
    """

    def __init__(
        self,
        store: "StoreConfig",
        namesrv: "NamesrvConfig | None",
        *,
        auth: ClusterAuth | None = None,
    ) -> None:
        self.store_config = store
        self.namesrv_config = namesrv
        self.store: Store | None = None
        self.name_server: NameServer | None = None
        self._auth = auth

    @property
    def has_name_server(self) -> bool:
        """Started or not."""
        return self.namesrv_config is not None

    @property
    def instance(self) -> str:
        """
        Who this process is to the directory. Only one process can hold the data folder, so one
        that comes back after a crash need not wait for the end of its own old lease.
        """
        return f"local:{socket.gethostname()}:{self.store_config.data.absolute()}"

    async def start(self) -> None:
        """Name server first, then the store, registered with it."""
        from store.app import Store

        config = self.store_config
        if self.namesrv_config is not None:
            from namesrv.app import NameServer

            self.name_server = NameServer(self.namesrv_config, auth=self._auth)
            await self.name_server.start()
            config = config.model_copy(
                update={"namesrv": (*config.namesrv, self.name_server.address)}
            )
        self.store = Store(config, auth=self._auth)
        await self.store.start()

    async def stop(self) -> None:
        if self.store is not None:
            await self.store.stop()
        if self.name_server is not None:
            await self.name_server.stop()

    async def connect_store(self, push: Receive) -> RemotingClient:
        """The in-memory transport to the store."""
        assert self.store is not None, "not started"
        return local_pair(self.store.local_handler(), push=push)

    async def connect_name_server(self) -> RemotingClient:
        """The in-memory transport to the name server."""
        assert self.name_server is not None, "not started"
        assert self.name_server.handler is not None, "not started"
        return local_pair(self.name_server.handler)

    def addresses(self) -> dict[str, str]:
        """What the ready line says of them."""
        found: dict[str, str] = {}
        if self.name_server is not None:
            found["namesrv"] = self.name_server.address
        if self.store is not None:
            found["store"] = self.store.bound_address
        return found

    def is_home_of(self, cluster: ClusterConfig, *, only: bool) -> bool:
        """Whether the local store belongs to this cluster entry."""
        if cluster.type != "rocketmq":
            return False
        return only or cluster.broker_cluster == self.store_config.cluster


def local_parts(loaded: Loaded, *, namesrv: tuple[str, ...], data: Path) -> LocalParts:
    """
    The blocks ``store`` and ``namesrv`` of the same file, checked; data in folders under *data*.

    A process that runs its own name server has the directory store, unless the file says not.
    Raises ConfigError.
    """
    from namesrv.config import NamesrvConfig
    from store.config import StoreConfig

    document = loaded.document
    store = section(document, "store", StoreConfig)
    given = document.value.get("store") or {}
    changes: dict[str, object] = {}
    if not store.zone:
        changes["zone"] = loaded.config.zone
    if "data" not in given:
        changes["data"] = data / "store"
    if "directory" not in given and not namesrv:
        changes["directory"] = True
    if namesrv and not store.namesrv:
        changes["namesrv"] = namesrv
    store = store.model_copy(update=changes)
    own: NamesrvConfig | None = None
    if not namesrv:
        own = section(document, "namesrv", NamesrvConfig)
        if "data" not in (document.value.get("namesrv") or {}):
            own = own.model_copy(update={"data": data / "namesrv"})
    return LocalParts(store, own, auth=loaded.config.cluster_auth)


def other_models() -> dict[str, type[BaseModel]]:
    """The blocks that the other daemons check, for schema and manual."""
    from namesrv.config import NamesrvConfig
    from store.config import StoreConfig

    return {"store": StoreConfig, "namesrv": NamesrvConfig}


def full_schema() -> dict[str, Any]:
    """JSON Schema of the whole file, the other daemons' blocks included."""
    from gateway.texts import describe

    describe(GatewayConfig, *other_models().values())
    blocks: dict[str, Any] = {name: (model, model()) for name, model in other_models().items()}
    blocks["spark"] = (dict[str, Any], {})
    whole = create_model("Tidegate", __base__=GatewayConfig, **blocks)
    schema = whole.model_json_schema()
    # What the file may leave out of a listener is filled in by its name.
    listener = schema["$defs"]["ListenerConfig"]
    listener["required"] = []
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
