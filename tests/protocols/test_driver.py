"""The one socket loop: what it does at the end of a tick and at the end of a connection."""

import asyncio
from collections.abc import Sequence
from typing import Any

from protocols.driver import BURST_BYTES, Driver


class Line:
    """A connection that closes when told, with last words."""

    deadline: float | None = None

    def __init__(self) -> None:
        self.is_closing = False
        self.out = b""

    def receive_data(self, data: bytes, *, now: float) -> Sequence[bytes]:
        return [data]

    def handle_deadline(self, *, now: float) -> Sequence[bytes]:
        return []

    def data_to_send(self) -> bytes:
        data, self.out = self.out, b""
        return data


class Wire(asyncio.Transport):
    """Keeps what is written; *is_gone*: the peer has left, as the socket will say."""

    def __init__(self, *, is_gone: bool = False) -> None:
        super().__init__()
        self.is_gone = is_gone
        self.is_reading = True
        self.writes: list[bytes] = []
        self.closed_count = 0

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def write_eof(self) -> None:
        if self.is_gone:
            raise OSError(107, "Transport endpoint is not connected")

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed_count += 1

    def is_closing(self) -> bool:
        return self.closed_count > 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


def driver_of(line: Line, wire: Wire) -> Driver[bytes]:
    driver: Driver[bytes] = Driver(
        line, handle=lambda driver, events: None, lost=lambda driver: None, linger_s=1.0
    )
    driver.connection_made(wire)
    return driver


async def test_a_peer_that_has_gone_needs_no_last_words() -> None:
    """Its socket cannot be half-closed any more: closed, without an error for its owner."""
    line, wire = Line(), Wire(is_gone=True)
    driver = driver_of(line, wire)
    line.out, line.is_closing = b"because", True
    driver.flush()
    assert (wire.writes, wire.closed_count) == ([b"because"], 1)


async def test_a_peer_that_says_no_more_is_not_read_while_it_is_answered() -> None:
    """What its owner asks for meanwhile does not read on: there is only the end."""
    line, wire = Line(), Wire()
    driver: Driver[bytes] = Driver(
        line,
        handle=lambda driver, events: None,
        lost=lambda driver: None,
        half_closed=lambda driver: not line.is_closing,
        linger_s=1.0,
    )
    driver.connection_made(wire)
    wire.is_reading = False
    assert driver.protocol.eof_received()
    driver.resume_reading()
    assert not wire.is_reading
    line.out, line.is_closing = b"answer", True
    driver.flush()
    assert (wire.writes, wire.closed_count) == ([b"answer"], 1)
    assert not driver.protocol.eof_received()


async def test_a_peer_with_much_to_say_is_read_in_turns() -> None:
    """It has its next turn when others had theirs, unless its owner does not want it read."""
    line, wire = Line(), Wire()
    driver = driver_of(line, wire)
    driver.data_received(b"x" * (BURST_BYTES - 1))
    assert wire.is_reading
    driver.data_received(b"x" * BURST_BYTES)
    assert not wire.is_reading
    await asyncio.sleep(0)
    assert wire.is_reading
    driver.pause_reading()
    driver.data_received(b"x" * BURST_BYTES)
    await asyncio.sleep(0)
    assert not wire.is_reading


async def test_one_write_a_tick_for_each_connection() -> None:
    """However often an owner asks; what one connection gets wrong is its own affair."""
    lines = [Line() for _ in range(3)]
    wires = [Wire() for _ in lines]
    drivers = [driver_of(line, wire) for line, wire in zip(lines, wires, strict=True)]
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

    def fail() -> bytes:
        raise ValueError("broken")

    lines[1].data_to_send = fail  # type: ignore[method-assign]
    for line, driver in zip(lines, drivers, strict=True):
        driver.flush_soon()
        line.out += b"a"
        driver.flush_soon()
        line.out += b"b"
    assert not any(wire.writes for wire in wires)
    await asyncio.sleep(0)
    assert [wire.writes for wire in wires] == [[b"ab"], [], [b"ab"]]
    assert [str(context["exception"]) for context in told] == ["broken"]
