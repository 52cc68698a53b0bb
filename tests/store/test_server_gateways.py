"""A gateway at a real store, over a socket: frames, streams, pop, queues, presence, fences."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from protocols.canonical import QueueKind, queue_key
from protocols.errors import Code
from protocols.remoting import private, sending, settling
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import FRAME_ITEMS_MAX, PrivateCode
from protocols.remoting.settling import AckAction, AckItem
from store.app import Store
from tests.store.engine_kit import body_of
from tests.support.store_server import WAIT_S, GatewayEnd, connected, running_store

QUEUE = queue_key("", QueueKind.FILTER, "a/+")
PINNED = queue_key("", QueueKind.AMQP, "/q")
PATIENT = {"silence_ms_max": 60_000, "lost_ms_max": 60_000, "lease_ms": 60_000}
"""A gateway end of these tests renews nothing and is silent while the machine does other things."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with running_store(tmp_path, **PATIENT) as store:
        yield store


@pytest.fixture
async def gateway(store: Store) -> AsyncIterator[GatewayEnd]:
    end = GatewayEnd("gw-1")
    await end.connect(store)
    yield end
    await end.close()


async def test_hello_tells_what_kind_of_store_it_is(store: Store) -> None:
    """HELLO names cluster, broker, log and epoch, and whether it keeps the directory."""
    end = GatewayEnd("gw-1")
    answer = await end.connect(store, join=False)
    assert (answer.cluster, answer.broker) == ("DefaultCluster", "broker-a")
    assert answer.is_directory_store
    assert answer.store_epoch == 1
    assert answer.log_id
    await end.close()


async def test_a_frame_is_answered_with_positions_and_offsets(gateway: GatewayEnd) -> None:
    """Every item of a frame gets a log position and the next offset of its message queue."""
    answer = await gateway.send(b"1", b"2")
    assert list(answer.offsets) == [0, 1]
    assert answer.positions[0] < answer.positions[1]
    assert (await gateway.send(b"3")).offsets[0] == 2


async def test_frames_of_one_read_run_in_order(gateway: GatewayEnd) -> None:
    """Frames sent back to back are all answered, in the order of their numbers."""
    assert gateway.client is not None
    frames = [gateway.frame_of([b"x"]) for _ in range(20)]
    answers = await asyncio.gather(*[gateway.client.request(frame, WAIT_S) for frame in frames])
    offsets = [sending.decode_send_answer(answer.body).offsets[0] for answer in answers]
    assert offsets == list(range(20))


async def test_settle_finds_a_frame_that_ran_and_spends_one_that_did_not(
    gateway: GatewayEnd,
) -> None:
    """settle(n) gives the old answer, or makes sure that n never runs."""
    ran = await gateway.send(b"1")
    told = await gateway.ask(
        PrivateCode.SETTLE,
        private.Settle(gateway="gw-1", gateway_epoch=gateway.epoch, frame=1),
        private.SettleAnswer,
    )
    assert told.did_run
    assert sending.decode_send_answer(told.answer).positions == ran.positions
    told = await gateway.ask(
        PrivateCode.SETTLE,
        private.Settle(gateway="gw-1", gateway_epoch=gateway.epoch, frame=2),
        private.SettleAnswer,
    )
    assert not told.did_run
    assert gateway.client is not None
    late = await gateway.client.request(gateway.frame_of([b"late"], number=2), WAIT_S)
    assert late.code != ResponseCode.SUCCESS


async def test_a_malformed_frame_costs_its_connection_only(
    store: Store, gateway: GatewayEnd
) -> None:
    """A SEND whose tables do not fit ends the connection; another gateway goes on."""
    other = GatewayEnd("gw-2")
    await other.connect(store)
    assert gateway.client is not None
    lost = asyncio.Event()
    gateway.client.peer.on_lost(lambda peer: lost.set())
    bad = RemotingCommand(PrivateCode.SEND, None, b"\xff" * 40, is_binary=True)
    gateway.client.send_nowait([bad])
    await asyncio.wait_for(lost.wait(), WAIT_S)
    await other.send(b"1")
    await other.close()


