"""Once-keys whose exchange ended while their store was away."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gateway import resends
from gateway.clusters import routes, tidegate
from gateway.clusters.link import LinkState
from gateway.clusters.selector import rendezvous
from gateway.clusters.tidegate import TidegateLink
from gateway.copies import TARGETS_MAX
from protocols.canonical import (
    ONCE_BYTES,
    RELEASED_ONCE_PREFIX,
    Call,
    Head,
    Message,
    QueueKind,
    QueueRef,
)
from protocols.errors import Code
from protocols.groups import GroupSpec, Read
from tests.support.core import Core, ListSink, call, turns, until
from tests.support.daemons import StoreCluster
from tests.support.patience import PATIENCE_S

KEY = RELEASED_ONCE_PREFIX.ljust(ONCE_BYTES, b"k")


async def test_a_key_that_an_absent_store_may_have_is_told_to_be_unheard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose message came later than the loss is not there; without a loss nobody is asked."""
    monkeypatch.setattr(tidegate, "LOST_S_MAX", 0.0)
    stores = StoreCluster(tmp_path)
    await stores.start("a", "b")
    core = await _core("gw-1", stores, 2)
    pipeline = core.pipeline
    before = pipeline.loss_count
    assert await _released(core, since=before)
    assert await _released(core, since=-1)
    head = Head(subject="t", qos=2, order_key=_client_of(core, "b"))
    await pipeline.send(call(), [Message(head, b"1", once_key=KEY[:-1] + b"o")])
    await stores.stop_store("b")  # with an exchange that has not ended
    await until(lambda: core.cluster.links["b"].state is LinkState.DOWN)
    assert not await _released(core, since=before)
    assert not await _released(core, since=-1)
    assert await _released(core, since=pipeline.loss_count)
    await stores.start_store("b")
    await until(lambda: len(core.cluster.up_links()) == 2)
    assert await _released(core, since=before)
    await core.stop()
    await stores.stop()


async def test_a_store_that_was_lost_a_moment_ago_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told when it is back; the next message under the same key is no repeat then."""
    monkeypatch.setattr(tidegate, "LOST_S_MAX", PATIENCE_S)
    stores = StoreCluster(tmp_path)
    await stores.start("a")
    core = await _core("gw-1", stores, 1)
    message = Message(Head(subject="t", qos=2, order_key="c"), b"1", once_key=KEY)
    (first,) = await core.pipeline.send(call(), [message])
    (again,) = await core.pipeline.send(call(), [message])
    assert again.log_position == first.log_position
    await stores.stop_store("a")
    await until(lambda: core.cluster.links["a"].state is LinkState.LOST)
    released = asyncio.ensure_future(_released(core, since=-1))
    await asyncio.sleep(0)
    await stores.start_store("a")
    assert await released
    (other,) = await core.pipeline.send(call(), [message])
    assert other.log_position > first.log_position
    await core.stop()
    await stores.stop()


async def _released(core: Core, *, since: int) -> bool:
    told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    core.pipeline.release_once(call(), KEY, told.set_result, since=since)
    return await told


async def test_what_comes_again_in_one_tick_is_looked_up_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all clients, and in the order of each; a store is asked once."""
    stores = StoreCluster(tmp_path)
    await stores.start("a")
    core = await _core("gw-1", stores, 1)
    head = Head(subject="t", qos=2, order_key="c")
    messages = [
        Message(head, b"%d" % index, once_key=KEY[:-1] + bytes((index,))) for index in range(20)
    ]
    firsts = await core.pipeline.send(call(), messages[:10])
    asked: list[int] = []
    find_once = TidegateLink.find_once

    async def counted(link: TidegateLink, keys: Sequence[bytes]) -> Sequence[int]:
        asked.append(len(keys))
        return await find_once(link, keys)

    monkeypatch.setattr(TidegateLink, "find_once", counted)
    again = await asyncio.gather(
        *(
            core.pipeline.send(call(f"c{index % 2}"), [message._replace(is_resend=True)])
            for index, message in enumerate(messages)
        )
    )
    assert asked == [20]
    positions = [result.log_position for (result,) in again]
    assert positions[:10] == [first.log_position for first in firsts]
    assert positions[10::2] == sorted(positions[10::2])
    assert positions[11::2] == sorted(positions[11::2])
    assert min(positions[10:]) > max(positions[:10])
    await core.stop()
    await stores.stop()


