"""Registration, leases and routes, without a socket."""

from namesrv.registry import Registration, Registry
from protocols.remoting.bodies import DataVersion, QueueData, TopicConfig

ONE, TWO = object(), object()
"""Two connections."""


def registration(**changes: object) -> Registration:
    base: dict[str, object] = {
        "cluster": "c",
        "broker": "b",
        "broker_id": 0,
        "address": "127.0.0.1:1",
        "lease_s": 3.0,
        "data_version": DataVersion(timestamp=10, counter=5),
        "topics": {
            "T": TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4),
            "b": TopicConfig(topic_name="b"),
        },
    }
    return Registration(**{**base, **changes})  # type: ignore[arg-type]


def registry() -> Registry:
    return Registry(lost_s_max=1.0, topics_max=100)


def test_register_and_find() -> None:
    """A registered broker's topics are found with its address."""
    names = registry()
    assert names.register(registration(), ONE, 0.0).refused == ""
    route = names.routes.find("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}
    assert (route.queue_datas[0].write_queue_nums, route.queue_datas[0].perm) == (4, 6)
    assert names.routes.find("other") is None


def test_lease_ends_in_silence() -> None:
    """A broker that says nothing for its own lease time is gone; heartbeats keep it."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    assert names.leases.renew("c", "127.0.0.1:1", None, ONE, 2.0)
    assert names.expire(4.9) == []
    assert names.leases.deadline == 5.0
    assert [lease.broker for lease in names.expire(5.0)] == ["b"]
    assert names.routes.find("T") is None
    assert not names.leases.renew("c", "127.0.0.1:1", None, ONE, 6.0)


def test_a_stopped_name_server_gives_the_brokers_their_time_back() -> None:
    """What it slept is no silence of theirs; nobody is heard of later than now."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    names.leases.prolong(4.0, 7.0)
    assert names.expire(6.9) == []
    names.leases.prolong(4.0, 7.0)
    assert names.leases.deadline == 10.0


def test_lost_connection_ends_the_lease_soon() -> None:
    """One second after the socket is gone the broker leaves the routes."""
    names = registry()
    names.register(registration(lease_s=120.0), ONE, 0.0)
    names.leases.connection_lost(ONE, 10.0)
    assert names.expire(10.9) == []
    assert len(names.expire(11.0)) == 1


def test_reconnecting_keeps_the_routes() -> None:
    """A broker that registers again on a new connection is not touched by the old one's end."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    names.leases.connection_lost(ONE, 1.0)
    names.register(registration(), TWO, 1.5)
    names.leases.connection_lost(ONE, 1.6)
    assert names.expire(3.0) == []


def test_older_table_of_the_same_process_is_not_taken() -> None:
    """Tables sent asynchronously may overtake one another: the newest stands."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    new = registration(
        data_version=DataVersion(timestamp=20, counter=7),
        topics={"T": TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8)},
    )
    assert names.register(new, ONE, 1.0).is_table_taken
    late = registration(data_version=DataVersion(timestamp=15, counter=6))
    assert not names.register(late, ONE, 1.1).is_table_taken
    route = names.routes.find("T")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 8
    assert names.data_version("c", "127.0.0.1:1") == DataVersion(timestamp=20, counter=7)


def test_restarted_broker_may_have_an_older_table() -> None:
    """A new process with a restored table is believed: its connection is another."""
    names = registry()
    names.register(registration(data_version=DataVersion(timestamp=20, counter=7)), ONE, 0.0)
    names.leases.connection_lost(ONE, 1.0)
    assert names.register(registration(), TWO, 1.5).is_table_taken


def test_live_name_at_another_address_is_refused() -> None:
    """Two live processes with one name: the second is refused; after the first died it is not."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    other = registration(address="127.0.0.1:2")
    assert "alive at 127.0.0.1:1" in names.register(other, TWO, 0.1).refused
    names.leases.connection_lost(ONE, 0.2)
    assert names.register(other, TWO, 0.3).refused == ""
    route = names.routes.find("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:2"}
    assert names.expire(2.0) == []


def test_newer_state_version_replaces_a_live_master() -> None:
    """After an election the new master is believed while the old one still talks."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    elected = registration(
        address="127.0.0.1:2", data_version=DataVersion(state_version=1, timestamp=1, counter=1)
    )
    assert names.register(elected, TWO, 0.1).refused == ""
    assert names.leases.get("c", "127.0.0.1:1") is None


