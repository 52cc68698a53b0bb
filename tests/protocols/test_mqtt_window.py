"""Packet ids of a whole run at once: only when nothing stands in the way."""

import pytest

from protocols.mqtt.session import PACKET_ID_MAX, Flight, Stage, Window


def numbers(*packet_ids: int) -> list[bytes]:
    return [packet_id.to_bytes(2, "big") for packet_id in packet_ids]


@pytest.fixture
def flight() -> Flight:
    return Flight(None, None, 1, Stage.SENT)


def test_neighbours_in_order(flight: Flight) -> None:
    window = Window(10)
    assert window.take_at_once(3, flight) == numbers(1, 2, 3)
    assert window.take_at_once(2, flight) == numbers(4, 5)
    assert window.acknowledged([2, 1])
    assert window.take_at_once(1, flight) == numbers(6)
    assert list(window.flights) == [3, 4, 5, 6]


def test_all_or_none(flight: Flight) -> None:
    """What does not fit waits as one run; its first may go."""
    window = Window(4)
    assert window.take_at_once(3, flight)
    assert window.take_at_once(2, flight) == []
    assert len(window.flights) == 3
    assert window.take_at_once(1, flight) == numbers(4)


def test_the_end_of_the_numbers_and_one_in_use(flight: Flight) -> None:
    window = Window(10, next_id=PACKET_ID_MAX - 1)
    assert window.take_at_once(2, flight) == []  # 65,535 and then 1: no neighbours
    window.skip()
    window.skip()
    assert window.next_id == 1
    window.adopt(2, flight)
    window.adopt(PACKET_ID_MAX, flight)
    assert window.next_id == 1
    assert window.take_at_once(3, flight) == []
    assert window.take_at_once(1, flight) == numbers(1)
