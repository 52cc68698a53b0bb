"""The Data Source's arithmetic: options, admission, rows."""

import datetime

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from protocols.canonical import StoredMessage
from spark.schema import MESSAGE_SCHEMA, row_of
from spark.source import SourceOptions, admit

REQUIRED = {"namesrv": "127.0.0.1:9876", "topic": "t"}


def test_options_have_defaults() -> None:
    """Only the name servers and the topic must be given."""
    options = SourceOptions.parse(REQUIRED)
    assert (options.group, options.starting_offsets, options.rows_max) == (
        "spark",
        "earliest",
        None,
    )
    assert options.fails_on_data_loss


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"topic": ""}, "'topic' is missing"),
        ({"namesrv": ""}, "'namesrv' is missing"),
        ({"startingOffsets": "yesterday"}, "'startingOffsets' is 'yesterday'"),
        ({"startingOffsets": "timestamp:soon"}, "timestamp:<ms>"),
        ({"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger' is '0'"),
    ],
)
def test_a_bad_option_is_named(changes: dict[str, str], named: str) -> None:
    """The message says which option, its value and what would do."""
    with pytest.raises(ValueError, match=named):
        SourceOptions.parse({**REQUIRED, **changes})


def test_admission_shares_by_lag_and_starves_none() -> None:
    """A queue with a tenth of the lag gets about a tenth of the batch, never nothing."""
    end = admit({"a/0": 0, "a/1": 0, "a/2": 5}, {"a/0": 900, "a/1": 100, "a/2": 6}, 100)
    assert end == {"a/0": 89, "a/1": 9, "a/2": 6}


def test_admission_takes_all_that_fits() -> None:
    """A lag below the limit is taken whole; queues that went away keep their offset."""
    assert admit({"a/0": 1, "gone/0": 7}, {"a/0": 4}, 100) == {"a/0": 4, "gone/0": 7}


def test_a_row_has_the_schema_s_columns() -> None:
    """Values stand in the order of the schema; times are UTC."""
    message = StoredMessage(
        record=b"",
        topic="t",
        body=b"x",
        properties_text=b"TAGS\x01red\x02TG_SUBJECT\x01t/a\x02",
        queue_id=3,
        queue_offset=9,
        log_position=4096,
        born_ms=1_000,
        store_ms=2_000,
    )
    row = dict(zip(MESSAGE_SCHEMA.names, row_of(message, "broker-a"), strict=True))
    assert (row["subject"], row["tag"], row["queue_offset"]) == ("t/a", "red", 9)
    assert row["born_time"] == datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
