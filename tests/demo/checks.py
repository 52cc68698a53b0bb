"""What the demo proves, each check a line of the last table."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from spark.client import MessageQueue, SourceClient
from tests.demo.devices import IN_FLIGHT_MAX, Device


class Check(NamedTuple):
    what: str
    found: str
    is_met: bool


class _Body(msgspec.Struct):
    id: str


class Stored(NamedTuple):
    """What a topic's message queues hold."""

    identifiers: Counter[str]
    by_broker: Counter[str]

    @property
    def duplicate_count(self) -> int:
        return sum(count - 1 for count in self.identifiers.values())


def read_topic(namesrv: str, topic: str, *, subject: str = "") -> Stored:
    """Every message of *topic* by offset; *subject*: only addresses that begin so."""
    identifiers: Counter[str] = Counter()
    by_broker: Counter[str] = Counter()
    with SourceClient(namesrv) as client:
        for queue in client.queues(topic):
            found = [body for body in _bodies(client, topic, queue, subject)]
            identifiers.update(found)
            by_broker[queue.broker] += len(found)
    return Stored(identifiers, by_broker)


def _bodies(client: SourceClient, topic: str, queue: MessageQueue, subject: str) -> Iterable[str]:
    offset, end = client.min_offset(topic, queue), client.max_offset(topic, queue)
    while offset < end:
        result = client.read("demo-check", topic, queue, offset)
        for message in result.messages:
            if message.subject.startswith(subject):
                yield msgspec.json.decode(message.body, type=_Body).id
        offset = max(result.next_offset, offset + 1)


def check_devices(devices: list[Device], stored: Stored) -> list[Check]:
    """Nothing acknowledged is missing; what is there twice was under way at the fault."""
    acknowledged = set().union(*(device.acknowledged for device in devices))
    missing = acknowledged - stored.identifiers.keys()
    bound = IN_FLIGHT_MAX * len(devices)
    return [
        Check("acknowledged readings that the stores lack", str(len(missing)), not missing),
        Check(
            f"readings stored twice (at most {bound})",
            str(stored.duplicate_count),
            stored.duplicate_count <= bound,
        ),
    ]


def print_table(title: str, head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """A plain table, one per stage."""
    cells = [head, *[tuple(str(cell) for cell in row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    print(f"\n{title}")
    for index, row in enumerate(cells):
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
        if index == 0:
            print("  " + "  ".join("─" * width for width in widths))
