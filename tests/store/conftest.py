"""A real store on a socket and a client of it; modules that test the engine have their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocols.remoting.client import RemotingClient
from store.app import Store
from tests.support.store_server import connected, running_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with running_store(tmp_path) as store:
        yield store


@pytest.fixture
async def client(store: Store) -> AsyncIterator[RemotingClient]:
    async with connected(store) as client:
        yield client
