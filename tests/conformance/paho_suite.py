"""
One file of eclipse/paho.mqtt.testing against a server, one line of JSON per case.

``python tests/conformance/paho_suite.py CHECKOUT client_test5 HOST PORT [CASE…]``. The checkout is
the reader's own; nothing of it is kept here.
"""

import importlib
import json
import sys
import time
import unittest
from pathlib import Path


class Reporter(unittest.TextTestResult):
    """A line for each case as it ends."""

    _started = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        self._started = time.monotonic()
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        bad = [text for case, text in self.failures + self.errors if case is test]
        seconds = round(time.monotonic() - self._started, 1)
        line = {"case": test.id().rpartition(".")[2], "is_passed": not bad, "seconds": seconds}
        print(json.dumps({**line, "why": bad[0][-2000:] if bad else ""}), flush=True)
        super().stopTest(test)


def main(checkout: str, name: str, host: str, port: str, *cases: str) -> int:
    """Run the suite; 0: every case passed."""
    sys.path.insert(0, str(Path(checkout) / "interoperability"))
    sys.argv = [name]
    suite = importlib.import_module(name)
    suite.host, suite.port = host, int(port)
    suite.topic_prefix = f"{name}/"
    names = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
    filters = ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")
    suite.topics, suite.wildtopics, suite.nosubscribe_topics = names, filters, ("test/nosubscribe",)
    loader = unittest.defaultTestLoader
    tests = (
        loader.loadTestsFromNames([f"Test.{case}" for case in cases], suite)
        if cases
        else loader.loadTestsFromModule(suite)
    )
    result = unittest.TextTestRunner(resultclass=Reporter, verbosity=0).run(tests)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
