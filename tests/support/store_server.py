"""A real store on a socket, and a gateway's end of the private codes, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from protocols.daemon.config import ClusterAuth
from protocols.remoting import delivering, private, sending, settling
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Peer
from protocols.remoting.private import PrivateCode
from protocols.remoting.records import encode_properties, encode_record
from store.app import Store
from store.config import StoreConfig
from store.disk import Disk
from tests.support.patience import PATIENCE_S

T = TypeVar("T")
WAIT_S = PATIENCE_S
POLL_S = 0.005


def store_config(folder: Path, **changes: Any) -> StoreConfig:
    """A small store in *folder*, with the directory, on any port."""
    settings: dict[str, Any] = {
        "bind": "127.0.0.1:0",
        "data": folder / "store",
        "segment_bytes": 4 << 20,
        "directory": True,
        "limits": {"disk_free_bytes_min": 0, "log_bytes_max": 64 << 20},
    }
    return StoreConfig(**(settings | changes))


async def eventually(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something that sends no event has come about."""
    for _ in range(int(WAIT_S / POLL_S)):
        if is_so():
            return
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"not within {WAIT_S} s: {what}")


@asynccontextmanager
async def running_store(
    folder: Path,
    *,
    disk: Disk | None = None,
    auth: ClusterAuth | None = None,
    auth_of_users: Mapping[str, bool] | None = None,
    **changes: Any,
) -> AsyncIterator[Store]:
    """Start a store, stop it at the end; *auth_of_users* is its block ``auth``."""
    if auth_of_users is not None:
        changes["auth"] = auth_of_users
    store = Store(store_config(folder, **changes), disk=disk, auth=auth)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


@asynccontextmanager
async def connected(store: Store) -> AsyncIterator[RemotingClient]:
    """A plain remoting client."""
    client = await RemotingClient.connect(store.address)
    try:
        yield client
    finally:
        await client.close()


async def ask(
    client: RemotingClient, code: int, fields: dict[str, str] | None = None, body: bytes = b""
) -> RemotingCommand:
    """One standard request."""
    return await client.request(RemotingCommand(code, fields, body), WAIT_S)


