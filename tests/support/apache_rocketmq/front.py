"""Our gateway in front of an Apache broker, its directory on a store of ours beside it."""

from tests.support.apache_rocketmq import ApacheCluster
from tests.support.processes import Daemon, Daemons

CONFIG = """\
version: 1
directory: {{cluster: beside, store: broker-d}}
clusters:
  apache: {{namesrv: ["{apache}"], broker_cluster: DefaultCluster}}
  beside: {{namesrv: ["{beside}"]}}
routes:
  - name: default
    to: [{{cluster: apache}}]
"""


def gateway_before(cluster: ApacheCluster, daemons: Daemons, *settings: str) -> Daemon:
    """Everything goes to *cluster*."""
    namesrv = daemons.namesrv()
    daemons.store(namesrv, "store.cluster=beside", name="broker-d")
    config = daemons.folder / "gateway.yaml"
    beside = namesrv.addresses["namesrv"]
    config.write_text(CONFIG.format(apache=cluster.namesrv, beside=beside))
    return daemons.gateway("", *settings, arguments=("-c", str(config)))
