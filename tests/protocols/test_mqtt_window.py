"""Packet ids of a whole run at once: only when nothing stands in the way."""

import pytest

from protocols.canonical import ReceiptHandle
from protocols.mqtt.packet_ids import PACKET_ID_MAX, Block
from protocols.mqtt.session import Flight, Stage, Window


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


class Taken:
    """A source that notes what is done."""

    is_marked = False

    def __init__(self) -> None:
        self.positions: list[int] = []

    def done(self, handle: ReceiptHandle) -> None:
        self.positions.append(handle.position)

    def done_unnamed(self, count: int) -> None:
        raise AssertionError("each has a name")

    def mark(self, handle: ReceiptHandle, packet_id: int) -> None:
        raise AssertionError("not kept")


def test_each_of_a_run_is_done_by_its_own_acknowledgement() -> None:
    """In whatever order they come; all of them or none."""
    window, source = Window(5), Taken()
    handles = [ReceiptHandle("c", "b", 1, 7, position, 3) for position in (100, 200, 300)]
    assert window.take_each(source, handles) == numbers(1, 2, 3)
    assert window.take_each(source, handles) == []
    assert list(window.flights) == [1, 2, 3]
    assert window.acknowledged([3, 1])
    assert source.positions == [300, 100]
    assert window.acknowledged([2, 2])
    assert source.positions == [300, 100, 200]


def test_one_by_one_an_id_in_use_is_left_out_and_none_is_0(flight: Flight) -> None:
    """[MQTT-2.2.1-2, -4]: behind 65,535 comes 1, and what is unanswered keeps its own."""
    window = Window(10, next_id=PACKET_ID_MAX - 1)
    window.flights[PACKET_ID_MAX] = window.flights[1] = flight
    assert [window.take(None, None, 1) for _ in range(3)] == [PACKET_ID_MAX - 1, 2, 3]
    assert window.acknowledged([PACKET_ID_MAX, 1])
    window = Window(10, next_id=PACKET_ID_MAX)
    assert [window.take(None, None, 1) for _ in range(2)] == [PACKET_ID_MAX, 1]


def test_what_an_earlier_connection_gave_is_counted_on_from(flight: Flight) -> None:
    """New ids come behind those that are sent again, so that their order is seen."""
    window = Window(10)
    window.adopt(5, flight)
    window.adopt(3, flight)
    assert window.take(None, None, 1) == 6
    window.adopt(PACKET_ID_MAX, flight)
    assert window.take(None, None, 1) == 1


def test_ids_stay_in_the_block_of_the_connection(flight: Flight) -> None:
    """Round and round; what an earlier connection gave is no matter."""
    window = Window(3, ids=Block(11, 14))
    window.adopt(7, flight)
    window.adopt(40, flight)
    assert window.acknowledged([7, 40])
    window.skip()
    assert window.take_at_once(2, flight) == numbers(12, 13)
    assert window.acknowledged([12])
    assert window.take_at_once(2, flight) == []  # 14 and then 11: no neighbours
    assert [window.take(None, None, 1) for _ in range(2)] == [14, 11]
    assert window.acknowledged([14, 11])
    assert window.take(None, None, 1) == 12
    assert window.take(None, None, 1) == 14
