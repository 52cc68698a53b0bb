"""Who is next for a client id, and who holds which session."""

import asyncio

from protocols.mqtt.holders import Holders
from protocols.mqtt.turns import Turns


async def test_turns_are_taken_in_order() -> None:
    """One at a time per key; another key does not wait; nothing is left behind."""
    turns, order = Turns(), list[str]()

    async def act(name: str, key: str) -> None:
        await turns.take(key)
        order.append(f"{name} in")
        await asyncio.sleep(0)
        order.append(f"{name} out")
        turns.give(key)

    await asyncio.gather(act("a", "k"), act("b", "k"), act("other", "o"), act("c", "k"))
    mine = [word for word in order if not word.startswith("other")]
    assert mine == ["a in", "a out", "b in", "b out", "c in", "c out"]
    assert order.index("other in") < order.index("b in")
    assert not turns._waiting


async def test_who_gives_up_is_stepped_over() -> None:
    """Cancelled while it waits, or in the moment it was given its turn."""
    turns = Turns()
    await turns.take("k")
    waiting = [asyncio.ensure_future(turns.take("k")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    turns.give("k")  # to the second, which is cancelled before it runs
    waiting[1].cancel()
    await asyncio.wait(waiting)
    assert [one.cancelled() for one in waiting] == [True, True, False]
    turns.give("k")
    assert not turns._waiting


def test_sessions_of_gateways_that_are_gone() -> None:
    """Counted by gateway and epoch; those of an ended lease are found."""
    holders = Holders()
    holders.set("s1", ("gw-1", 1))
    holders.set("s2", ("gw-1", 1))
    holders.set("s3", ("gw-2", 7))
    holders.set("s4", None)
    assert holders.counts == (3, 4)
    holders.set("s2", ("gw-2", 7))
    holders.set("s3", None)
    holders.remove("s4")
    assert holders.counts == (2, 3)
    assert holders.orphans(lambda name, epoch: (name, epoch) == ("gw-2", 7)) == ["s1"]
    holders.remove("s1")
    assert holders.orphans(lambda name, epoch: True) == []
    assert holders.counts == (1, 2)
