"""What a store tells about itself."""

from pathlib import Path

from store.metrics import TEXTS
from tests.support.store_server import running_store


async def test_every_count_is_explained_and_tells_of_its_bound(tmp_path: Path) -> None:
    """On ``/metrics`` no name stands without a text, and what has a bound shows how near it is."""
    async with running_store(tmp_path) as store:
        counts = store.metrics()
    assert {*counts} == {*TEXTS}
    assert counts["log_bytes"] <= counts["log_usable_bytes"] < 64 << 20