class GatewayEnd:
    """What a gateway is to a store: a connection, frames, streams."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.store_epoch = 0
        self.frame = 0
        self.deliveries: list[delivering.DeliveryItem] = []
        self.bodies: list[bytes] = []
        """Record of each delivery, same order."""

        self.frames: list[delivering.DeliverBody] = []
        self.ended: list[private.StreamEnded] = []
        self.client: RemotingClient | None = None
        self._changed = asyncio.Event()

    async def connect(
        self, store: Store, *, join: bool = True, is_control: bool = False, ago_ms: int = 0
    ) -> private.HelloAnswer:
        """HELLO, and JOIN the first time."""
        self.client = await RemotingClient.connect(store.address, push=self._pushed)
        if join and not self.epoch:
            body = private.Join(gateway=self.name, instance=f"{self.name}-1")
            joined = await self.ask(PrivateCode.JOIN, body, private.Joined)
            self.epoch = joined.gateway_epoch
        return await self.hello(is_control=is_control, ago_ms=ago_ms)

    async def hello(self, *, is_control: bool = False, ago_ms: int = 0) -> private.HelloAnswer:
        body = private.Hello(
            gateway=self.name,
            gateway_epoch=self.epoch,
            is_control=is_control,
            lease_renewed_ms_ago=ago_ms,
        )
        answer = await self.ask(PrivateCode.HELLO, body, private.HelloAnswer)
        self.store_epoch = answer.store_epoch
        return answer

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()
            self.client = None

    async def request(self, code: int, body: bytes = b"") -> RemotingCommand:
        assert self.client is not None
        return await self.client.request(RemotingCommand(code, None, body, is_binary=True), WAIT_S)

    async def ask(self, code: int, body: msgspec.Struct, kind: type[T]) -> T:
        """A msgpack request that must succeed."""
        answer = await self.request(code, msgspec.msgpack.encode(body))
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return msgspec.msgpack.decode(answer.body, type=kind)

    async def do(self, code: int, body: msgspec.Struct) -> RemotingCommand:
        """A msgpack request without an answer body."""
        return await self.request(code, msgspec.msgpack.encode(body))

    def frame_of(
        self,
        messages: Sequence[bytes],
        *,
        topic: str = "t",
        queue_id: int = 0,
        keys: Sequence[bytes] = (),
        is_primary: bool = True,
        number: int = 0,
        order_hash: int = 0,
    ) -> RemotingCommand:
        """A SEND with one set."""
        self.frame = number or self.frame + 1
        flags = sending.SetFlag.IS_PRIMARY if is_primary else 0
        text = encode_properties((("UNIQ_KEY", f"m{self.frame}"),))
        records = [encode_record(topic, body, properties_text=text) for body in messages]
        one_set = sending.encode_set(sending.SendSet(int(flags), topic, queue_id, tuple(keys)))
        items = [
            sending.ITEM.pack(len(record), 0, 1, order_hash, 0, sending.NO_ONCE_KEY)
            for record in records
        ]
        body = sending.encode_send(
            self.epoch, self.frame, self.frame - 1, [one_set], items, records
        )
        return RemotingCommand(PrivateCode.SEND, None, body, is_binary=True)

    async def send(self, *messages: bytes, **options: Any) -> sending.SendAnswer:
        """A frame that must run."""
        assert self.client is not None
        answer = await self.client.request(self.frame_of(messages, **options), WAIT_S)
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return sending.decode_send_answer(answer.body)

    async def open_group(
        self, name: str, *, topic: str = "", key: bytes = b"", **options: Any
    ) -> private.GroupOpened:
        read = private.ReadItem(tag=0, topic=topic, key=key)
        spec = private.GroupOpen(name=name, reads=[read], **options)
        return await self.ask(PrivateCode.GROUP_OPEN, spec, private.GroupOpened)

    async def open_stream(
        self, group: int, stream: int, credit: int, **options: Any
    ) -> private.StreamOpened:
        body = private.StreamOpen(group=group, stream=stream, credit=credit, **options)
        return await self.ask(PrivateCode.STREAM_OPEN, body, private.StreamOpened)

    def allow(self, stream: int, total: int) -> None:
        assert self.client is not None
        body = settling.encode_credits(((stream, total),))
        self.client.peer.send_oneway(
            RemotingCommand(PrivateCode.STREAM_CREDIT, None, body, is_binary=True)
        )

    async def ack(self, *items: settling.AckItem, epoch: int = 0) -> list[tuple[int, int]]:
        body = settling.encode_acks(epoch or self.store_epoch, items)
        answer = await self.request(PrivateCode.ACK, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return settling.decode_ack_results(answer.body)

    async def ack_all(self) -> None:
        """Everything delivered so far is done."""
        items = [settling.AckItem(d.group, d.position, d.grant) for d in self.deliveries]
        assert all(code == 20000 for _, code in await self.ack(*items))

    async def pop(self, group: int, count: int = 32, **options: Any) -> delivering.DeliverBody:
        options.setdefault("invisible_ms", 30_000)
        body = private.Pop(group=group, count=count, **options)
        answer = await self.request(PrivateCode.POP, msgspec.msgpack.encode(body))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return delivering.decode_deliver(answer.body)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for pushed frames until *is_so*."""
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def received(self, count: int) -> list[delivering.DeliveryItem]:
        """Wait until *count* deliveries have come in all; never more."""
        await self.until(lambda: len(self.deliveries) >= count)
        assert len(self.deliveries) == count
        return self.deliveries

    def _pushed(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            if command.code == PrivateCode.DELIVER:
                body = delivering.decode_deliver(command.body)
                self.frames.append(body)
                self.deliveries += body.each()
                self.bodies += [body.records[d.record_index] for d in body.each()]
            elif command.code == PrivateCode.STREAM_ENDED:
                self.ended.append(msgspec.msgpack.decode(command.body, type=private.StreamEnded))
        self._changed.set()
