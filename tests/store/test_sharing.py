"""Who of a shared group gets a message: by chance, by hash, and never beyond a member's room."""

from random import Random

from store.handlers.sharing import Member, at_random, by_hash

KEYS = [f"key-{number}" for number in range(300)]


def members(*names: str, room: int = 1000) -> list[Member]:
    return [Member(name, room) for name in names]


def test_chance_leaves_nobody_out() -> None:
    found = at_random(members("a", "b", "c"), 300, Random(1))
    assert min(found.count(index) for index in range(3)) > 50


def test_a_key_keeps_its_member() -> None:
    """Whatever the order of the members, and whoever else comes or goes."""

    def owners(*names: str) -> dict[str, str]:
        indexes = by_hash(members(*names), KEYS)
        return {key: names[index] for key, index in zip(KEYS, indexes, strict=True)}

    three = owners("a", "b", "c")
    assert owners("c", "a", "b") == three
    assert by_hash(members("a", "b", "c"), KEYS + KEYS) == 2 * by_hash(members("a", "b", "c"), KEYS)
    assert all(owner in (three[key], "d") for key, owner in owners("a", "b", "c", "d").items())
    without = owners("a", "b")
    assert all(without[key] == owner for key, owner in three.items() if owner != "c")
    assert min(list(three.values()).count(name) for name in "abc") > 50


def test_who_has_no_room_is_passed_over() -> None:
    first = by_hash(members("a", "b"), ["key"])[0]
    rooms = [Member("a", 10), Member("b", 10)]
    rooms[first] = rooms[first]._replace(room=2)
    assert by_hash(rooms, ["key"] * 5) == [first] * 2 + [1 - first] * 3
    assert at_random([Member("a", 0), Member("b", 3)], 3, Random(1)) == [1, 1, 1]