async def test_private_bodies_that_are_none_are_refused(gateway: GatewayEnd) -> None:
    """A msgpack body of another shape is answered, with a remark, and the connection goes on."""
    answer = await gateway.request(PrivateCode.GROUP_OPEN, b"\xc1nonsense")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "GroupOpen" in answer.remark
    await gateway.send(b"1")


async def test_a_frame_before_hello_is_refused(store: Store) -> None:
    """Private codes need a HELLO with a gateway epoch."""
    async with connected(store) as client:
        end = GatewayEnd("nobody")
        answer = await client.request(end.frame_of([b"1"]), WAIT_S)
        assert answer.code == ResponseCode.NO_PERMISSION


# ── streams ─────────────────────────────────────────────────────────────────────────────


async def test_a_stream_gets_what_its_credit_allows(gateway: GatewayEnd) -> None:
    """Credit is a total: deliveries stop there and go on when it rises."""
    opened = await gateway.open_group("g", topic="t", start="earliest")
    await gateway.open_stream(opened.group, 1, 2)
    await gateway.send(*[b"%d" % n for n in range(5)])
    await gateway.received(2)
    gateway.allow(1, 5)
    await gateway.received(5)
    assert [item.position for item in gateway.deliveries] == sorted(
        item.position for item in gateway.deliveries
    )


async def test_one_frame_carries_a_record_once(gateway: GatewayEnd) -> None:
    """Streams that want the same message share its bytes in the DELIVER of a tick."""
    for number in range(3):
        opened = await gateway.open_group(f"g{number}", key=QUEUE)
        await gateway.open_stream(opened.group, number, 10)
    await gateway.send(b"shared", keys=(QUEUE,))
    await gateway.received(3)
    assert len(gateway.frames) == 1
    assert len(gateway.frames[0].records) == 1
    assert {item.stream for item in gateway.deliveries} == {0, 1, 2}


async def test_competing_streams_share_a_group(gateway: GatewayEnd) -> None:
    """Two streams of one group get a message each, and together all of them once."""
    opened = await gateway.open_group("g", key=QUEUE)
    await gateway.open_stream(opened.group, 1, 100)
    await gateway.open_stream(opened.group, 2, 100)
    await gateway.send(*[b"%d" % n for n in range(10)], keys=(QUEUE,))
    await gateway.received(10)
    assert len({item.position for item in gateway.deliveries}) == 10
    assert {item.stream for item in gateway.deliveries} == {1, 2}


async def test_a_released_delivery_comes_back_as_never_sent(gateway: GatewayEnd) -> None:
    """RELEASE returns an entry in place; the attempt does not count; its old grant is void."""
    opened = await gateway.open_group("g", key=QUEUE)
    await gateway.open_stream(opened.group, 1, 1)
    await gateway.send(b"1", keys=(QUEUE,))
    first = (await gateway.received(1))[0]
    await gateway.ack(AckItem(first.group, first.position, first.grant, AckAction.RELEASE))
    gateway.allow(1, 2)
    again = (await gateway.received(2))[1]
    assert (again.position, again.attempt) == (first.position, 1)
    assert again.grant > first.grant
    results = await gateway.ack(AckItem(first.group, first.position, first.grant))
    assert results[0][1] == Code.INVALID_RECEIPT_HANDLE


async def test_closing_a_stream_returns_its_deliveries(gateway: GatewayEnd) -> None:
    """What a closed stream held goes to the next one, attempt 2."""
    opened = await gateway.open_group("g", key=QUEUE)
    await gateway.open_stream(opened.group, 1, 10)
    await gateway.send(b"1", keys=(QUEUE,))
    await gateway.received(1)
    await gateway.do(PrivateCode.STREAM_CLOSE, private.StreamClose(stream=1))
    await gateway.open_stream(opened.group, 2, 10)
    again = (await gateway.received(2))[1]
    assert (again.stream, again.attempt) == (2, 2)


