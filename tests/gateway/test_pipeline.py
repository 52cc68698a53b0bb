"""The pipeline against scripted stores: frames, order, copies, refusals, routing again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.clusters.frames import FRAME_BYTES_MIN, FRAMES_AHEAD
from gateway.config import GatewayConfig
from gateway.matching import encode_row, row_key
from gateway.policy import Policy
from protocols import clock
from protocols.canonical import Head, Message, QueueKind, QueueRef, SendResults
from protocols.directory import Record, Subscription
from protocols.errors import Code
from protocols.remoting import sending
from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Peer
from protocols.remoting.records import MORE_BYTES_MAX, decode_record
from tests.support.core import Core, call, messages, turns, until
from tests.support.patience import PATIENCE_S
from tests.support.scripted_store import ScriptedNameServer, ScriptedStore, filter_key


class World:
    """Two stores, one gateway core."""

    def __init__(self) -> None:
        self.name_server = ScriptedNameServer()
        self.a = ScriptedStore("a", directory=True)
        self.b = ScriptedStore("b")
        for store in (self.a, self.b):
            store.topics["mqtt"] = 2
            self.name_server.stores[store.name] = store
        self.core = Core(
            "gw-1",
            [self.name_server.connect],
            local_stores={"a": self.a.connect, "b": self.b.connect},
        )

    def stored(self) -> list[tuple[str, tuple[bytes, ...], bytes]]:
        return self.a.stored() + self.b.stored()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.core.start(store_count=2)
    yield world
    await world.core.stop()


def subscribe(world: World, subject_filter: str, owner: str = "mqtt//c", **ref: object) -> QueueRef:
    """A row in the matching table, as the directory would bring it."""
    queue = QueueRef(QueueKind.FILTER, subject_filter)._replace(**ref)  # type: ignore[arg-type]  # fields
    row = Subscription(subject_filter, queue, owner)
    world.core.matching.apply([Record(row_key(row, ""), encode_row(row, ""), 1)])
    world.core.pipeline.tables_changed()
    return queue


async def test_a_message_is_stored_in_topic_and_filter_queue(world: World) -> None:
    """One record: the topic's message queue and every matching light queue list it."""
    subscribe(world, "plants/+/temp")
    results = await world.core.pipeline.send(call(), messages("plants/9/temp", b"21"))
    assert results[0].code == Code.OK
    assert results[0].matched_count == 1
    assert len(results[0].message_id) == 32
    assert results[0].queue_offset == 0
    assert world.stored() == [("mqtt", (filter_key("plants/+/temp"),), b"21")]


async def test_first_level_that_is_a_topic_takes_the_message(world: World) -> None:
    """A subject whose first level exists as a topic goes there, others to the catch-all."""
    world.a.topics["plants"] = 1
    await world.core.cluster.routes.poll()
    await world.core.pipeline.send(call(), messages("plants/9", b"1"))
    await world.core.pipeline.send(call(), messages("other/9", b"2"))
    assert ("plants", (), b"1") in world.a.stored()
    assert ("mqtt", (), b"2") in world.stored()


async def test_a_cleared_retained_value_is_cleared_everywhere(world: World) -> None:
    """A value has one store; its end goes to all, wherever the address was kept before."""
    keep = Head(subject="kept/x", retain=True)
    await world.core.pipeline.send(call(), [Message(keep, b"v")])
    clear = Head(subject="kept/x", retain=True, clears_retained=True)
    await world.core.pipeline.send(call(), [Message(clear, b"")])
    retained = QueueRef(QueueKind.RETAINED, "$retained").key()
    bodies = [
        [body for _, keys, body in store.stored() if retained in keys]
        for store in (world.a, world.b)
    ]
    assert sorted(bodies) == [[b""], [b"v", b""]]


