"""The tables behind the handlers, without a socket: waits, presence, clients, locks, handles."""

import asyncio
from dataclasses import dataclass

from store.handlers.client_table import (
    LOCK_S,
    SILENCE_S_MAX,
    ClientTable,
    Membership,
    QueueLocks,
    Subscription,
)
from store.handlers.presence import GatewayKey, Presences
from store.handlers.waits import Waits
from tests.support.patience import PATIENCE_S

KEY = GatewayKey("gw-1", 7)


@dataclass(eq=False)
class FakeLink:
    """A connection by its address alone."""

    address: str = "127.0.0.1:1"
    is_open: bool = True


# ── waits ───────────────────────────────────────────────────────────────────────────────


async def test_a_wait_ends_once_by_its_wake() -> None:
    """A wake that answers ends the wait; its deadline does not answer again."""
    waits, answers = Waits(waiting_max=10), []
    waits.add(
        FakeLink(),
        ("a", "b"),
        wait_s=0.01,
        wake=lambda: answers.append("woken") is None,
        expire=lambda: answers.append("expired"),
    )
    waits.wake("b")
    waits.wake("a")
    await asyncio.sleep(0.03)
    assert answers == ["woken"]
    assert len(waits) == 0


async def test_a_wait_goes_on_when_its_wake_found_nothing() -> None:
    """A wake that finds nothing leaves the wait to its deadline."""
    waits, expired = Waits(waiting_max=10), asyncio.Event()
    waits.add(FakeLink(), ("a",), wait_s=0.01, wake=lambda: False, expire=expired.set)
    waits.wake("a")
    assert len(waits) == 1
    await asyncio.wait_for(expired.wait(), PATIENCE_S)
    assert len(waits) == 0


async def test_too_many_waits_are_answered_at_once() -> None:
    """Beyond the bound a long poll is a short one."""
    waits, expired = Waits(waiting_max=1), []
    for number in range(2):
        waits.add(
            FakeLink(),
            ("a",),
            wait_s=60,
            wake=lambda: True,
            expire=lambda number=number: expired.append(number),
        )
    assert expired == [1]
    waits.close()


async def test_a_closed_connection_is_not_woken() -> None:
    """Nothing is taken for a connection that has gone."""
    waits, link, woken = Waits(waiting_max=10), FakeLink(), []
    waits.add(link, ("a",), wait_s=60, wake=lambda: woken.append(1) is None, expire=lambda: None)
    link.is_open = False
    waits.wake("a")
    assert not woken
    assert len(waits) == 0


# ── presence ────────────────────────────────────────────────────────────────────────────


def test_presence_ends_a_second_after_its_data_connection() -> None:
    """A lost data connection ends presence after one second, not after three."""
    presences = Presences(lost_s=1, silence_s=3)
    data, control = object(), object()
    presence = presences.enter(KEY, data, is_control=False, now=10)
    presences.enter(KEY, control, is_control=True, now=10)
    presences.leave(presence, data, 11)
    presence.heard = 11.9
    assert presences.take_ended(11.9) == []
    assert presences.take_ended(12.0) == [presence]
    assert presence.is_ended


def test_presence_ends_after_three_seconds_of_silence() -> None:
    """A gateway that says nothing on open connections is gone after three seconds."""
    presences = Presences(lost_s=1, silence_s=3)
    presence = presences.enter(KEY, object(), is_control=False, now=10)
    assert presences.deadline() == 13
    assert presences.take_ended(12.9) == []
    assert presences.take_ended(13.0) == [presence]


def test_an_ended_epoch_enters_only_with_a_fresh_lease() -> None:
    """After its presence ended, a HELLO counts only if the lease is younger than the connection."""
    presences = Presences(lost_s=1, silence_s=3)
    presences.enter(KEY, object(), is_control=False, now=10)
    presences.take_ended(13)
    assert not presences.may_enter(KEY, renewed_at=13.5, opened_at=14)
    assert presences.may_enter(KEY, renewed_at=14.1, opened_at=14)


def test_a_reconnect_in_time_keeps_presence() -> None:
    """A new data connection within the second is the same presence."""
    presences = Presences(lost_s=1, silence_s=3)
    first, second = object(), object()
    presence = presences.enter(KEY, first, is_control=False, now=10)
    presences.leave(presence, first, 10.5)
    assert presences.enter(KEY, second, is_control=False, now=11) is presence
    assert presences.take_ended(12) == []


# ── clients ─────────────────────────────────────────────────────────────────────────────


def beat(table: ClientTable, link: FakeLink, client_id: str, *, now: float = 0.0) -> set[str]:
    return table.heartbeat(
        link,
        client_id,
        language="JAVA",
        version=493,
        producer_groups=["p"],
        memberships=[Membership("g", subscriptions=(Subscription("t", version=int(now)),))],
        now=now,
    )


def test_membership_changes_are_told_once() -> None:
    """A first heartbeat changes its group; a repeated one does not; a lost link does again."""
    table, link = ClientTable(), FakeLink()
    assert beat(table, link, "b") == {"g"}
    assert beat(table, link, "b", now=1) == set()
    assert beat(table, FakeLink(), "a") == {"g"}
    assert [client.client_id for client in table.consumers("g")] == ["a", "b"]
    assert table.lost(link) == {"g"}
    assert [client.client_id for client in table.consumers("g")] == ["a"]
    assert [client.client_id for client in table.producers("p")] == ["a"]


def test_silent_clients_are_dropped() -> None:
    """A client without a heartbeat for two minutes is no member."""
    table = ClientTable()
    beat(table, FakeLink(), "a", now=5)
    assert table.take_silent(5 + SILENCE_S_MAX - 1) == set()
    assert table.take_silent(5 + SILENCE_S_MAX) == {"g"}
    assert table.consumers("g") == []


def test_unregistering_leaves_the_named_group_only() -> None:
    """35 with a consumer group leaves that group; the producer stays."""
    table, link = ClientTable(), FakeLink()
    beat(table, link, "a")
    assert table.unregister(link, "a", consumer_group="g") == {"g"}
    assert len(table.producers("p")) == 1


def test_the_newest_subscription_counts() -> None:
    """Among members with different subscriptions of a topic the highest version is taken."""
    table = ClientTable()
    beat(table, FakeLink(), "a", now=3)
    beat(table, FakeLink(), "b", now=9)
    found = table.subscription("g", "t")
    assert found is not None
    assert found.version == 9


def test_an_order_lock_is_a_lease() -> None:
    """One client holds a queue's lock until it gives it back or the lease ends."""
    locks = QueueLocks()
    assert locks.lock("g", "t", 0, "a", now=0)
    assert not locks.lock("g", "t", 0, "b", now=LOCK_S - 1)
    assert locks.lock("g", "t", 0, "b", now=LOCK_S)
    locks.unlock("g", "t", 0, "a")
    assert not locks.lock("g", "t", 0, "a", now=LOCK_S + 1)
    locks.unlock("g", "t", 0, "b")
    assert locks.lock("g", "t", 0, "a", now=LOCK_S + 1)