@pytest.mark.parametrize("is_met", [True, False])
async def test_a_resend_waits_for_the_store_that_may_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_met: bool
) -> None:
    """Whose store was dropped from the routes, also at a gateway that never saw it."""
    monkeypatch.setattr(routes, "FORGET_S", 0.0)
    stores = StoreCluster(tmp_path)
    await stores.start("a", "b")
    core = await _core("gw-1", stores, 2)
    head = Head(subject="t", qos=2, order_key=_client_of(core, "b"))
    message = Message(head, b"1", once_key=KEY)
    (result,) = await core.pipeline.send(call(), [message])
    assert (result.code, result.broker) == (Code.OK, "b")
    await until(lambda: core.directory.get("store/default/b") is not None)
    await stores.stop_store("b")
    if not is_met:
        await core.stop()
        core = await _core("gw-2", stores, 1)
    await until(lambda: {link.broker for link in core.cluster.up_links()} == {"a"})
    await until(lambda: "b" not in core.cluster.routes.brokers)
    resend = message._replace(is_resend=True)
    hurried = replace(call(), is_patient=False)
    (refused,) = await core.pipeline.send(hurried, [resend])
    assert refused.code == Code.HA_NOT_AVAILABLE
    await stores.start_store("b")
    await until(lambda: len(core.cluster.up_links()) == 2)
    (again,) = await core.pipeline.send(call(), [resend])
    assert (again.code, again.broker) == (Code.OK, "b")
    assert again.log_position == result.log_position
    await core.stop()
    await stores.stop()


async def test_a_resend_goes_where_the_first_is_though_a_new_store_would_take_it(
    tmp_path: Path,
) -> None:
    stores = StoreCluster(tmp_path)
    await stores.start("a")
    core = await _core("gw-1", stores, 1)
    head = Head(subject="t", qos=2, order_key=_client_of(core, "b", "a"))
    messages = [Message(head, body, once_key=KEY[:-1] + body) for body in (b"1", b"2")]
    (first,) = await core.pipeline.send(call(), messages[:1])
    await stores.add("b")
    await until(lambda: len(core.cluster.up_links()) == 2)
    await core.cluster.create_topic("mqtt", 4)
    (other,) = await core.pipeline.send(call(), [messages[1]._replace(once_key=b"o" * 16)])
    assert other.broker == "b"
    resends = [message._replace(is_resend=True) for message in messages]
    again, new = await core.pipeline.send(call(), resends)
    assert (again.broker, again.log_position) == ("a", first.log_position)
    assert (new.code, new.broker) == (Code.OK, "b")
    await core.stop()
    await stores.stop()


async def test_all_copies_of_a_message_are_stored_once(tmp_path: Path) -> None:
    """More queues than one record is listed in: no copy is taken for a repeat of another."""
    stores = StoreCluster(tmp_path)
    await stores.start("a")
    core = await _core("gw-1", stores, 1)
    filters = [f"t/{number}" for number in range(TARGETS_MAX + 1)]
    queues = tuple(QueueRef(QueueKind.FILTER, name) for name in filters)
    specs = [
        GroupSpec(name=f"mqtt//{q.name}", reads=(Read(queue=q),)) for q in (queues[0], queues[-1])
    ]
    sinks = [ListSink(), ListSink()]
    streams = [
        await core.streams.open(call(), spec, sink, credit=10)
        for spec, sink in zip(specs, sinks, strict=True)
    ]
    head = Head(subject="t", qos=2, order_key="c", queues=queues)

    async def publish(body: bytes) -> None:
        (result,) = await core.pipeline.send(call(), [Message(head, body, once_key=KEY)])
        assert result.code == Code.OK

    await publish(b"1")
    await publish(b"1 again")
    assert await _released(core, since=-1)
    await publish(b"2")
    for sink in sinks:
        assert [delivery.message.body for delivery in await sink.wait(2)] == [b"1", b"2"]
    for stream in streams:
        await stream.close()
    await core.stop()
    await stores.stop()


