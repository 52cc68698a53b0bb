"""How a gateway reaches name servers and brokers: signatures, TCP, links to Apache brokers."""

from gateway.clusters.client import ClusterClient, RunningLink
from gateway.clusters.connection import Connect, Sign
from gateway.clusters.watch import ConnectNameServer
from protocols.daemon.config import ClusterAuth
from protocols.remoting.client import RemotingClient
from protocols.remoting.command import RemotingCommand
from protocols.remoting.signing import sign


def signer(auth: ClusterAuth | None) -> Sign | None:
    if auth is None:
        return None
    access_key, secret = auth.access_key, auth.read_secret().decode()

    def add_signature(command: RemotingCommand) -> None:
        sign(command, access_key, secret)

    return add_signature


def apache_link(cluster: ClusterClient, broker: str, connect: Connect) -> RunningLink:
    """The link to a broker that is not ours."""
    from gateway.clusters.apache.link import ApacheLink

    return ApacheLink(
        cluster.name,
        broker,
        connect,
        changed=cluster.link_changed,
        sign=cluster.sign,
        node_filters=lambda: cluster.routes.node_filters,
    )


def over_tcp(address: str) -> ConnectNameServer:
    async def connect() -> RemotingClient:
        return await RemotingClient.connect(address)

    return connect
