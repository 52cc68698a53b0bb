"""
Which clause is tested where: ``python -m tests.conformance.table > tests/conformance/CLAUSES.md``.

Made from ``clauses`` and from the tests themselves; a test sees to it that the page is what this
would print, and that every clause a server can break has a test.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protocols.mqtt.packets import V5, V311
from tests.conformance.clauses import CLAUSES, COVERED, Clause

HERE: Final = Path(__file__).parent
TITLES: Final = {V5: "MQTT 5.0", V311: "MQTT 3.1.1"}
NOT_OURS: Final = {"c": "only a client can break it", "-": "not offered"}

ELSEWHERE: Final[dict[tuple[int, str], str]] = {
    # what needs more than one gateway, or a part that is tested where it lives
    (V5, "4.8.2-4"): "tests/protocols/test_mqtt_leftovers.py::"
    "test_a_shared_qos_2_message_stays_with_its_client",
    (V5, "4.8.2-5"): "tests/protocols/test_mqtt_leftovers.py::"
    "test_a_shared_qos_2_message_ends_with_its_session",
    (V5, "4.12.0-6"): "tests/conformance/test_connect.py::"
    "test_mqtt_3_1_4_5_connack_comes_first_and_once",
    **{
        (V5, number): f"tests/protocols/test_mqtt_auth.py::{name}"
        for numbers, name in (
            ("3.1.2-30 4.12.0-4 3.15.2-1", "test_before_connack_wrong_words_are_refused"),
            ("4.12.0-2 4.12.0-5", "test_a_challenge_and_connack_with_the_servers_proof"),
            ("4.12.1-1", "test_connected_wrong_words_are_an_end"),
            ("4.12.1-2", "test_who_becomes_another_is_closed"),
        )
        for number in numbers.split()
    },
    (V311, "7.0.0-1"): "tests/interop/test_bridge_mosquitto.py::test_both_ways_without_circles",
}


def load() -> None:
    """Import every module of clause tests, so that ``COVERED`` is complete."""
    for path in sorted(HERE.glob("test_*.py")):
        importlib.import_module(f"tests.conformance.{path.stem}")


def where(version: int, clause: Clause) -> str:
    """What the table says of one clause; empty: nothing tests it."""
    if clause.who in NOT_OURS:
        return NOT_OURS[clause.who]
    names = sorted(set(COVERED.get((version, clause.number), [])))
    if (version, clause.number) in ELSEWHERE:
        names.append(ELSEWHERE[version, clause.number])
    return " ".join(f"`{name}`" for name in names)


def lines() -> Iterator[str]:
    load()
    yield "# The clauses of both specifications, and their tests"
    yield ""
    yield "Generated: `python -m tests.conformance.table > tests/conformance/CLAUSES.md`."
    yield "The words are ours; the specifications' own are at docs.oasis-open.org/mqtt."
    for version, title in TITLES.items():
        found = CLAUSES[version]
        tested = sum(1 for clause in found.values() if clause.who == "s")
        yield ""
        yield f"## {title}: {len(found)} clauses, {tested} of them a server's"
        yield ""
        yield "| clause | in short | tested by |"
        yield "| --- | --- | --- |"
        for clause in found.values():
            yield f"| MQTT-{clause.number} | {clause.text} | {where(version, clause)} |"


if __name__ == "__main__":
    print("\n".join(lines()))
