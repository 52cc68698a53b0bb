"""
Apache's Java clients through every kind of message and consumer, at our name server and store.

All cases run side by side in one JVM, with a kill and restart of the store in between. The same at
an unmodified Apache broker, side by side: ``python -m tests.interop.compare_java``.
"""

import os
from pathlib import Path

import pytest

from tests.interop import compare_java
from tests.support import apache_rocketmq, java_cases

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not os.environ.get("COMPARE"), reason="COMPARE=1 runs a hundred cases"),
]


def test_client_of_the_5_series(tmp_path: Path) -> None:
    """Every case passes with the client of 5.4."""
    apache_rocketmq.require("javac")
    results = compare_java.ours(java_cases.FIVE, tmp_path, compare_java.report)
    failed = [f"{result.name}: {result.what}" for result in results if not result.is_right]
    print(f"{len(results) - len(failed)} of {len(results)} cases")
    assert not failed, "\n".join(failed)