def test_name_of_another_clusters_live_broker_is_refused() -> None:
    """Routes name brokers without their cluster, so a name belongs to one of them."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    other = registration(cluster="d", address="127.0.0.1:2")
    assert "belongs to cluster 'c'" in names.register(other, TWO, 0.1).refused


def test_full_table_makes_topics_vanish() -> None:
    """Apache's tables only add; ours says that it is full."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    table = {"U": TopicConfig(topic_name="U")}
    version = DataVersion(timestamp=11, counter=6)
    names.register(registration(topics=table, data_version=version), ONE, 0.1)
    assert sorted(names.routes.topics()) == ["T", "U", "b"]
    version = DataVersion(timestamp=12, counter=7)
    full = registration(topics=table, data_version=version, is_full_table=True)
    names.register(full, ONE, 0.2)
    assert names.routes.topics() == ["U"]


def test_slave_registers_and_takes_over() -> None:
    """A slave learns its master; it speaks for the topics only when the master is gone."""
    names = registry()
    names.register(registration(ha_address="127.0.0.1:9"), ONE, 0.0)
    slave = registration(broker_id=1, address="127.0.0.1:2", lease_s=60.0)
    result = names.register(slave, TWO, 0.1)
    assert (result.master_address, result.ha_address) == ("127.0.0.1:1", "127.0.0.1:9")
    assert not result.is_table_taken
    names.expire(3.0)
    route = names.routes.find("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "127.0.0.1:2"}
    promoted = registration(address="127.0.0.1:2", data_version=DataVersion(state_version=1))
    assert names.register(promoted, TWO, 3.1).refused == ""
    assert names.routes.brokers["b"].broker_addrs == {0: "127.0.0.1:2"}


def test_write_permission() -> None:
    """Wiped and restored for all topics of a broker."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    assert names.routes.change_write_permission("b", False) == 2
    route = names.routes.find("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4
    assert names.routes.change_write_permission("b", True) == 2
    route = names.routes.find("T")
    assert route is not None
    assert route.queue_datas[0].perm == 6
    assert names.routes.change_write_permission("unknown", True) == 0


def test_a_wiped_broker_is_wiped_for_later_topics_until_it_unregisters() -> None:
    """One that is to be emptied would fill again with every topic that is made there."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    names.routes.change_write_permission("b", False)
    later = registration(
        topics={"T": TopicConfig(topic_name="T"), "L": TopicConfig(topic_name="L")},
        data_version=DataVersion(counter=5),
    )
    assert names.register(later, ONE, 0.1).is_table_taken
    assert {_permission(names, topic) for topic in ("T", "L")} == {4}
    assert [lease.broker for lease in names.expire(4.0)] == ["b"]  # it stood still for a while
    names.register(registration(), ONE, 5.0)
    assert _permission(names, "T") == 4
    names.unregister("c", "b", "127.0.0.1:1")
    names.register(registration(), ONE, 6.0)
    assert _permission(names, "T") == 6


def _permission(names: Registry, topic: str) -> int:
    route = names.routes.find(topic)
    assert route is not None
    return route.queue_datas[0].perm


def test_topics_have_a_limit() -> None:
    names = Registry(lost_s_max=1.0, topics_max=2)
    names.register(registration(), ONE, 0.0)
    table = {name: TopicConfig(topic_name=name) for name in ("T", "U", "V")}
    assert "more than 2 topics" in names.register(registration(topics=table), ONE, 0.0).refused


def test_single_topic_of_an_unknown_broker_is_refused() -> None:
    """A broker that changed one topic sends that one alone: the rest must be known before."""
    names = registry()
    single = registration(topics={"T": TopicConfig(topic_name="T")})
    assert "register them all" in names.register(single, ONE, 0.0).refused
    assert names.routes.find("T") is None
    names.register(registration(), ONE, 0.0)
    assert names.register(single, ONE, 0.1).refused == ""


def test_queues_only_of_known_brokers() -> None:
    """REGISTER_TOPIC_IN_NAMESRV adds queues of brokers that are alive."""
    names = registry()
    names.register(registration(), ONE, 0.0)
    names.routes.put_queues("N", [QueueData(broker_name="b"), QueueData(broker_name="x")])
    route = names.routes.find("N")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["b"]
