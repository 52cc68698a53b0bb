"""What a decision remembers of its places."""

from types import SimpleNamespace
from typing import cast

from gateway.clusters.batches import Copy
from gateway.clusters.link import LinkState, StoreLink
from gateway.copies import Place
from gateway.decided import Decision


def test_copies_are_made_once_for_each_place() -> None:
    """Whether turns stay at a place or go round."""
    link = cast(StoreLink, SimpleNamespace(state=LinkState.UP))
    made: list[Place | None] = []

    def make(place: Place | None) -> tuple[Copy, ...]:
        made.append(place)
        return (cast(Copy, object()),)

    places = [(link, 0), (link, 1), (link, 2)]
    decision = Decision(1, places=places, make_copies=make)
    first = [decision.copies(turn) for turn in (0, 0, 1, 2)]
    assert first[0] is first[1]
    again = [decision.copies(turn) for turn in (3, 4, 5, 4, 3)]
    expected = [*first[1:], first[2], first[1]]
    assert all([found is known for found, known in zip(again, expected, strict=True)])
    assert made == places