async def test_a_topic_is_found_though_the_clock_was_set_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was missing a moment ago is asked for again, not for as long as the jump was."""
    now_ms = 1_800_000_000_000
    monkeypatch.setattr(clock, "wall_ms", lambda: now_ms)
    sender = call()
    head = Head(subject="late", topic="late")
    (missing,) = await world.core.pipeline.send(sender, [Message(head, b"1")])
    assert missing.code == Code.TOPIC_NOT_FOUND
    world.a.topics["late"] = 1
    now_ms -= 3_600_000
    (found,) = await world.core.pipeline.send(sender, [Message(head, b"2")])
    assert found.code == Code.OK


async def test_what_only_the_server_publishes(world: World) -> None:
    """Clients of MQTT do not write `$SYS`, nor names that are shared subscriptions."""
    for subject in ("$SYS/broker/uptime", "$share/team/t"):
        (result,) = await world.core.pipeline.send(call(), messages(subject, b"1"))
        assert result.code == Code.FORBIDDEN


async def test_catch_all_is_created_on_first_use() -> None:
    """Without the topic ``mqtt``, the first publish creates it on every store."""
    world = World()
    for store in (world.a, world.b):
        store.topics.clear()
    await world.core.start(store_count=2)
    results = await world.core.pipeline.send(call(), messages("x/y", b"1"))
    assert results[0].code == Code.OK
    assert world.a.topics == world.b.topics == {"mqtt": 4}
    await world.core.stop()


def large(index: int) -> bytes:
    """A body that waits for no other frame's answer."""
    return b"%d" % index + bytes(FRAME_BYTES_MIN)


async def test_posts_of_a_tick_leave_in_one_frame(world: World) -> None:
    """What many connections post in one tick is one frame with all of it."""
    waits = [world.core.pipeline.send(call(f"c{i}"), messages("x", b"%d" % i)) for i in range(50)]
    await asyncio.gather(*waits)
    frames = world.a.frames + world.b.frames
    assert len(frames) == 1
    assert len(frames[0].items) == 50


async def test_few_frames_in_flight_at_most(world: World) -> None:
    """A further frame waits and takes everything that came meanwhile."""
    full = FRAMES_AHEAD
    world.a.is_holding = world.b.is_holding = True
    sender = call("ordered")
    tasks = []
    for index in range(full + 4):
        tasks.append(
            asyncio.ensure_future(
                world.core.pipeline.send(sender, messages("x", large(index), order_key="k"))
            )
        )
        if index < full:  # a frame of its own
            await until(lambda count=index + 1: len(world.a.frames + world.b.frames) == count)
        await turns()
    assert len(world.a.frames + world.b.frames) == full
    for store in (world.a, world.b):
        store.release()
    await asyncio.gather(*tasks)
    frames = world.a.frames + world.b.frames
    assert [len(frame.items) for frame in frames] == [1] * full + [4]
    assert [body for _, _, body in world.stored()] == [large(i) for i in range(full + 4)]


async def test_results_come_in_the_order_of_the_posts(world: World) -> None:
    """A later post of the same call is not answered before an earlier one."""
    answered: list[str] = []

    def note(name: str) -> "object":
        def done(results: SendResults) -> None:
            answered.append(name)

        return done

    world.a.is_holding = True
    sender = call("p")
    post = world.core.pipeline.post
    post(sender, [Message(Head(subject="x", broker="a"), b"1")], note("first"))  # type: ignore[arg-type]  # a plain callback
    post(sender, [Message(Head(subject="x", broker="b"), b"2")], note("second"))  # type: ignore[arg-type]  # a plain callback
    await until(lambda: world.a.held and world.b.frames)
    await asyncio.sleep(0.01)
    assert answered == []
    world.a.release()
    await until(lambda: len(answered) == 2)
    assert answered == ["first", "second"]


async def test_pinned_queues_elsewhere_get_copies(world: World) -> None:
    """The primary is in one store; a store that keeps another target gets its own copy."""
    q1 = QueueRef(QueueKind.AMQP, "/q1", store="a")
    q2 = QueueRef(QueueKind.AMQP, "/q2", store="b")
    head = Head(subject="x", queues=(q1, q2))
    results = await world.core.pipeline.send(call(), [Message(head, b"1")])
    assert results[0].matched_count == 2
    primaries = [
        bool(frame.sets[0].flags & sending.SetFlag.IS_PRIMARY)
        for frame in world.a.frames + world.b.frames
    ]
    assert sorted(primaries) == [False, True]
    assert [keys for _, keys, _ in world.stored()] == [(q1.key(),), (q2.key(),)]


async def test_pinned_only_has_no_primary(world: World) -> None:
    """A message for AMQP queues alone stands in no message queue."""
    queue = QueueRef(QueueKind.AMQP, "/q", store="b")
    head = Head(subject="x", topic="vhost", queues=(queue,), is_in_topic=False)
    results = await world.core.pipeline.send(call(protocol="amqp"), [Message(head, b"1")])
    assert (results[0].code, results[0].broker, results[0].queue_id) == (Code.OK, "b", -1)
    assert world.b.stored() == [("vhost", (queue.key(),), b"1")]


