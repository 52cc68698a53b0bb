"""
``make demo``: real station readings through the whole system, checked at the end.

Separate processes: one name server, two store clusters, two gateways; Spark runs locally.
Devices replay readings by MQTT QoS 1, an AMQP app consumes alarms, a CloudEvents producer posts
station events, one gateway is killed with readings unacknowledged, and Structured Streaming
aggregates both topics. Exit code 0 only if every check is met.
"""

import contextlib
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from spark.session import open_session
from tests.demo import aggregates, cluster
from tests.demo.apps import AlarmDesk, post_station_event
from tests.demo.checks import Check, Stored, check_devices, print_table, read_topic
from tests.demo.dataset import all_readings
from tests.demo.devices import Device
from tests.demo.readings import Reading
from tests.support.processes import Daemons, wait_until

DEVICE_S_MAX = 300.0


def main() -> int:
    started = time.monotonic()
    readings = all_readings()
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-demo-") as folder,
        ThreadPoolExecutor(1) as pool,
        Daemons(Path(folder)) as daemons,
    ):
        session: Future[SparkSession] = pool.submit(open_session, "tidegate-demo", "local[2]")
        running = cluster.start(daemons)
        print_table(
            "processes",
            ("process", "listens on"),
            [
                (daemon.name, " ".join(f"{k}={v}" for k, v in daemon.addresses.items()))
                for daemon in daemons.all
            ],
        )
        desk = AlarmDesk(list(reversed(running.ports("amqp"))))
        desk.start()
        events = send_events(running, list(readings))
        devices = replay(running, readings)
        desk_checks = check_alarms(running, devices, desk)
        stored = show_stored(running)
        checks = [*events, *check_devices(devices, stored), *desk_checks]
        checks += check_windows(session.result(), running, readings, Path(folder))
        session.result().stop()
    print_table(
        f"checks ({time.monotonic() - started:.0f} s in all)",
        ("check", "found", "met"),
        [(check.what, check.found, "yes" if check.is_met else "NO") for check in checks],
    )
    return 0 if all(check.is_met for check in checks) else 1


def send_events(running: cluster.DemoCluster, stations: list[str]) -> list[Check]:
    """Each station's going online, as a CloudEvent."""
    port = running.ports("events")[1]
    statuses = [
        post_station_event(port, "station-events", f"{station}-online", "online", station)
        for station in stations
    ]
    accepted = statuses.count(202)
    return [Check("station events accepted (202)", str(accepted), accepted == len(stations))]


def replay(running: cluster.DemoCluster, readings: dict[str, list[Reading]]) -> list[Device]:
    """Send everything; kill the first gateway when a third is acknowledged."""
    ports = running.ports("mqtt")
    devices = [Device(name, rows, ports) for name, rows in readings.items()]
    total = sum(len(rows) for rows in readings.values())
    begun = time.monotonic()
    for device in devices:
        device.start()
    wait_until(
        lambda: sum(len(device.acknowledged) for device in devices) > total // 3,
        "a third of the readings acknowledged",
        DEVICE_S_MAX,
    )
    wait_until(lambda: any(device.under_way for device in devices), "readings under way")
    killed = running.gateways[0]
    under_way = sum(device.under_way for device in devices if device.gateway_port == ports[0])
    killed.kill()
    print(f"\n{killed.name} killed with {under_way} packets unacknowledged")
    for device in devices:
        device.join(DEVICE_S_MAX)
    print_table(
        f"devices ({total} readings in {time.monotonic() - begun:.1f} s)",
        ("device", "readings", "acknowledged", "alarms", "reconnects"),
        [
            (
                device.name,
                len(readings[device.name]),
                len(device.acknowledged),
                len(device.alarms_acknowledged),
                device.reconnect_count,
            )
            for device in devices
        ],
    )
    return devices


def check_alarms(
    running: cluster.DemoCluster, devices: list[Device], desk: AlarmDesk
) -> list[Check]:
    """Every acknowledged alarm reached the AMQP queue."""
    wanted = set().union(*(device.alarms_acknowledged for device in devices))
    with contextlib.suppress(AssertionError):  # the check below says how many are missing
        wait_until(lambda: wanted <= set(desk.received), "all alarms consumed")
    desk.stop()
    missing = wanted - set(desk.received)
    print_table(
        "alarm desk (AMQP)",
        ("alarms sent", "consumed", "distinct", "redelivered"),
        [(len(wanted), len(desk.received), len(set(desk.received)), desk.redelivered_count)],
    )
    return [Check("acknowledged alarms the AMQP app lacks", str(len(missing)), not missing)]


def show_stored(running: cluster.DemoCluster) -> Stored:
    """What the stores hold, by topic and cluster."""
    topics = {name: read_topic(running.namesrv_address, name) for name in ("hourly", "daily")}
    print_table(
        "stores",
        ("topic", "messages", "distinct", "twice", "by store"),
        [
            (
                name,
                stored.identifiers.total(),
                len(stored.identifiers),
                stored.duplicate_count,
                dict(stored.by_broker),
            )
            for name, stored in topics.items()
        ],
    )
    hourly, daily = topics["hourly"], topics["daily"]
    return Stored(hourly.identifiers + daily.identifiers, hourly.by_broker + daily.by_broker)


def check_windows(
    session: SparkSession,
    running: cluster.DemoCluster,
    readings: dict[str, list[Reading]],
    folder: Path,
) -> list[Check]:
    """Spark's windows against pandas'."""
    begun = time.monotonic()
    reports = aggregates.run_queries(session, running.namesrv_address, folder)
    print_table(
        f"Spark ({time.monotonic() - begun:.1f} s)",
        ("query", "rows in", "windows out", "dropped by watermark", "batches"),
        reports,
    )
    checks = []
    for report in reports:
        family = [row for rows in readings.values() for row in rows if row.family == report.family]
        found = aggregates.differences(report.family, folder / report.family, family)
        for line in found[:5]:
            print(f"  {line}")
        checks += [
            Check(f"{report.family}: windows that differ from pandas", str(len(found)), not found),
            Check(
                f"{report.family}: rows dropped by the watermark",
                str(report.dropped_by_watermark),
                report.dropped_by_watermark == 0,
            ),
        ]
    return checks


if __name__ == "__main__":
    sys.exit(main())
