"""Name server and stores of this process, on real sockets and a real disk, for gateway tests."""

from pathlib import Path
from typing import Any

from namesrv.app import NameServer
from namesrv.config import NamesrvConfig
from store.app import Store
from store.config import StoreConfig

UNHURRIED = {"lease_ms": 30_000, "silence_ms_max": 30_000}
"""A process that a loaded machine stops for some seconds ends no gateway's lease."""


class StoreCluster:
    """One name server and its stores; a store may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings: dict[str, Any] = {}
        self._configs: dict[str, StoreConfig] = {}
        self.stores: dict[str, Store] = {}
        self.name_server: NameServer | None = None

    @property
    def name_servers(self) -> list[str]:
        assert self.name_server is not None
        return [self.name_server.address]

    async def start(self, *names: str, **settings: Any) -> None:
        """
        The first store keeps the directory; *settings* are all stores'.

        Where gateways die, let *settings* have short leases.
        """
        self._settings = UNHURRIED | settings
        self.name_server = NameServer(
            NamesrvConfig(bind="127.0.0.1:0", data=self._folder / "namesrv")
        )
        await self.name_server.start()
        for name in names:
            await self.add(name, directory=name == names[0])

    async def add(self, name: str, *, directory: bool = False) -> Store:
        config = StoreConfig(
            name=name,
            bind="127.0.0.1:0",
            namesrv=tuple(self.name_servers),
            data=self._folder / name,
            directory=directory,
            segment_bytes=8 << 20,
            **self._settings,
        )
        store = self.stores[name] = Store(config)
        await store.start()
        self._configs[name] = config.model_copy(update={"bind": store.bound_address})
        return store

    async def stop_store(self, name: str) -> None:
        await self.stores.pop(name).stop()

    async def start_store(self, name: str) -> None:
        """Again, at the same address and on the same data."""
        store = self.stores[name] = Store(self._configs[name])
        await store.start()

    async def stop(self) -> None:
        for name in list(self.stores):
            await self.stop_store(name)
        if self.name_server is not None:
            await self.name_server.stop()
