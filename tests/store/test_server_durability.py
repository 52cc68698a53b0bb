"""What the store promises when it, its disk or its room ends; and who may ask it."""

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from protocols.canonical import QueueKind, queue_key
from protocols.daemon.config import ClusterAuth
from protocols.errors import Code, ConfigError
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import Hello, PrivateCode, encode_body
from protocols.remoting.records import decode_records
from protocols.remoting.settling import AckItem
from protocols.remoting.signing import sign
from store.app import Store
from store.disk import Buffer, RealDisk
from store.ownership import FolderLock
from store.server import StoreServer
from tests.support.processes import Daemons
from tests.support.store_server import (
    WAIT_S,
    GatewayEnd,
    ask,
    connected,
    eventually,
    running_store,
    store_config,
)

QUEUE = queue_key("", QueueKind.FILTER, "a/+")
SEND = {"a": "p", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
PULL = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": "0",
    "maxMsgNums": "1000",
    "sysFlag": "4",
    "subscription": "*",
}
SMALL = {"disk_free_bytes_min": 0, "log_bytes_max": 64 << 20}


class FaultyDisk(RealDisk):
    """A disk whose syncs can be held up or made to fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.is_broken = False
        self.go = threading.Event()
        self.go.set()

    def write_through(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        self.write(name, offset, buffers)
        self.sync(name)

    def sync(self, name: str) -> None:
        self.go.wait(WAIT_S)
        if self.is_broken:
            raise OSError(5, "Input/output error")
        super().sync(name)


def is_longer(items: list[bytes], count: int) -> bool:
    return len(items) >= count


async def read_all(client: RemotingClient) -> list[bytes]:
    """Bodies of queue 0 of topic T, from its start."""
    found: list[bytes] = []
    while True:
        fields = PULL | {"queueOffset": str(len(found))}
        answer = await ask(client, RequestCode.PULL_MESSAGE, fields)
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += [message.body for message in decode_records(answer.body)]


async def test_a_restart_keeps_everything_under_a_new_epoch(tmp_path: Path) -> None:
    """Messages, topics, offsets, groups and leases are there; what was in flight can be acked."""
    async with running_store(tmp_path) as store:
        gateway = GatewayEnd("gw-1")
        first = await gateway.connect(store)
        opened = await gateway.open_group("g", key=QUEUE)
        await gateway.open_stream(opened.group, 1, 10)
        await gateway.send(b"1", b"2", topic="T", keys=(QUEUE,))
        held, other = await gateway.received(2)
        old_epoch = gateway.store_epoch
        await gateway.close()
    async with running_store(tmp_path) as store:
        second = await gateway.connect(store)
        assert (second.log_id, second.store_epoch) == (first.log_id, first.store_epoch + 1)
        assert second.last_frame == 1
        again = await gateway.open_group("g", key=QUEUE, start="epoch")
        assert (again.group, again.is_new) == (opened.group, False)
        await gateway.open_stream(again.group, 1, 10, holds=[(held.position, held.grant)])
        assert (await gateway.received(3))[2].position == other.position
        item = AckItem(held.group, held.position, held.grant)
        assert (await gateway.ack(item, epoch=old_epoch))[0][1] == Code.OK
        async with connected(store) as client:
            assert await read_all(client) == [b"1", b"2"]
        await gateway.close()


@pytest.mark.client
async def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """A store killed under load has every acknowledged message after its restart."""
    with Daemons(tmp_path) as daemons:
        daemon = daemons.store("127.0.0.1:9", "store.segment_bytes=4194304")
        acknowledged: list[bytes] = []
        for round_number in range(3):
            client = await RemotingClient.connect(daemon.addresses["store"])

            async def load(worker: int, client: RemotingClient, round_number: int) -> None:
                number = 0
                while client.is_open:
                    body = b"%d-%d-%d" % (round_number, worker, number)
                    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, SEND, body)
                    answered: asyncio.Future[RemotingCommand | None] = (
                        asyncio.get_running_loop().create_future()
                    )
                    client.call(command, answered.set_result)
                    answer = await answered
                    if answer is not None and answer.code == ResponseCode.SUCCESS:
                        acknowledged.append(body)
                    number += 1

            workers = [asyncio.ensure_future(load(n, client, round_number)) for n in range(8)]
            goal = len(acknowledged) + 300
            await eventually(partial(is_longer, acknowledged, goal), "300 more are acked")
            daemon.kill()
            await asyncio.gather(*workers)
            await client.close()
            daemon = daemon.restart()
        client = await RemotingClient.connect(daemon.addresses["store"])
        found = await read_all(client)
        assert set(acknowledged) <= set(found)
        assert len(found) == len(set(found))
        await client.close()


async def test_sends_gather_while_a_commit_is_under_way(tmp_path: Path) -> None:
    """They become one block, however many ticks brought them; if the disk fails, they are told."""
    disk = FaultyDisk(tmp_path / "store")
    async with running_store(tmp_path, disk=disk) as store, connected(store) as client:
        assert (await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"0")).code == 0
        block_count = store.metrics()["blocks_total"]
        for is_broken, wanted in ((False, 0), (True, ResponseCode.SERVICE_NOT_AVAILABLE)):
            disk.go.clear()
            sends = []
            for body in (b"1", b"2", b"3", b"4"):
                send = ask(client, RequestCode.SEND_MESSAGE_V2, SEND, body)
                sends.append(asyncio.ensure_future(send))
                answer = await ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)
                assert answer.code == 0, "a tick has gone by"
            disk.is_broken = is_broken
            disk.go.set()
            answers = await asyncio.gather(*sends)
            assert [answer.code for answer in answers] == [wanted] * 4
            if not is_broken:
                assert store.metrics()["blocks_total"] == block_count + 2


async def test_a_failed_sync_acknowledges_nothing(tmp_path: Path) -> None:
    """After an I/O error every send is SERVICE_NOT_AVAILABLE, also when the disk recovers."""
    disk = FaultyDisk(tmp_path / "store")
    async with running_store(tmp_path, disk=disk) as store, connected(store) as client:
        assert (await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"1")).code == 0
        disk.is_broken = True
        answer = await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"2")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        disk.is_broken = False
        answer = await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"3")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not store.is_healthy
        assert await read_all(client) == [b"1"]


async def test_reads_of_a_backlog_go_on_while_a_commit_takes_its_time(tmp_path: Path) -> None:
    """They give way to it, but not for ever, and each gets its own answer."""
    disk = FaultyDisk(tmp_path / "store")
    async with running_store(tmp_path, disk=disk) as store, connected(store) as client:
        bodies = [b"%d" % number for number in range(8)]
        for body in bodies:
            assert (await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, body)).code == 0
        disk.go.clear()
        send = asyncio.ensure_future(ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"last"))
        pulls = [
            PULL | {"queueOffset": str(offset), "maxMsgNums": "1"} for offset in range(len(bodies))
        ]
        answers = await asyncio.gather(
            *[ask(client, RequestCode.PULL_MESSAGE, fields) for fields in pulls]
        )
        assert [decode_records(answer.body)[0].body for answer in answers] == bodies
        assert not send.done()
        disk.go.set()
        assert (await send).code == 0


async def test_a_backlog_on_disk_comes_whole_to_every_reader(tmp_path: Path) -> None:
    """After a restart nothing of it is in memory: it is read ahead, and the loop waits for none."""
    bodies = [bytes([number]) * 30_000 for number in range(100)]
    async with running_store(tmp_path) as store, connected(store) as client:
        sends = [ask(client, RequestCode.SEND_MESSAGE_V2, SEND, body=body) for body in bodies]
        assert {answer.code for answer in await asyncio.gather(*sends)} == {0}
    async with running_store(tmp_path) as store:
        clients = [await RemotingClient.connect(store.address) for _ in range(3)]
        for found in await asyncio.gather(*[read_all(client) for client in clients]):
            assert found == bodies
        for client in clients:
            await client.close()


async def test_too_much_pending_is_system_busy(tmp_path: Path) -> None:
    """While the disk hangs, memory is bounded: standard clients are told to come later."""
    disk = FaultyDisk(tmp_path / "store")
    limits = SMALL | {"pending_bytes_max": 1 << 20}
    async with (
        running_store(tmp_path, disk=disk, limits=limits) as store,
        connected(store) as client,
    ):
        assert (await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"1")).code == 0
        disk.go.clear()
        command = RemotingCommand
        sends = [
            asyncio.ensure_future(
                client.request(command(RequestCode.SEND_MESSAGE_V2, SEND, b"x" * 65536), WAIT_S)
            )
            for _ in range(40)
        ]
        fitting = 1 + (1 << 20) // 65536
        await eventually(
            lambda: sum(send.done() for send in sends) >= len(sends) - fitting,
            "all that does not fit is refused while the disk hangs",
        )
        disk.go.set()
        codes = [answer.code for answer in await asyncio.gather(*sends)]
        assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        assert codes.count(ResponseCode.SUCCESS) <= fitting
        assert len(await read_all(client)) == 1 + codes.count(ResponseCode.SUCCESS)


async def test_a_gateway_is_not_read_while_the_disk_hangs(tmp_path: Path) -> None:
    """Frames beyond the bound wait in the socket and are all run when the disk goes on."""
    disk = FaultyDisk(tmp_path / "store")
    limits = SMALL | {"pending_bytes_max": 1 << 20}
    async with running_store(tmp_path, disk=disk, limits=limits, silence_ms_max=60_000) as store:
        gateway = GatewayEnd("gw-1")
        await gateway.connect(store)
        assert gateway.client is not None
        disk.go.clear()
        frames = [gateway.frame_of([b"x" * 65536]) for _ in range(64)]
        sends = [asyncio.ensure_future(gateway.client.request(frame, WAIT_S)) for frame in frames]
        server = store.local_handler()
        assert isinstance(server, StoreServer)
        await eventually(lambda: server.counters.busy > 0, "the gateway is paused")
        assert not any(send.done() for send in sends)
        assert store.metrics()["pending_bytes"] < 4 << 20
        disk.go.set()
        answers = await asyncio.gather(*sends)
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        await gateway.close()


async def test_a_full_store_refuses_sends_and_goes_on_with_the_rest(tmp_path: Path) -> None:
    """Full: sends are SERVICE_NOT_AVAILABLE with a remark; reads and acks go on."""
    limits = {"disk_free_bytes_min": 0, "log_bytes_max": 4 << 20}
    async with running_store(tmp_path, limits=limits, segment_bytes=1 << 20) as store:
        gateway = GatewayEnd("gw-1")
        await gateway.connect(store)
        opened = await gateway.open_group("g", key=QUEUE)
        await gateway.open_stream(opened.group, 1, 10_000)
        stored, refused = 0, None
        while refused is None:
            answer = await gateway.send(b"x" * 60_000, topic="T", keys=(QUEUE,))
            refused = answer.refused.get(0)
            stored += 0 if refused else 1
        assert refused[0] == Code.MASTER_PERSISTENCE_TIMEOUT
        async with connected(store) as client:
            answer = await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"x" * 60_000)
            assert (answer.code, bool(answer.remark)) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
            assert len(await read_all(client)) == stored
        await gateway.received(stored)
        await gateway.ack_all()
        await gateway.close()


# ── who may ask ─────────────────────────────────────────────────────────────────────────


async def test_with_a_credential_nobody_else_is_heard(tmp_path: Path) -> None:
    """Unsigned requests and wrong signatures are NO_PERMISSION; a signed HELLO opens the rest."""
    auth = ClusterAuth(access_key="tidegate", secret="very secret")
    hello = RemotingCommand(
        PrivateCode.HELLO, None, encode_body(Hello(gateway="gw-1", gateway_epoch=0))
    )
    async with running_store(tmp_path, auth=auth) as store, connected(store) as client:
        for secret in ("", "wrong", "very secret"):
            for command in (hello, RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG)):
                if secret:
                    sign(command, "tidegate", secret)
                answer = await client.request(command, WAIT_S)
                is_right = secret == "very secret"
                assert (answer.code == ResponseCode.NO_PERMISSION) is not is_right
        answer = await client.request(RemotingCommand(RequestCode.GET_BROKER_CONFIG), WAIT_S)
        assert answer.code == ResponseCode.SUCCESS


def test_beyond_loopback_a_credential_is_needed(tmp_path: Path) -> None:
    """A store that others can reach refuses to start without cluster_auth."""
    with pytest.raises(ConfigError, match="cluster_auth"):
        Store(store_config(tmp_path, bind="0.0.0.0:0"))


async def test_a_folder_has_one_store(tmp_path: Path) -> None:
    """Two processes that append to one log would destroy it; it is free again after the end."""
    async with running_store(tmp_path) as store:
        other = FolderLock(str(store.config.data))
        with pytest.raises(ConfigError, match=r"store\.data: .* is in use by another store"):
            await other.acquire(wait_s=0)
    await other.acquire(wait_s=0)
    other.release()