async def test_lowered_credit_is_answered_after_what_it_allowed(gateway: GatewayEnd) -> None:
    """STREAM_CREDIT as a request: once answered, nothing beyond the lower total comes."""
    opened = await gateway.open_group("g", key=QUEUE)
    await gateway.open_stream(opened.group, 1, 100)
    body = settling.encode_credits(((1, 0),))
    answer = await gateway.request(PrivateCode.STREAM_CREDIT, body)
    assert answer.code == ResponseCode.SUCCESS
    await gateway.send(b"1", keys=(QUEUE,))
    assert gateway.deliveries == []


async def test_a_lost_connection_is_resumed_with_what_the_gateway_holds(
    store: Store, gateway: GatewayEnd
) -> None:
    """Reopened within the second, held deliveries stay held and the rest comes again."""
    opened = await gateway.open_group("g", key=QUEUE)
    await gateway.open_stream(opened.group, 1, 2)
    await gateway.send(b"1", b"2", keys=(QUEUE,))
    held, dropped = await gateway.received(2)
    await gateway.close()
    await gateway.connect(store)
    await gateway.open_stream(opened.group, 1, 10, holds=[(held.position, held.grant)])
    again = (await gateway.received(3))[2]
    assert again.position == dropped.position
    results = await gateway.ack(AckItem(held.group, held.position, held.grant))
    assert results[0][1] == Code.OK


async def test_deliveries_of_a_lost_gateway_go_to_another(tmp_path: Path) -> None:
    """A gateway that does not come back loses its deliveries after a moment, and its lease."""
    async with running_store(tmp_path, **(PATIENT | {"lost_ms_max": 200})) as store:
        gateway, other = GatewayEnd("gw-1"), GatewayEnd("gw-2")
        await gateway.connect(store)
        opened = await gateway.open_group("g", key=QUEUE)
        await gateway.open_stream(opened.group, 1, 10)
        await gateway.send(b"1", keys=(QUEUE,))
        await gateway.received(1)
        await other.connect(store)
        await other.open_stream(opened.group, 9, 10)
        await gateway.close()
        assert (await other.received(1))[0].attempt == 2
        body = private.Join(gateway="gw-1", instance="another process")
        await other.ask(PrivateCode.JOIN, body, private.Joined)  # long before the term is over
        await other.close()


async def test_a_silent_gateway_loses_its_presence(tmp_path: Path) -> None:
    """Silence ends streams; frames are refused until a HELLO with a fresh lease."""
    async with running_store(tmp_path, **(PATIENT | {"silence_ms_max": 700})) as store:
        gateway = GatewayEnd("gw-1")
        await gateway.connect(store)
        opened = await gateway.open_group("g", key=QUEUE)
        await gateway.open_stream(opened.group, 1, 10)
        await gateway.until(lambda: bool(gateway.ended))
        assert gateway.ended[0].stream == 1
        assert gateway.client is not None
        refused = await gateway.client.request(gateway.frame_of([b"1"]), WAIT_S)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        stale = private.Hello(
            gateway="gw-1", gateway_epoch=gateway.epoch, lease_renewed_ms_ago=3_600_000
        )
        answer = await gateway.do(PrivateCode.HELLO, stale)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "lease" in answer.remark
        await gateway.close()


async def test_a_store_that_was_stopped_does_not_blame_its_gateways(tmp_path: Path) -> None:
    """Time in which the store itself did not run ends no lease and no presence."""
    async with running_store(tmp_path, lease_ms=500, silence_ms_max=500) as store:
        gateway = GatewayEnd("gw-1")
        await gateway.connect(store)
        time.sleep(1.2)  # noqa: ASYNC251 - the whole process stands still
        for _ in range(20):  # turns of the loop: its timer comes first
            await asyncio.sleep(0)
        renew = private.Renew(gateway="gw-1", gateway_epoch=gateway.epoch, applied=0)
        assert (await gateway.ask(PrivateCode.RENEW, renew, private.Renewed)).is_live
        await gateway.send(b"heard")
        await gateway.close()