async def test_nobody_wants_it(world: World) -> None:
    """No topic, no queue: nothing is stored, and the result says that nothing matched."""
    head = Head(subject="x", queues=(), is_in_topic=False)
    results = await world.core.pipeline.send(call(), [Message(head, b"1")])
    assert (results[0].code, results[0].matched_count) == (Code.OK, 0)
    assert world.stored() == []


async def test_a_store_that_is_down_refuses_what_is_pinned_there(world: World) -> None:
    """If a target's store is away, nothing is stored anywhere."""
    q1 = QueueRef(QueueKind.AMQP, "/q1", store="a")
    q2 = QueueRef(QueueKind.AMQP, "/q2", store="nowhere")
    head = Head(subject="x", queues=(q1, q2))
    hurried = replace(call(), is_patient=False)
    results = await world.core.pipeline.send(hurried, [Message(head, b"1")])
    assert results[0].code == Code.HA_NOT_AVAILABLE
    assert world.stored() == []


async def test_retained_goes_to_its_address_store(world: World) -> None:
    """A retained publish is also listed in ``$retained`` of one store; empty clears it."""
    key = QueueRef(QueueKind.RETAINED, "$retained").key()
    sender = call("p")
    await world.core.pipeline.send(sender, messages("a/b", b"v", b"", retain=True))
    frames = world.a.frames + world.b.frames
    retained = [
        (frame, item)
        for frame in frames
        for item in frame.items
        if frame.sets[item.set_index].flags & sending.SetFlag.IS_RETAINED
    ]
    assert len(retained) == 2
    assert all(frame.sets[item.set_index].keys[-1] == key for frame, item in retained)
    flags = [bool(item.flags & sending.ItemFlag.CLEARS_RETAINED) for _, item in retained]
    assert flags == [False, True]


async def test_unframed_messages_follow_a_new_table(world: World) -> None:
    """A message that waits for a free slot goes to a queue that was added meanwhile."""
    world.a.is_holding = world.b.is_holding = True
    sender = call("p")
    sends = []
    for index in range(FRAMES_AHEAD + 1):
        sends.append(
            asyncio.ensure_future(
                world.core.pipeline.send(sender, messages("t/1", large(index), order_key="k"))
            )
        )
        if index < FRAMES_AHEAD:  # a frame of its own
            await until(lambda count=index + 1: len(world.a.held) + len(world.b.held) == count)
    await turns()  # posted and flushed: the last has no slot
    subscribe(world, "t/+")
    for store in (world.a, world.b):
        store.release()
    await asyncio.gather(*sends)
    framed = [()] * FRAMES_AHEAD
    assert [keys for _, keys, _ in world.stored()] == [*framed, (filter_key("t/+"),)]


async def test_a_lost_answer_is_settled(world: World) -> None:
    """After a reconnect the store tells what ran: nothing is sent twice, nothing is lost."""
    world.a.is_holding = True
    head = Head(subject="x", broker="a")
    send = asyncio.ensure_future(world.core.pipeline.send(call(), [Message(head, b"1")]))
    await until(lambda: world.a.held)
    world.a.is_holding = False
    world.a.drop()
    results = await asyncio.wait_for(send, PATIENCE_S)
    assert results[0].code == Code.OK
    assert [body for _, _, body in world.a.stored()] == [b"1"]


async def test_a_frame_that_never_ran_is_sent_again(world: World) -> None:
    """Settle says no: the items go into a new frame, in order, by today's table."""
    world.a.loses_frames = True
    head = Head(subject="t/1", broker="a")
    sender = call()
    sends = [
        asyncio.ensure_future(world.core.pipeline.send(sender, [Message(head, b"%d" % index)]))
        for index in range(3)
    ]
    await until(lambda: world.a.lost_count)
    world.a.loses_frames = False
    subscribe(world, "t/+")
    world.a.drop()
    for results in await asyncio.wait_for(asyncio.gather(*sends), PATIENCE_S):
        assert results[0].code == Code.OK
    assert [body for _, _, body in world.a.stored()] == [b"0", b"1", b"2"]
    assert {keys for _, keys, _ in world.a.stored()} == {(filter_key("t/+"),)}