async def _core(name: str, stores: StoreCluster, store_count: int) -> Core:
    core = Core(name, stores.name_servers)
    await core.start(store_count=store_count)
    return core


async def _publisher(tmp_path: Path) -> tuple[StoreCluster, Core, Message, Call]:
    """One whose first message is stored, and the message that it sends next."""
    stores = StoreCluster(tmp_path)
    await stores.start("a")
    core = await _core("gw-1", stores, 1)
    head = Head(subject="t", qos=2, order_key="c")
    message, caller = Message(head, b"1", once_key=KEY), call()
    (first,) = await core.pipeline.send(caller, [Message(head, b"0")])
    assert first.code == Code.OK
    return stores, core, message, caller


def _client_of(core: Core, broker: str, *others: str) -> str:
    """A client id whose QoS 2 publishes go to *broker*, were there these stores."""
    names = sorted({broker, *others, *core.cluster.links})
    return next(key for key in map(str, range(100)) if rendezvous(key, names) == broker)


@pytest.mark.parametrize(
    ("is_taken", "expected"), [(True, Code.HA_NOT_AVAILABLE), (False, Code.OK)]
)
async def test_what_a_publisher_that_left_has_just_sent(
    tmp_path: Path, is_taken: bool, expected: Code
) -> None:
    """
    It counts; unless a gateway that stood still reads it together with the news that others serve
    the client.
    """
    stores = StoreCluster(tmp_path)
    await stores.start("a")
    core = await _core("gw-1", stores, 1)
    head = Head(subject="t", qos=2, order_key="c")
    message, caller = Message(head, b"1", once_key=KEY), call()
    codes: list[Code] = []
    for one in (message, message._replace(once_key=b"")):
        core.pipeline.post(caller, [one], lambda results: codes.append(results[0].code))
    core.pipeline.withdraw(caller, is_taken=is_taken)
    core.pipeline.forget(caller)
    await until(lambda: len(codes) == 2)
    assert codes == [expected, Code.OK]
    await core.stop()
    await stores.stop()