async def test_a_fenced_epoch_is_told_to_go(store: Store, gateway: GatewayEnd) -> None:
    """After FENCE its streams end and its frames are answered GO_AWAY."""
    opened = await gateway.open_group("g", key=QUEUE)
    await gateway.open_stream(opened.group, 1, 10)
    other = GatewayEnd("gw-2")
    await other.connect(store)
    fence = private.Fence(gateway="gw-1", gateway_epoch=gateway.epoch)
    assert (await other.do(PrivateCode.FENCE, fence)).code == ResponseCode.SUCCESS
    await gateway.until(lambda: bool(gateway.ended))
    assert gateway.ended[0].code == Code.PRECONDITION_FAILED
    assert gateway.client is not None
    refused = await gateway.client.request(gateway.frame_of([b"1"]), WAIT_S)
    assert refused.code == ResponseCode.GO_AWAY
    await other.close()


async def test_a_higher_owner_epoch_takes_the_session_over(
    store: Store, gateway: GatewayEnd
) -> None:
    """The old owner's stream ends; the new one gets what was in flight, with packet id."""
    opened = await gateway.open_group("s", key=QUEUE, owner_epoch=4, is_inherited=True)
    await gateway.open_stream(opened.group, 1, 10)
    await gateway.send(b"1", keys=(QUEUE,))
    first = (await gateway.received(1))[0]
    mark = settling.MarkItem(first.group, first.position, first.grant, 17, 1)
    body = settling.encode_marks(gateway.store_epoch, [mark])
    answer = await gateway.request(PrivateCode.MARK, body)
    assert settling.decode_ack_results(answer.body)[0][1] == Code.OK
    other = GatewayEnd("gw-2")
    await other.connect(store)
    await other.open_group("s", key=QUEUE, owner_epoch=5, is_inherited=True)
    await gateway.until(lambda: bool(gateway.ended))
    assert gateway.ended[0].code == Code.PRECONDITION_FAILED
    resumed = await other.open_stream(opened.group, 1, 0, is_resuming=True)
    assert resumed.in_flight_count == 1
    again = (await other.received(1))[0]
    assert (again.position, again.packet_id, again.stage) == (first.position, 17, 1)
    stale = private.GroupOpen(
        name="s", reads=[private.ReadItem(tag=0, key=QUEUE)], owner_epoch=4, is_inherited=True
    )
    refused = await gateway.do(PrivateCode.GROUP_OPEN, stale)
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    await other.close()


async def test_what_was_in_flight_comes_back_frame_by_frame(
    store: Store, gateway: GatewayEnd
) -> None:
    """Thousands of deliveries of a session hold up nobody else; what is new follows them."""
    count = 3 * FRAME_ITEMS_MAX
    opened = await gateway.open_group("s", key=QUEUE, is_inherited=True)
    await gateway.open_stream(opened.group, 1, 2 * count)
    for start in range(0, count, FRAME_ITEMS_MAX):
        await gateway.send(*(b"%d" % (start + n) for n in range(FRAME_ITEMS_MAX)), keys=(QUEUE,))
    await gateway.received(count)
    await gateway.close()
    other = GatewayEnd("gw-2")
    await other.connect(store)
    await other.send(b"new", keys=(QUEUE,))
    resuming = other.open_stream(opened.group, 1, 2 * count, is_resuming=True)
    resumed, _ = await asyncio.gather(resuming, other.hello())
    assert len(other.frames) <= 1
    assert resumed.in_flight_count == count
    await other.received(count + 1)
    bodies = [body_of(record) for record in other.bodies]
    assert bodies == [*(b"%d" % n for n in range(count)), b"new"]
    assert all(len(frame.each()) <= FRAME_ITEMS_MAX for frame in other.frames)
    await other.close()


