"""The demo's processes: a name server, two store clusters, two gateways."""

from pathlib import Path
from typing import NamedTuple

from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from spark.client import Connection
from tests.support.processes import Daemon, Daemons

TOPICS = ("hourly", "daily", "station-events")
QUEUE_COUNT = 4

CONFIG = """\
version: 1
directory: {{cluster: a, store: broker-a}}
clusters:
  a: {{namesrv: ["{namesrv}"], broker_cluster: cluster-a}}
  b: {{namesrv: ["{namesrv}"], broker_cluster: cluster-b}}
routes:
  - name: san-francisco            # one station lives in the second cluster
    when: {{protocol: mqtt, topic: "hourly/sf/#"}}
    to: [{{cluster: b}}]
  - name: default
    to: [{{cluster: a}}]
"""


class DemoCluster(NamedTuple):
    namesrv: Daemon
    stores: dict[str, Daemon]
    gateways: list[Daemon]

    @property
    def namesrv_address(self) -> str:
        return self.namesrv.addresses["namesrv"]

    def ports(self, listener: str) -> list[int]:
        return [gateway.port(listener) for gateway in self.gateways]


def start(daemons: Daemons) -> DemoCluster:
    """Start everything and create the topics on both clusters."""
    namesrv = daemons.namesrv()
    stores = {
        "a": daemons.store(namesrv, "store.cluster=cluster-a", name="broker-a"),
        "b": daemons.store(
            namesrv, "store.cluster=cluster-b", "store.directory=false", name="broker-b"
        ),
    }
    for store in stores.values():
        for topic in TOPICS:
            create_topic(next(iter(store.addresses.values())), topic)
    config = _write_config(daemons.folder, namesrv.addresses["namesrv"])
    gateways = [
        daemons.gateway("", name=name, arguments=("-c", str(config))) for name in ("gw-1", "gw-2")
    ]
    return DemoCluster(namesrv, stores, gateways)


def create_topic(address: str, topic: str, attributes: str = "") -> None:
    """UPDATE_AND_CREATE_TOPIC, as mqadmin sends it. Raises RuntimeError."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUE_COUNT),
        "writeQueueNums": str(QUEUE_COUNT),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": attributes,
    }
    connection = Connection(address)
    try:
        answer = connection.request(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    finally:
        connection.close()
    if answer.code != ResponseCode.SUCCESS:
        raise RuntimeError(f"topic {topic} at {address}: {answer.code} {answer.remark}")


def _write_config(folder: Path, namesrv: str) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(CONFIG.format(namesrv=namesrv), encoding="utf-8")
    return path