async def test_a_connection_lost_while_settling_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first answer gave back is still there when the second never comes."""
    world.a.loses_frames = True
    head = Head(subject="t/1", broker="a")
    sender = call()
    sends = []
    for index in range(FRAMES_AHEAD + 1):
        message = Message(head, large(index))
        sends.append(asyncio.ensure_future(world.core.pipeline.send(sender, [message])))
        if index < FRAMES_AHEAD:  # a frame of its own
            await until(lambda count=index + 1: world.a.lost_count == count)
    await turns()
    world.a.loses_frames = False
    settle = world.a._settle
    asked: list[RemotingCommand] = []

    def drop_the_second(peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        asked.append(command)
        if len(asked) == 2:
            world.a.drop()
            return None
        return settle(peer, command)

    monkeypatch.setattr(world.a, "_settle", drop_the_second)
    world.a.drop()
    for results in await asyncio.wait_for(asyncio.gather(*sends), PATIENCE_S):
        assert results[0].code == Code.OK
    assert len(asked) == FRAMES_AHEAD + 1, "each frame once, the second again"
    sent = [large(index) for index in range(FRAMES_AHEAD + 1)]
    assert [body for _, _, body in world.a.stored()] == sent


async def test_unordered_messages_leave_a_lost_store(world: World) -> None:
    """Without an order key the other store takes them while one is away."""
    world.a.connect_refused = True  # type: ignore[attr-defined]  # read by nobody but this test
    world.name_server.stores["a"].drop()
    world.core.cluster.links["a"].connection.reset("test")  # type: ignore[attr-defined]  # ours
    await until(lambda: world.core.cluster.links["a"].state.value != "up")
    results = await world.core.pipeline.send(call(), messages("x", b"1"))
    assert (results[0].code, results[0].broker) == (Code.OK, "b")


async def test_order_key_keeps_to_one_store_and_queue(world: World) -> None:
    """Messages of one order key share a store and a message queue over all ticks."""
    sender = call("client-7")
    places = set()
    for index in range(10):
        (result,) = await world.core.pipeline.send(
            sender, messages(f"x/{index}", b"1", order_key="client-7")
        )
        places.add((result.broker, result.queue_id))
    assert len(places) == 1


async def test_no_key_goes_round(world: World) -> None:
    """Without a key, ticks alternate over all message queues."""
    places = set()
    for _ in range(8):
        (result,) = await world.core.pipeline.send(call(), messages("x", b"1"))
        places.add((result.broker, result.queue_id))
    assert places == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}


async def test_reserved_properties_are_dropped(world: World) -> None:
    """What only brokers write does not come from clients."""
    head = Head(subject="x/y", broker="a", properties=(("INNER_MULTI_DISPATCH", "q"), ("u", "1")))
    message = Message(head, b"1", properties=(("POP_CK", "z"), ("v", "2")), keys="k1")
    await world.core.pipeline.send(call("me"), [message])
    from protocols.remoting.records import decode_record

    properties = decode_record(world.a.frames[0].records).properties
    assert properties == {
        "UNIQ_KEY": properties["UNIQ_KEY"],
        "TG_SUBJECT": "x/y",
        "TG_PROTOCOL": "mqtt",
        "TG_CLIENT": "me",
        "u": "1",
        "v": "2",
        "KEYS": "k1",
    }


async def test_too_large_is_refused_alone(world: World) -> None:
    """Its neighbours are stored."""
    results = await world.core.pipeline.send(
        call(), messages("x", b"1", b"x" * ((4 << 20) + 1), b"3")
    )
    codes = [result.code for result in results]
    assert codes == [Code.OK, Code.MESSAGE_BODY_TOO_LARGE, Code.OK]
    assert [body for _, _, body in world.stored()] == [b"1", b"3"]


async def test_properties_too_large_are_refused_alone(world: World) -> None:
    """A message that fits no record does not hold up its frame."""
    good, bad = messages("x", b"1", b"2")
    results = await world.core.pipeline.send(
        call(), [good, bad._replace(properties=(("n", "v" * 40_000),)), good]
    )
    codes = [result.code for result in results]
    assert codes == [Code.OK, Code.MESSAGE_PROPERTIES_TOO_LARGE, Code.OK]


async def test_properties_that_no_record_has_room_for(world: World) -> None:
    """The light queues list a record with them; the message queue's has the payload alone."""
    subscribe(world, "x")
    head = Head(subject="x", is_apart=True)
    pairs = [(("n", "v" * size),) for size in (40_000, MORE_BYTES_MAX)]
    results = await world.core.pipeline.send(
        call(),
        [
            Message(head, body, properties=more, expires_at_ms=9_000_000_000_000)
            for body, more in zip((b"1", b"2"), pairs, strict=True)
        ],
    )
    assert [x.code for x in results] == [Code.OK, Code.MESSAGE_PROPERTIES_TOO_LARGE]
    assert results[0].matched_count == 1
    assert world.stored() == [("mqtt", (), b"1"), ("mqtt", (filter_key("x"),), b"1")]
    ((frame,),) = [store.frames for store in (world.a, world.b) if store.frames]
    size = frame.items[0].length
    first, second = decode_record(frame.records[:size]), decode_record(frame.records[size:])
    assert (first.more, second.more) == (b"", b"n\x01" + b"v" * 40_000 + b"\x02")


