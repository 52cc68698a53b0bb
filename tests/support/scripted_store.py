"""
A name server and a store in memory, to test the gateway's side of the private wire.

They speak the real requests over the real in-memory transport; what a test scripts is *when*
the store answers: ``held`` SEND frames wait until ``release``, ``drop`` cuts the connections.
"""

from array import array
from collections.abc import Sequence

import msgspec

from protocols.canonical import QueueKind, queue_key
from protocols.errors import Code
from protocols.remoting import delivering, private, sending, settling
from protocols.remoting.bodies import (
    BrokerData,
    QueueData,
    RouteData,
    TopicList,
    encode_body,
    encode_cluster_info,
    encode_route,
)
from protocols.remoting.bodies import ClusterInfo as ClusterInfoBody
from protocols.remoting.client import RemotingClient, local_pair
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from protocols.remoting.peer import Peer, Receive
from protocols.remoting.private import PrivateCode
from protocols.remoting.records import decode_record


class ScriptedNameServer:
    """Knows the stores and topics a test gives it."""

    def __init__(self) -> None:
        self.stores: dict[str, ScriptedStore] = {}
        self.is_down = False

    async def connect(self) -> RemotingClient:
        return local_pair(self)

    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        if self.is_down:
            peer.abort()
            return
        peer.send([self._answer(command) for command in commands])

    def _answer(self, command: RemotingCommand) -> RemotingCommand:
        topics = {topic for store in self.stores.values() for topic in store.topics}
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {name: self._broker(name) for name in self.stores}
            info = ClusterInfoBody(broker_addr_table=table, cluster_addr_table={"c": [*table]})
            return command.answer(0, body=encode_cluster_info(info))
        if command.code == RequestCode.GET_TOPICS_BY_CLUSTER:
            return command.answer(0, body=encode_body(TopicList(topic_list=sorted(topics))))
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            topic = command.fields["topic"]
            if topic not in topics:
                return command.answer(ResponseCode.TOPIC_NOT_EXIST)
            queues = [
                QueueData(
                    broker_name=name,
                    read_queue_nums=store.topics[topic],
                    write_queue_nums=store.topics[topic],
                )
                for name, store in self.stores.items()
                if topic in store.topics
            ]
            brokers = [self._broker(queue.broker_name) for queue in queues]
            route = RouteData(queue_datas=queues, broker_datas=brokers)
            return command.answer(0, body=encode_route(route))
        return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def _broker(self, name: str) -> BrokerData:
        return BrokerData(cluster="c", broker_name=name, broker_addrs={0: f"{name}:1"})