async def test_what_never_ran_of_a_publisher_that_left_is_not_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of a gateway whose presence had ended is settled under the next epoch."""
    monkeypatch.setattr(tidegate, "LOST_S_MAX", PATIENCE_S)
    stores, core, message, caller = await _publisher(tmp_path)
    (link,) = core.cluster.links.values()
    assert isinstance(link, TidegateLink)
    with monkeypatch.context() as patched:
        patched.setattr(link._frames, "_write", lambda frame, body: None)  # it is lost on its way
        sent = [
            asyncio.ensure_future(core.pipeline.send(caller, [one]))
            for one in (message, message._replace(once_key=b""))
        ]
        await until(lambda: link._frames.in_flight_count)
        await stores.stop_store("a")
        await until(lambda: link.state is LinkState.LOST)
    core.pipeline.withdraw(caller, is_taken=True)
    await stores.start_store("a")
    (gone,), (plain,) = await asyncio.gather(*sent)
    assert (gone.code, plain.code) == (Code.HA_NOT_AVAILABLE, Code.OK)
    await core.stop()
    await stores.stop()


async def test_what_a_publisher_that_left_had_waiting_is_not_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends it again elsewhere; once that is released, the late one would be a second."""
    monkeypatch.setattr(tidegate, "LOST_S_MAX", PATIENCE_S)
    monkeypatch.setattr(resends, "LOST_S_MAX", PATIENCE_S)
    stores, core, message, caller = await _publisher(tmp_path)
    await stores.stop_store("a")
    (link,) = core.cluster.links.values()
    await until(lambda: link.state is LinkState.LOST)
    waiting = [
        asyncio.ensure_future(core.pipeline.send(caller, [one]))
        for one in (message, message._replace(once_key=b""), message._replace(is_resend=True))
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    core.pipeline.withdraw(caller, is_taken=True)
    await stores.start_store("a")
    (gone,), (plain,), (late,) = await asyncio.gather(*waiting)
    assert (gone.code, plain.code, late.code) == (
        Code.HA_NOT_AVAILABLE,
        Code.OK,
        Code.HA_NOT_AVAILABLE,
    )
    await core.stop()
    await stores.stop()


async def test_what_waits_of_a_publisher_that_left_is_stored_unless_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was posted in the tick of its connection's end, and its store was away."""
    monkeypatch.setattr(tidegate, "LOST_S_MAX", PATIENCE_S)
    stores, core, message, _ = await _publisher(tmp_path)
    await stores.stop_store("a")
    (link,) = core.cluster.links.values()
    await until(lambda: link.state is LinkState.LOST)
    codes: dict[str, list[Code]] = {}
    callers = {name: call(name) for name in ("comes again", "stays away")}
    plain = call("at QoS 1")
    core.pipeline.post(plain, [message._replace(once_key=b"")], lambda results: None)
    assert not core.pipeline.may_store_late(plain)
    for number, (name, caller) in enumerate(callers.items()):
        told = codes[name] = []
        one = message._replace(once_key=KEY[:-1] + bytes((number,)))
        assert not core.pipeline.may_store_late(caller)  # though another publisher's has come
        core.pipeline.post(caller, [one], lambda results, told=told: told.append(results[0].code))
        core.pipeline.withdraw(caller, is_taken=False)
        core.pipeline.forget(caller)
        assert core.pipeline.may_store_late(caller)
    await turns()
    assert all([core.pipeline.may_store_late(caller) for caller in callers.values()])
    core.pipeline.withdraw(callers["comes again"], is_taken=True)
    assert not core.pipeline.may_store_late(callers["comes again"])
    await stores.start_store("a")
    await until(lambda: all(codes.values()))
    assert codes == {"comes again": [Code.HA_NOT_AVAILABLE], "stays away": [Code.OK]}
    assert not core.pipeline.may_store_late(callers["stays away"])
    await core.stop()
    await stores.stop()


async def test_nothing_under_a_once_key_outlives_the_lease_that_it_came_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A gateway that stood still reads what its clients had sent before they left, and finds that its
    lease is over: others serve them, and nobody waits for it to end their exchanges.
    """
    monkeypatch.setattr(tidegate, "LOST_S_MAX", PATIENCE_S)
    stores, core, message, caller = await _publisher(tmp_path)
    (link,) = core.cluster.links.values()
    assert isinstance(link, TidegateLink)
    plain = message._replace(once_key=b"")
    with monkeypatch.context() as patched:
        patched.setattr(link._frames, "_write", lambda frame, body: None)  # it is lost on its way
        sent = [core.pipeline.send(caller, [one]) for one in (message, plain)]
        sent = [asyncio.ensure_future(one) for one in sent]
        await until(lambda: link._frames.in_flight_count)
        sent += [
            asyncio.ensure_future(core.pipeline.send(caller, [one])) for one in (message, plain)
        ]
        await asyncio.sleep(0)
        epoch = core.presence.epoch
        core.presence.ended()
        sent += [
            asyncio.ensure_future(core.pipeline.send(caller, [one])) for one in (message, plain)
        ]
        await turns()
    codes = [result.code for (result,) in await asyncio.gather(*sent)]
    assert codes == [Code.HA_NOT_AVAILABLE, Code.OK] * 3
    await until(lambda: core.presence.epoch > epoch and core.directory._is_joined)
    (again,) = await core.pipeline.send(caller, [message])
    assert again.code == Code.OK
    await core.stop()
    await stores.stop()
