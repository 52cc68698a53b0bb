"""A Spark session with the settings every job here relies on."""

import os
import sys

from pyspark.sql import SparkSession

from spark.source import TidegateDataSource

SHUFFLE_PARTITIONS = 2
"""Fixed for the life of a checkpoint; local default for two cores, raise it on a cluster."""


def open_session(app_name: str, master: str | None = None) -> SparkSession:
    """
    A session whose clock is UTC and whose workers run this interpreter.

    *master* None: what ``spark-submit`` or the configuration says, else all local cores.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers would run `python3` of PATH
    builder = (
        SparkSession.builder.appName(app_name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", SHUFFLE_PARTITIONS)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 10_000)
        .config("spark.python.worker.faulthandler.enabled", "true")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else the machine's name counts
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config(
                "spark.driver.host", "127.0.0.1"
            )
    session = builder.getOrCreate()
    session.dataSource.register(TidegateDataSource)
    return session