async def test_unknown_topic(world: World) -> None:
    """A topic that nobody has is refused by name."""
    head = Head(subject="nope", topic="nope")
    (result,) = await world.core.pipeline.send(call(protocol="grpc"), [Message(head, b"1")])
    assert result.code == Code.TOPIC_NOT_FOUND


async def test_back_pressure(world: World) -> None:
    """Above the limit publishers are told to stop, and told once when they may go on."""
    world.a.is_holding = True
    sender = call()
    head = Head(subject="x", broker="a")
    done: list[SendResults] = []
    for _ in range(32):
        world.core.pipeline.post(sender, [Message(head, b"1")] * 1024, done.append)
        await asyncio.sleep(0)
    await until(lambda: world.core.pipeline.is_congested(sender))
    resumed: list[int] = []
    world.core.pipeline.when_clear(lambda: resumed.append(1))
    world.a.release()
    await until(lambda: len(done) == 32)
    assert resumed == [1]
    assert not world.core.pipeline.is_congested(sender)


def throttled(entry: dict[str, str]) -> Policy:
    """What a configuration with this one throttle makes."""
    document = {
        "clusters": {"default": {"namesrv": ["127.0.0.1:9876"]}},
        "routes": [{"name": "default", "to": [{"cluster": "default"}]}],
        "throttle": [entry],
    }
    return Policy.from_config(GatewayConfig.model_validate(document))


@pytest.mark.parametrize(("protocol", "stored"), [("mqtt", 3), ("remoting", 0)])
async def test_of_too_many_at_once_the_first_may_go(
    world: World, protocol: str, stored: int
) -> None:
    """What came in one read is many publishes; a producer's own batch is one."""
    entry = {"name": "few", "per": "client", "publish": "24/h", "burst": "600s"}
    pipeline = world.core.pipeline
    pipeline.use(throttled(entry))
    sender = replace(call("few"), protocol=protocol)
    first = await pipeline.send(sender, messages("t", b"x"))
    assert first[0].code == Code.OK
    results = await pipeline.send(sender, messages("t", *(b"%d" % n for n in range(6))))
    codes = [result.code for result in results]
    assert codes == [Code.OK] * stored + [Code.TOO_MANY_REQUESTS] * (6 - stored)


async def test_a_held_call_is_congested_until_its_messages_went(world: World) -> None:
    """
    ``over: wait``: nothing is refused, its client is not read meanwhile, others are. What came
    together goes one by one.
    """
    entry = {"name": "slow", "per": "client", "publish": "20/s", "burst": "50ms", "over": "wait"}
    pipeline = world.core.pipeline
    pipeline.use(throttled(entry))
    slow, other = call("slow"), call("other")
    loop = asyncio.get_running_loop()
    start, resumed = loop.time(), asyncio.Event()
    batches = messages("t", b"x"), messages("t", b"1", b"2", b"3")
    sends = [asyncio.create_task(pipeline.send(slow, batch)) for batch in batches]
    await until(lambda: pipeline.is_congested(slow))
    assert not pipeline.is_congested(other)
    pipeline.when_clear(resumed.set, slow)
    free = asyncio.Event()
    pipeline.when_clear(free.set, other)
    await asyncio.wait_for(free.wait(), PATIENCE_S)
    assert not resumed.is_set()
    results = [result.code for results in await asyncio.gather(*sends) for result in results]
    assert results == [Code.OK] * 4
    assert loop.time() - start >= 0.14
    await asyncio.wait_for(resumed.wait(), PATIENCE_S)
