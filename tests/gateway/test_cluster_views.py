"""Name servers that disagree, without a socket."""

from gateway.clusters.views import Broker, Entry, View, entry_of, merge
from protocols.remoting.discovery import BrokerFacts, RouteChanges


def view(version: int, table: int, rows: list[tuple[str, int, int, int]]) -> View:
    made = View()
    made.take_changes(changes(version, table, rows, is_full=True))
    return made


def changes(
    version: int, table: int, rows: list[tuple[str, int, int, int]], *, is_full: bool = False
) -> RouteChanges:
    facts = BrokerFacts(name="a", cluster="c", address="a:1", table=(0, 7, table))
    return RouteChanges(
        instance="i", version=version, is_full=is_full, brokers=[facts], topics={"a": rows}
    )


def test_the_newer_table_of_a_broker_counts() -> None:
    """Whoever was heard last: the broker's own version decides."""
    new, old = view(3, 2, [("T", 8, 8, 6)]), view(9, 1, [("T", 4, 4, 6), ("gone", 1, 1, 6)])
    for order in ([new, old], [old, new]):
        tables = merge(order, "c")["a"].tables
        assert entry_of(tables, "T") == Entry(8, 8, 6)
        assert entry_of(tables, "gone") is None


def test_at_the_same_version_permissions_are_met_and_topics_joined() -> None:
    """A tool wipes the write permission at one name server after the other."""
    wiped, other = view(1, 5, [("T", 4, 4, 4)]), view(1, 5, [("T", 4, 4, 6), ("U", 1, 1, 6)])
    tables = merge([wiped, other], "c")["a"].tables
    assert entry_of(tables, "T") == Entry(4, 4, 4)
    assert entry_of(tables, "U") == Entry(1, 1, 6)


def test_brokers_of_other_clusters_are_not_ours() -> None:
    assert merge([view(1, 1, [])], "another") == {}


def test_changes_touch_what_they_name() -> None:
    """A full answer touches what went as well; a broker without a master is none."""
    one = view(1, 1, [("T", 4, 4, 6), ("U", 4, 4, 6)])
    assert one.take_changes(changes(2, 2, [("U", -1, -1, 0), ("V", 1, 1, 6)])) == {"U", "V"}
    assert one.tables == {"a": {"T": Entry(4, 4, 6), "V": Entry(1, 1, 6)}}
    assert one.take_changes(changes(1, 3, [("V", 1, 1, 6)], is_full=True)) == {"T", "V"}
    assert one.brokers == {"a": Broker("c", "a:1", "", (0, 7, 3))}
    replica = BrokerFacts(name="a", cluster="c", address="")
    one.take_changes(RouteChanges(instance="i", version=4, brokers=[replica]))
    assert (one.brokers, one.tables) == ({}, {})
