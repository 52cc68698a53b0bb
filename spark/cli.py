"""``tidegate spark JOB``: run one stream job until it is stopped, or once."""

import difflib
import sys
from pathlib import Path

import click

from protocols.daemon.cli import fail_config
from protocols.daemon.config import read, section
from protocols.errors import ConfigError
from spark.config import SparkConfig, WindowJobConfig

INSTALL_HINT = "PySpark is not installed: pip install 'tidegate[spark]' (and Java 17 or 21)"


@click.command("spark")
@click.argument("job")
@click.option("-c", "--config", type=click.Path(dir_okay=False, path_type=Path), help="YAML file.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a setting.")
@click.option("--once", is_flag=True, help="Process what is there, then stop.")
@click.option("--checkpoint", metavar="DIR", help="Where offsets and state are kept.")
@click.option("--master", metavar="URL", help="Spark master, such as local[2].")
def command(
    job: str,
    config: Path | None,
    settings: tuple[str, ...],
    once: bool,
    checkpoint: str | None,
    master: str | None,
) -> None:
    """Run the stream job JOB of the block ``spark.jobs``, by default telemetry_windows."""
    try:
        spark_config = section(read(config, settings), "spark", SparkConfig)
        job_config = _find(spark_config, job)
    except ConfigError as error:
        fail_config(error)
    if checkpoint is not None:
        job_config = job_config.model_copy(update={"checkpoint": checkpoint})
    sys.exit(_run(spark_config, job_config, once=once, master=master or spark_config.master))


def _find(config: SparkConfig, job: str) -> WindowJobConfig:
    """The job of that name. Raises ConfigError."""
    if job in config.jobs:
        return config.jobs[job]
    close = difflib.get_close_matches(job, config.jobs, n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else f"; there are: {', '.join(config.jobs)}"
    raise ConfigError([f"spark.jobs: '{job}' is no job{hint}"])


def _run(config: SparkConfig, job: WindowJobConfig, *, once: bool, master: str | None) -> int:
    """Run the job; the exit code. PySpark is imported here: the command line stays quick."""
    try:
        from spark.jobs import telemetry_windows
        from spark.session import open_session
    except ModuleNotFoundError as error:
        click.echo(f"{INSTALL_HINT} ({error})", err=True)
        return 1
    session = open_session("tidegate-telemetry-windows", master)
    query = telemetry_windows.start(session, config, job, once=once)
    click.echo(f"ready spark topic={job.topic} output={job.output}")
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    finally:
        session.stop()
    return 0