# ── pop and queues ──────────────────────────────────────────────────────────────────────


async def test_a_pop_waits_for_its_first_message(store: Store, gateway: GatewayEnd) -> None:
    """A long poll is answered when a message becomes visible, not before."""
    opened = await gateway.open_group("g", key=QUEUE)
    waiting = asyncio.ensure_future(gateway.pop(opened.group, wait_ms=5000))
    await gateway.hello()
    assert not waiting.done()
    await gateway.send(b"1", keys=(QUEUE,))
    body = await waiting
    assert [item.stream for item in body.deliveries] == [0]
    assert (await gateway.pop(opened.group)).deliveries == []


async def test_an_invisible_time_ends(gateway: GatewayEnd) -> None:
    """What is not acked in time is popped again as the second attempt."""
    opened = await gateway.open_group("g", key=QUEUE)
    await gateway.send(b"1", keys=(QUEUE,))
    first = (await gateway.pop(opened.group, invisible_ms=50)).deliveries[0]
    again = (await gateway.pop(opened.group, wait_ms=5000)).deliveries[0]
    assert (again.position, again.attempt) == (first.position, 2)


async def test_an_amqp_queue_exists_from_create_to_drop(gateway: GatewayEnd) -> None:
    """A created queue takes entries and counts exactly; a dropped one refuses them as gone."""
    created = private.QueueCreate(key=PINNED, name="/q")
    assert (await gateway.do(PrivateCode.QUEUE_CREATE, created)).code == ResponseCode.SUCCESS
    await gateway.open_group("amqp//q", key=PINNED)
    await gateway.send(b"1", b"2", keys=(PINNED,), is_primary=False)
    asked = private.QueueStatRequest(key=PINNED, group="amqp//q")
    counts = await gateway.ask(PrivateCode.QUEUE_STAT, asked, private.QueueCounts)
    assert (counts.ready_count, counts.stored_count) == (2, 2)
    purge = private.QueuePurge(key=PINNED, group="amqp//q")
    purged = await gateway.ask(PrivateCode.QUEUE_PURGE, purge, private.QueueCounts)
    assert purged.ready_count == 2
    drop = private.QueueDrop(key=PINNED, group="amqp//q")
    await gateway.ask(PrivateCode.QUEUE_DROP, drop, private.QueueCounts)
    answer = await gateway.send(b"3", keys=(PINNED,), is_primary=False)
    assert answer.refused[0][0] == Code.NOT_FOUND


async def test_dropping_a_group_ends_its_streams(gateway: GatewayEnd) -> None:
    """GROUP_DROP tells the streams of the group."""
    opened = await gateway.open_group("g", key=QUEUE)
    await gateway.open_stream(opened.group, 1, 10)
    await gateway.do(PrivateCode.GROUP_DROP, private.GroupDrop(name="g"))
    await gateway.until(lambda: bool(gateway.ended))
    assert gateway.ended[0].code == Code.NOT_FOUND


# ── directory ───────────────────────────────────────────────────────────────────────────


async def put(
    gateway: GatewayEnd, key: str, value: bytes, if_version: int | None = None
) -> tuple[bool, private.DirectoryRecord]:
    write = private.DirectoryWrite(key=key, value=value, if_version=if_version)
    body = private.DirectoryPut(gateway=gateway.name, gateway_epoch=gateway.epoch, writes=[write])
    answer = await gateway.ask(PrivateCode.DIRECTORY_PUT, body, private.DirectoryPutAnswer)
    return answer.results[0]


async def test_the_loser_of_a_conditional_write_gets_the_winner(gateway: GatewayEnd) -> None:
    """put with if_version loses to a record that is there already."""
    won, record = await put(gateway, "session/a", b"1", 0)
    assert won
    lost, standing = await put(gateway, "session/a", b"2", 0)
    assert not lost
    assert (standing.value, standing.version) == (b"1", record.version)