class ScriptedStore:
    """Stores frames in a list, grants what a test tells it to, keeps a directory."""

    def __init__(self, name: str, *, directory: bool = False) -> None:
        self.name = name
        self.is_directory = directory
        self.topics: dict[str, int] = {}
        self.epoch = 1
        self.is_holding = False
        """SEND frames are run, but answered only by ``release``."""

        self.loses_frames = False
        """SEND frames vanish, unanswered and not run."""

        self.lost_count = 0
        """How many did."""

        self.wants_renewal = False
        """HELLO on a data connection is refused until a lease was renewed."""

        self.unread_count = 0
        """Reads of the directory that are refused."""

        self.frames: list[sending.SendFrame] = []
        self.answers: dict[int, bytes] = {}
        self.held: list[tuple[Peer, RemotingCommand]] = []
        self.acks: list[settling.AckItem] = []
        self.ack_epochs: list[int] = []
        self.fenced: list[tuple[str, int]] = []
        self.groups: dict[str, int] = {}
        self.group_opens: list[private.GroupOpen] = []
        self.streams: dict[int, private.StreamOpen] = {}
        self.stream_opens: list[private.StreamOpen] = []
        self.credits: dict[int, int] = {}
        self.in_flight: list[delivering.DeliveryItem] = []
        self.refusal = 0
        self.peers: list[Peer] = []
        self.data: Peer | None = None
        self.records: list[private.DirectoryRecord] = []
        self.applied: dict[tuple[str, int], int] = {}
        self.ended: list[tuple[str, int]] = []
        self._reads: list[tuple[Peer, RemotingCommand, private.DirectoryRead]] = []
        self._waits: list[tuple[Peer, RemotingCommand, private.DirectoryWait]] = []
        self.position = 1000

    async def connect(self, push: Receive) -> RemotingClient:
        return local_pair(self, push=push)

    # ── for tests ───────────────────────────────────────────────────────────────────────

    def stored(self) -> list[tuple[str, tuple[bytes, ...], bytes]]:
        """(topic, light queue keys, body) of every item of every frame that ran, in order."""
        found = []
        for frame in self.frames:
            at = 0
            for item in frame.items:
                record = decode_record(frame.records[at : at + item.length])
                at += item.length
                send_set = frame.sets[item.set_index]
                found.append((send_set.topic, send_set.keys, record.body))
        return found

    def release(self) -> None:
        """Answer what was held."""
        self.is_holding = False
        held, self.held = self.held, []
        for peer, command in held:
            peer.send([command.answer(0, body=self.answers[self._number(command)])])

    def drop(self) -> None:
        """Cut all connections."""
        peers, self.peers = self.peers, []
        for peer in peers:
            peer.abort()

    def deliver(
        self,
        stream: int,
        position: int,
        record: bytes,
        *,
        grant: int = 1,
        packet_id: int = 0,
        tags: tuple[int, ...] = (0,),
    ) -> None:
        """Push one delivery."""
        item = delivering.DeliveryItem(stream, 0, position, grant, 1, 1, 0, packet_id, 1, tags)
        body = delivering.encode_deliver(self.epoch, [(position, record)], [item])
        assert self.data is not None
        command = RemotingCommand(PrivateCode.DELIVER, None, body, flag=ONEWAY_FLAG)
        self.data.send([command])

    def end_lease(self, gateway: str) -> None:
        """The directory store ends a lease: by a record, as always."""
        epoch = next(r.version for r in reversed(self.records) if r.key == f"gateway/{gateway}")
        self.applied.pop((gateway, epoch), None)
        self.ended.append((gateway, epoch))
        self._write(f"gateway/{gateway}", None)

    # ── requests ────────────────────────────────────────────────────────────────────────

    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        if peer not in self.peers:
            self.peers.append(peer)
        for command in commands:
            answer = self._answer(peer, command)
            if answer is not None:
                peer.send([answer])

    def _answer(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        if command.code == RequestCode.GET_TOPIC_CONFIG:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic here")
        if command.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            self.topics[command.fields["topic"]] = int(command.fields["writeQueueNums"])
            return command.answer()
        handler = getattr(self, "_" + PrivateCode(command.code).name.lower())
        return handler(peer, command)  # type: ignore[no-any-return]  # by name of the code

    def _hello(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        hello = msgspec.msgpack.decode(command.body, type=private.Hello)
        if not hello.is_control:
            if self.wants_renewal:
                return command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark="renew first")
            self.data = peer
        answer = private.HelloAnswer(
            cluster="c",
            broker=self.name,
            advertise="127.0.0.1:1",
            log_id="l",
            store_epoch=self.epoch,
            is_directory_store=self.is_directory,
            last_frame=max(self.answers, default=0),
        )
        return command.answer(body=private.encode_body(answer))

    @staticmethod
    def _number(command: RemotingCommand) -> int:
        return sending.decode_send(command.body).frame

    def _send(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        if self.refusal:
            return command.answer(self.refusal)
        if self.loses_frames:
            self.lost_count += 1
            return None
        frame = sending.decode_send(bytes(command.body))
        self.frames.append(frame)
        positions, offsets = array("Q"), array("q")
        for index, item in enumerate(frame.items):
            self.position += 10
            positions.append(self.position)
            is_primary = frame.sets[item.set_index].flags & sending.SetFlag.IS_PRIMARY
            offsets.append(index if is_primary else -1)
        answer = sending.SendAnswer(frame.frame, positions, offsets, {})
        self.answers[frame.frame] = sending.encode_send_answer(answer)
        if self.is_holding:
            self.held.append((peer, command))
            return None
        return command.answer(body=self.answers[frame.frame])

    def _settle(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        asked = msgspec.msgpack.decode(command.body, type=private.Settle)
        body = self.answers.get(asked.frame)
        answer = private.SettleAnswer(did_run=body is not None, answer=body or b"")
        return command.answer(body=private.encode_body(answer))

    def _ack(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        epoch, rows = settling.decode_acks(command.body)
        items = [settling.AckItem._make(row) for row in rows]
        self.acks += items
        self.ack_epochs.append(epoch)
        results = [(item.grant + 1, Code.OK) for item in items]
        return command.answer(body=settling.encode_ack_results(results))

    def _mark(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        _, items = settling.decode_marks(command.body)
        if command.is_oneway:
            return None
        results = [(item.grant, int(Code.OK)) for item in items]
        return command.answer(body=settling.encode_ack_results(results))

    def _once_find(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """It has none of them."""
        return command.answer(body=bytes(len(command.body) // 16))

    def _group_open(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        asked = msgspec.msgpack.decode(command.body, type=private.GroupOpen)
        self.group_opens.append(asked)
        is_new = asked.name not in self.groups
        number = self.groups.setdefault(asked.name, len(self.groups) + 1)
        opened = private.GroupOpened(group=number, cursor=0, is_new=is_new)
        return command.answer(body=private.encode_body(opened))

    def _group_drop(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        self.groups.pop(msgspec.msgpack.decode(command.body, type=private.GroupDrop).name, None)
        return command.answer()

    def _stream_open(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        asked = msgspec.msgpack.decode(command.body, type=private.StreamOpen)
        self.streams[asked.stream] = asked
        self.stream_opens.append(asked)
        self.credits[asked.stream] = asked.credit
        opened = private.StreamOpened(in_flight_count=0)
        return command.answer(body=private.encode_body(opened))

    def _stream_close(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        asked = msgspec.msgpack.decode(command.body, type=private.StreamClose)
        self.streams.pop(asked.stream, None)
        return command.answer()

    def _stream_credit(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        self.credits.update(settling.decode_credits(command.body))
        return None if command.is_oneway else command.answer()

    def _fence(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        asked = msgspec.msgpack.decode(command.body, type=private.Fence)
        self.fenced.append((asked.gateway, asked.gateway_epoch))
        return command.answer()

    # ── the directory ───────────────────────────────────────────────────────────────────

    def _join(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        asked = msgspec.msgpack.decode(command.body, type=private.Join)
        record = self._write(f"gateway/{asked.gateway}", b"lease")
        self.applied[asked.gateway, record.version] = 0
        joined = private.Joined(gateway_epoch=record.version, lease_ms=3000, version=record.version)
        return command.answer(body=private.encode_body(joined))

    def _renew(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        asked = msgspec.msgpack.decode(command.body, type=private.Renew)
        self.wants_renewal = False
        key = (asked.gateway, asked.gateway_epoch)
        is_live = not self.is_directory or key in self.applied
        if key in self.applied:
            self.applied[key] = asked.applied
        self._wake()
        return command.answer(body=private.encode_body(private.Renewed(is_live=is_live)))

    def _leave(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        return command.answer()

    def _directory_put(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        asked = msgspec.msgpack.decode(command.body, type=private.DirectoryPut)
        results: list[tuple[bool, private.DirectoryRecord]] = []
        for write in asked.writes:
            stands = next((r for r in reversed(self.records) if r.key == write.key), None)
            version = stands.version if stands is not None and stands.value is not None else 0
            if write.if_version is not None and write.if_version != version:
                results.append((False, stands or private.DirectoryRecord(key=write.key)))
            else:
                results.append((True, self._write(write.key, write.value)))
        return command.answer(body=private.encode_body(private.DirectoryPutAnswer(results=results)))

    def _directory_read(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        asked = msgspec.msgpack.decode(command.body, type=private.DirectoryRead)
        if self.unread_count:
            self.unread_count -= 1
            return command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark="not now")
        if asked.wait_ms and len(self.records) <= asked.after:
            self._reads.append((peer, command, asked))
            return None
        return self._read_answer(command, asked)

    def _read_answer(
        self, command: RemotingCommand, asked: private.DirectoryRead
    ) -> RemotingCommand:
        news = [record for record in self.records if record.version > asked.after]
        body = private.DirectoryRecords(records=news, head=len(self.records))
        return command.answer(body=private.encode_body(body))

    def _directory_wait(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        asked = msgspec.msgpack.decode(command.body, type=private.DirectoryWait)
        self._waits.append((peer, command, asked))
        self._wake()
        return None

    def _write(self, key: str, value: bytes | None) -> private.DirectoryRecord:
        record = private.DirectoryRecord(key=key, value=value, version=len(self.records) + 1)
        self.records.append(record)
        self._wake()
        return record

    def _wake(self) -> None:
        reads, self._reads = self._reads, []
        for peer, command, read in reads:
            if len(self.records) > read.after:
                peer.send([self._read_answer(command, read)])
            else:
                self._reads.append((peer, command, read))
        waits, self._waits = self._waits, []
        for peer, command, wait in waits:
            if all(applied >= wait.version for applied in self.applied.values()):
                body = private.DirectoryWaited(is_applied=True, ended=self.ended)
                peer.send([command.answer(body=private.encode_body(body))])
            else:
                self._waits.append((peer, command, wait))


def filter_key(subject_filter: str, tenant: str = "") -> bytes:
    """The queue key of an MQTT filter queue."""
    return queue_key(tenant, QueueKind.FILTER, subject_filter)
