"""Once-keys whose exchange ended while their store was away."""

import asyncio
from pathlib import Path

import pytest

from gateway.clusters import tidegate
from gateway.clusters.link import LinkState
from protocols.canonical import (
    ONCE_BYTES,
    RELEASED_ONCE_PREFIX,
    GroupSpec,
    Head,
    Message,
    QueueKind,
    QueueRef,
    Read,
)
from protocols.errors import Code
from protocols.pipeline import Subscription
from tests.support.core import Core, ListSink, call, until
from tests.support.daemons import StoreCluster
from tests.support.patience import PATIENCE_S

KEY = RELEASED_ONCE_PREFIX.ljust(ONCE_BYTES, b"k")


async def test_a_store_that_comes_back_forgets_before_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next message under the same packet id, sent while it is away, is no repeat."""
    monkeypatch.setattr(tidegate, "LOST_S_MAX", PATIENCE_S)
    stores = StoreCluster(tmp_path)
    await stores.start("a")
    core = Core("gw-1", stores.name_servers)
    await core.start(store_count=1)
    queue = QueueRef(QueueKind.FILTER, "t")
    version = await core.directory.subscribe([Subscription("t", queue, "mqtt//c")])
    await core.directory.barrier(version)
    sink, spec = ListSink(), GroupSpec(name="mqtt//c", reads=(Read(queue=queue),))
    stream = await core.streams.open(call(), spec, sink, credit=10)
    head = Head(subject="t", qos=2, order_key="c")

    async def publish(body: bytes) -> None:
        (result,) = await core.pipeline.send(call(), [Message(head, body, once_key=KEY)])
        assert result.code == Code.OK

    await publish(b"1")
    await publish(b"1 again")
    await stores.stop_store("a")
    (link,) = core.cluster.links.values()
    await until(lambda: link.state is not LinkState.UP)
    released: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    core.pipeline.release_once(call(), KEY, released.set_result)
    assert await released
    sending = asyncio.ensure_future(publish(b"2"))
    await stores.start_store("a")
    await sending
    assert [delivery.message.body for delivery in await sink.wait(2)] == [b"1", b"2"]
    await stream.close()
    await core.stop()
    await stores.stop()
