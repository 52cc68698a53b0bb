"""Token buckets: all that match apply, none is taken from unless all have room."""

import pytest

from gateway.ruleconfig import ThrottleConfig
from gateway.rules import Facts
from gateway.throttle import Throttle, Verdict, fitting, piece, release, take
from protocols.canonical import Identity


def throttle(*entries: dict[str, object], previous: Throttle | None = None) -> Throttle:
    return Throttle([ThrottleConfig.model_validate(entry) for entry in entries], previous=previous)


def facts(name: str = "dev-1", protocol: str = "mqtt") -> Facts:
    return Facts(protocol=protocol, listener=protocol, identity=Identity(name=name))


DEVICE = {"name": "device", "per": "identity", "publish": "10/s", "burst": "1s"}


def test_a_rate_refills() -> None:
    """A burst's worth at once, then the rate; a refusal says when to come again."""
    buckets = throttle(DEVICE).buckets(facts())
    assert [take(buckets, 1, 0, 1.0).refused_by for _ in range(11)] == [""] * 10 + ["device"]
    refused = take(buckets, 2, 0, 1.0)
    assert refused.retry_s == pytest.approx(0.2)
    assert take(buckets, 1, 0, 1.1).refused_by == ""


def test_buckets_are_per_value() -> None:
    """One device's excess is not another's."""
    limits = throttle(DEVICE)
    assert take(limits.buckets(facts("a")), 10, 0, 1.0).refused_by == ""
    assert take(limits.buckets(facts("a")), 1, 0, 1.0).refused_by == "device"
    assert take(limits.buckets(facts("b")), 10, 0, 1.0).refused_by == ""


def test_the_tightest_entry_decides_and_the_others_lose_nothing() -> None:
    """A batch that one bucket refuses is taken from none."""
    limits = throttle(DEVICE, {"name": "bytes", "bytes": "100/s", "burst": "1s"})
    buckets = limits.buckets(facts())
    assert take(buckets, 1, 100, 1.0).refused_by == ""
    assert take(buckets, 1, 50, 1.0).refused_by == "bytes"
    assert take(buckets, 9, 0, 1.0).refused_by == ""


def test_over_may_delay_first() -> None:
    """Within the delay a message waits its turn; beyond it is refused."""
    limits = throttle({**DEVICE, "over": "delay 200ms then reject"})
    buckets = limits.buckets(facts())
    take(buckets, 10, 0, 1.0)
    assert take(buckets, 1, 0, 1.0).delay_s == pytest.approx(0.1)
    assert take(buckets, 1, 0, 1.0).delay_s == pytest.approx(0.2)
    assert take(buckets, 1, 0, 1.0).refused_by == "device"


def test_a_batch_above_the_capacity_passes_when_the_bucket_is_full() -> None:
    """Nothing is refused for ever for its size alone; it is paid back afterwards."""
    buckets = throttle(DEVICE).buckets(facts())
    assert take(buckets, 25, 0, 1.0).refused_by == ""
    assert take(buckets, 1, 0, 2.0).refused_by == "device"
    assert take(buckets, 1, 0, 2.7).refused_by == ""


def test_what_fits_of_many() -> None:
    """The first so many, by every limit; none where there is no room at all."""
    limits = throttle(DEVICE, {"name": "bytes", "bytes": "100/s", "burst": "1s", "inflight": 8})
    buckets = limits.buckets(facts())
    assert fitting(buckets, [1] * 20, 1.0) == 8
    assert fitting(buckets, [60, 40, 1], 1.0) == 2
    assert take(buckets, 6, 0, 1.0).refused_by == ""
    assert fitting(buckets, [1] * 20, 1.0) == 2
    release(buckets, 6)
    assert fitting(buckets, [1] * 20, 1.0) == 4
    assert take(buckets, 4, 100, 1.0).refused_by == ""
    assert fitting(buckets, [1], 1.0) == 0


def test_inflight_is_released_by_results() -> None:
    """A bound on what is accepted and not yet stored."""
    buckets = throttle({"name": "t", "inflight": 5}).buckets(facts())
    assert take(buckets, 5, 0, 1.0).refused_by == ""
    assert take(buckets, 1, 0, 1.0).refused_by == "t"
    release(buckets, 3)
    assert take(buckets, 3, 0, 1.0).refused_by == ""