async def test_a_reader_waits_for_the_next_record(store: Store, gateway: GatewayEnd) -> None:
    """DIRECTORY_READ with wait_ms is answered by the write it waited for."""
    _, record = await put(gateway, "k", b"1")
    asked = private.DirectoryRead(after=record.version, wait_ms=5000)
    waiting = asyncio.ensure_future(
        gateway.ask(PrivateCode.DIRECTORY_READ, asked, private.DirectoryRecords)
    )
    await gateway.hello()
    assert not waiting.done()
    other = GatewayEnd("gw-2")
    await other.connect(store)
    await put(other, "k", b"2")
    records = (await waiting).records
    assert records[0].key in ("k", "gateway/gw-2")
    await other.close()


async def test_a_barrier_waits_for_every_gateway_with_a_lease(
    store: Store, gateway: GatewayEnd
) -> None:
    """DIRECTORY_WAIT is answered when the last gateway reports that it has applied."""
    other = GatewayEnd("gw-2")
    await other.connect(store)
    _, record = await put(gateway, "filter/x", b"1")

    async def renew(end: GatewayEnd) -> private.Renewed:
        body = private.Renew(gateway=end.name, gateway_epoch=end.epoch, applied=record.version)
        return await end.ask(PrivateCode.RENEW, body, private.Renewed)

    asked = private.DirectoryWait(version=record.version, timeout_ms=60_000)
    waiting = asyncio.ensure_future(
        gateway.ask(PrivateCode.DIRECTORY_WAIT, asked, private.DirectoryWaited)
    )
    assert (await renew(gateway)).is_live
    assert not waiting.done()
    assert (await renew(other)).is_live
    waited = await waiting
    assert waited.is_applied
    assert waited.ended == []
    await other.close()


async def test_a_barrier_names_the_leases_that_ended(tmp_path: Path) -> None:
    """A gateway that stops renewing does not hold the barrier up, but must be fenced."""
    async with running_store(tmp_path, lease_ms=2000) as store:
        gateway, silent = GatewayEnd("gw-1"), GatewayEnd("gw-2")
        await gateway.connect(store)
        await silent.connect(store)
        _, record = await put(gateway, "filter/x", b"1")
        asked = private.DirectoryWait(version=record.version, timeout_ms=60_000)
        waiting = asyncio.ensure_future(
            gateway.ask(PrivateCode.DIRECTORY_WAIT, asked, private.DirectoryWaited)
        )
        renew = private.Renew(gateway="gw-1", gateway_epoch=gateway.epoch, applied=record.version)
        while not waiting.done():
            renewed = await gateway.ask(PrivateCode.RENEW, renew, private.Renewed)
            assert renewed.is_live
            await asyncio.wait([waiting], timeout=0.1)
        waited = await waiting
        assert waited.is_applied
        assert waited.ended == [("gw-2", silent.epoch)]
        await gateway.close()
        await silent.close()


async def test_two_live_processes_of_one_name(store: Store, gateway: GatewayEnd) -> None:
    """The second of two gateways with one name is refused while the first lives."""
    body = private.Join(gateway="gw-1", instance="another process")
    answer = await gateway.request(PrivateCode.JOIN, msgspec.msgpack.encode(body))
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert int(answer.fields["code"]) == Code.PRECONDITION_FAILED


async def test_a_store_without_a_directory_answers_renew_only(tmp_path: Path) -> None:
    """RENEW is a sign of life at every store; the rest of the directory is at one."""
    async with running_store(tmp_path, directory=False) as store:
        end = GatewayEnd("gw-1")
        end.epoch = 5
        await end.connect(store, join=False)
        renew = private.Renew(gateway="gw-1", gateway_epoch=5, applied=0)
        assert (await end.ask(PrivateCode.RENEW, renew, private.Renewed)).is_live
        join = msgspec.msgpack.encode(private.Join(gateway="gw-1", instance="i"))
        answer = await end.request(PrivateCode.JOIN, join)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await end.close()
