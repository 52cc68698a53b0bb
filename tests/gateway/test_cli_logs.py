"""JSON log lines: escaped, folded."""

import io
import json
import logging

from protocols.daemon.logs import FOLD_AFTER_COUNT, FOLD_WINDOW_S, Folding, JsonFormatter


def record(message: str, *arguments: object, created: float = 0.0) -> logging.LogRecord:
    made = logging.LogRecord("tidegate.x", logging.WARNING, "f", 1, message, arguments, None)
    made.created = created
    return made


def test_a_line_is_one_json_object_without_raw_controls() -> None:
    """Nothing a client sends can forge a line or move a terminal's cursor."""
    line = JsonFormatter().format(record("peer said %s", "a\n\x1b[2J\x9b\u202e"))
    assert json.loads(line)["message"] == "peer said a\n\x1b[2J\x9b\u202e"
    assert line.isprintable()


def test_repeats_are_folded_and_counted() -> None:
    """After a few lines of one kind the rest of the window is left out, then counted."""
    folding = Folding()
    passed = [folding.filter(record("x %d", index, created=1.0)) for index in range(50)]
    assert sum(map(bool, passed)) == FOLD_AFTER_COUNT
    late = record("x %d", 51, created=1.0 + FOLD_WINDOW_S)
    assert folding.filter(late)
    assert json.loads(JsonFormatter().format(late))["left_out_count"] == 50 - FOLD_AFTER_COUNT


def test_errors_carry_their_trace() -> None:
    """A traceback is a field, not further lines."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("t")
    logger.addHandler(handler)
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    assert "ValueError: no" in json.loads(stream.getvalue())["error"]