def test_a_bucket_that_is_full_and_holds_nothing_may_be_forgotten() -> None:
    """Whoever it is of finds a new one as full; the limits that an entry lacks do not matter."""
    (rate,) = throttle(DEVICE).buckets(facts())
    assert rate.is_idle(1.0)
    take([rate], 1, 0, 1.0)
    assert [rate.is_idle(now) for now in (1.05, 1.2)] == [False, True]
    (inflight,) = throttle({"name": "t", "inflight": 5}).buckets(facts())
    take([inflight], 1, 0, 1.0)
    assert not inflight.is_idle(9.0)
    release([inflight], 1)
    assert inflight.is_idle(9.0)


def test_conditions_choose_the_entries() -> None:
    """An entry for one protocol leaves the others alone, at no cost."""
    limits = throttle({**DEVICE, "when": {"protocol": ["mqtt"]}})
    assert limits.buckets(facts(protocol="amqp")) == ()
    assert len(limits.buckets(facts())) == 1


def test_connections_are_counted_at_the_door() -> None:
    """As many as allowed, one more after one has left."""
    limits = throttle({"name": "edge", "per": "listener", "connections": 2})
    first, buckets = limits.connect(facts(), 1.0)
    assert first.refused_by == ""
    limits.connect(facts(), 1.0)
    refused = limits.connect(facts(), 1.0)[0]
    assert (refused.refused_by, refused.is_quota) == ("edge", True)
    limits.disconnect(buckets)
    assert limits.connect(facts(), 1.0)[0].refused_by == ""
    assert limits.buckets(facts()) == ()


@pytest.mark.parametrize(
    ("limit", "at_the_door", "of_messages"),
    [
        ({"connections": 2}, True, False),
        ({"connect_rate": "5/s"}, True, False),
        ({"publish": "5/s"}, False, True),
        ({"bytes": "5/s"}, False, True),
        ({"inflight": 5}, False, True),
    ],
)
def test_what_an_entry_limits(
    limit: dict[str, object], at_the_door: bool, of_messages: bool
) -> None:
    """It is asked for that, and costs nothing elsewhere."""
    limits = throttle({"name": "edge", "per": "identity", **limit})
    assert bool(limits.buckets(facts())) is of_messages
    assert bool(limits.connect(facts(), 1.0)[1]) is at_the_door


def test_a_reload_keeps_the_buckets_of_entries_that_did_not_change() -> None:
    """Reloading does not hand out a fresh burst."""
    before = throttle(DEVICE)
    take(before.buckets(facts()), 10, 0, 1.0)
    after = throttle(DEVICE, {"name": "new", "publish": "5/s"}, previous=before)
    assert take(after.buckets(facts()), 1, 0, 1.0).refused_by == "device"
    changed = throttle({**DEVICE, "publish": "20/s"}, previous=before)
    assert take(changed.buckets(facts()), 1, 0, 1.0).refused_by == ""


def test_who_waits_is_never_refused() -> None:
    """``over: wait``: a delay for a rate; for others' results, another look."""
    entry = ThrottleConfig.model_validate(
        {"name": "t", "per": "client", "publish": "10/s", "inflight": 2, "over": "wait"}
    )
    throttle = Throttle([entry])
    buckets = throttle.buckets(Facts(client_id="c"))
    assert take(buckets, 2, 0, 1.0).delay_s == 0
    verdict = take(buckets, 1, 0, 1.0)
    assert (verdict.refused_by, verdict.is_taken, verdict.delay_s > 0) == ("", False, True)
    release(buckets, 2)
    assert take(buckets, 2, 0, 1.0).is_taken
    release(buckets, 2)
    late = take(buckets, 10, 0, 1.0)  # 6 of 10 are left
    assert (late.refused_by, late.is_taken, round(late.delay_s, 2)) == ("", True, 0.4)
    assert throttle.buckets(Facts(client_id="other"))[0] is not buckets[0]


def test_who_waits_goes_on_in_pieces() -> None:
    """As many as there is room for, then a moment's worth each; together where some are refused."""
    wait = {"name": "t", "publish": "1k/s", "burst": "50ms", "over": "wait"}
    rate = throttle(wait).buckets(facts())
    assert piece(rate, [1] * 200, 1.0) == 50
    assert take(rate, 50, 0, 1.0) == Verdict()
    assert piece(rate, [1] * 150, 1.0) == 20
    assert take(rate, 20, 0, 1.0).delay_s == pytest.approx(0.02)
    small = throttle({"name": "t", "bytes": "1000/s", "burst": "1s", "over": "wait"})
    assert piece(small.buckets(facts()), [400] * 9, 1.0) == 2
    refusing = throttle(wait, {**wait, "name": "r", "over": "reject"})
    assert piece(refusing.buckets(facts()), [1] * 200, 1.0) == 200
    counting = throttle({**wait, "inflight": 2})
    assert piece(counting.buckets(facts()), [1] * 200, 1.0) == 200
