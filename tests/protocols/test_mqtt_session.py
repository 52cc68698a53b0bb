"""What a session's subscriptions make of a delivery that several of them match."""

from protocols.mqtt.packets import SubscribeItem
from protocols.mqtt.session import Plan, Subscriptions

BOTH = (1, 2)
"""Tags of the queues that a delivery was found in."""


def overlapping(*items: SubscribeItem) -> Subscriptions:
    """Each with an identifier of its own: 11, 12, …"""
    found = Subscriptions()
    for number, item in enumerate(items, 11):
        found.put(item, item.qos, number)
    return found


def test_one_publish_has_the_highest_qos_and_all_identifiers() -> None:
    """[MQTT-3.3.4-2, -3, -4]; never above the publish's own."""
    known = overlapping(SubscribeItem("a/+", 0), SubscribeItem("a/b", 2))
    assert known.plan(BOTH, 2, False, False) == Plan(2, False, (11, 12))
    assert known.plan(BOTH, 1, False, False) == Plan(1, False, (11, 12))
    assert known.plan((1,), 2, False, False) == Plan(0, False, (11,))


def test_the_retain_flag_stays_if_one_wants_it_as_published() -> None:
    """[MQTT-3.3.1-12, -13] both hold for the one PUBLISH; who asked for it has a use for it."""
    known = overlapping(SubscribeItem("a/+", 1, retain_as_published=True), SubscribeItem("a/b", 1))
    assert known.plan(BOTH, 1, True, False) == Plan(1, True, (11, 12))
    assert known.plan(BOTH, 1, False, False) == Plan(1, False, (11, 12))
    assert known.plan((2,), 1, True, False) == Plan(1, False, (12,))


def test_no_local_takes_out_its_own_subscription_only() -> None:
    """[MQTT-3.8.3-3]: the other one's identifier, QoS and flag are those that count."""
    known = overlapping(
        SubscribeItem("a/+", 2, no_local=True, retain_as_published=True), SubscribeItem("a/b", 1)
    )
    assert known.plan(BOTH, 2, True, True) == Plan(1, False, (12,))
    assert known.plan(BOTH, 2, True, False) == Plan(2, True, (11, 12))
    assert known.plan((1,), 2, True, True) is None
