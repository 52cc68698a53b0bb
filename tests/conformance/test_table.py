"""The table of clauses is complete and fresh."""

from pathlib import Path

from tests.conformance import table
from tests.conformance.clauses import CLAUSES

ROOT = Path(__file__).parents[2]


def test_every_clause_of_a_server_has_a_test() -> None:
    table.load()
    missing = [
        (version, clause.number)
        for version, found in CLAUSES.items()
        for clause in found.values()
        if not table.where(version, clause)
    ]
    assert missing == []


def test_tests_elsewhere_are_there() -> None:
    """Each is a function of the file that is named."""
    for place in table.ELSEWHERE.values():
        path, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), place


def test_the_page_is_fresh() -> None:
    page = (Path(__file__).parent / "CLAUSES.md").read_text(encoding="utf-8")
    assert page == "\n".join(table.lines()) + "\n", "python -m tests.conformance.table > CLAUSES.md"
