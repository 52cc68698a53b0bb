"""Retained values: found by filters as each would match alone; no more than there may be."""

from random import Random

from protocols.subjects import matches
from store.metadata.addresses import AddressTree
from store.metadata.retained import CLEARED, RetainedChange, RetainedTable

LEVELS = ("a", "b", "c", "", "$x")
FILTERS = tuple(
    [
        "#",
        "+",
        "+/#",
        "+/+",
        "a",
        "a/#",
        "a/+",
        "a/+/#",
        "a/b/#",
        "+/b",
        "+/b/+",
        "/#",
        "/+",
        "//#",
        "+/",
        "$x/#",
        "$x/+",
        "a/$x",
        "a/+/c/#",
        "a//#",
        "$x",
    ]
)


def test_the_tree_finds_what_matches() -> None:
    """Whatever was put, replaced and removed before."""
    random = Random(7)
    tree, known = AddressTree(), dict[str, int]()
    for number in range(3000):
        address = "/".join(random.choices(LEVELS, k=random.randint(1, 4)))
        if not address:
            continue
        if address in known and random.random() < 0.6:
            tree.remove(address)
            del known[address]
        else:
            tree.put(address, number)
            known[address] = number
        if number % 10 == 0:
            for topic_filter in FILTERS:
                found = sorted(tree.find(topic_filter))
                wanted = [at for name, at in known.items() if matches(topic_filter, name)]
                assert found == sorted(wanted), topic_filter


def test_one_address_too_many() -> None:
    """It gets no value; one that has a value may change it, and room comes with a clear."""
    table = RetainedTable(2)
    for subject, position in (("a", 10), ("b", 20), ("c", 30), ("a", 40)):
        table.note(RetainedChange("", subject, position))
        table.show_next()
    assert table.find("", ["#"]) == [20, 40]
    assert (table.count, table.refused_count) == (2, 1)
    assert table.kept == {20, 40}
    table.apply(RetainedChange("", "b", CLEARED))
    table.apply(RetainedChange("other", "c", 50))
    assert (table.find("", ["#"]), table.find("other", ["+"])) == ([40], [50])
    again = RetainedTable(2)
    again.load(table.dump())
    assert (again.find("", ["+", "a"]), again.count) == ([40], 2)
