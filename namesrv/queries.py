"""What clients and tools ask about brokers and topics: answers read from the registry."""

from collections.abc import Sequence

from namesrv.kvconfig import ORDER_TOPICS, KvTable
from namesrv.registry import Registry
from namesrv.routes import MASTER_ID
from namesrv.settings import HotSettings
from protocols.remoting.bodies import (
    BrokerData,
    BrokerMemberGroup,
    RouteData,
    encode_body,
    encode_cluster_info,
    encode_member_group,
    encode_route,
)
from protocols.remoting.codes import Permission, RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import bool_field, text_field
from protocols.remoting.peer import Peer

STANDARD_JSON_VERSION = 401
"""4.9.4 (``MQVersion``): from here on clients read a route whose broker ids are quoted."""

ZONE_MODE = "__ZONE_MODE"
ZONE_NAME = "__ZONE_NAME"
"""Header fields of clients that want their own zone only (``MixAll``, ``ZoneRouteRPCHook``)."""


class Queries:
    """One method for each request code; none of them changes anything."""

    def __init__(self, registry: Registry, kv: KvTable, settings: HotSettings) -> None:
        self._registry = registry
        self._kv = kv
        self._settings = settings

    def route(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        topic = text_field(command.fields, "topic")
        route = self._registry.routes.find(topic)
        if route is None:
            return command.answer(
                ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {topic}",
            )
        if self._settings.order_topics:
            route.order_topic_conf = self._kv.get(ORDER_TOPICS, topic)
        if self._settings.acting_master:
            route.broker_datas = [_with_acting_master(route, item) for item in route.broker_datas]
        zone = command.fields.get(ZONE_NAME, "")
        if zone and command.fields.get(ZONE_MODE, "").lower() == "true":
            route = _of_zone(route, zone)
        is_standard = command.version >= STANDARD_JSON_VERSION or bool_field(
            command.fields, "acceptStandardJsonOnly"
        )
        return command.answer(ResponseCode.SUCCESS, {}, encode_route(route, is_standard))

    def cluster_info(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        info = self._registry.routes.cluster_info()
        return command.answer(ResponseCode.SUCCESS, {}, encode_cluster_info(info))

    def member_group(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        cluster = text_field(command.fields, "clusterName")
        name = text_field(command.fields, "brokerName")
        broker = self._registry.routes.brokers.get(name)
        group = BrokerMemberGroup(cluster=cluster, broker_name=name)
        if broker is not None and broker.cluster == cluster:
            group.broker_addrs = broker.broker_addrs
        return command.answer(ResponseCode.SUCCESS, {}, encode_member_group(group))

    def topic_list(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        return _topics(command, self._registry.routes.topics())

    def topics_by_cluster(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        cluster = text_field(command.fields, "cluster")
        return _topics(command, self._registry.routes.topics(cluster) if cluster else [])

    def system_topics(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """Cluster and broker names, which Apache's brokers register as topics."""
        info = self._registry.routes.cluster_info()
        addresses = [
            address
            for broker in info.broker_addr_table.values()
            for address in broker.broker_addrs.values()
        ]
        names = [*info.cluster_addr_table, *info.broker_addr_table]
        return _topics(command, names, broker_address=addresses[0] if addresses else None)

    def unit_topics(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        flags: dict[int, tuple[bool | None, bool | None]] = {
            RequestCode.GET_UNIT_TOPIC_LIST: (True, None),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (None, True),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (False, True),
        }
        has_unit, has_unit_sub = flags[command.code]
        names = self._registry.routes.unit_topics(has_unit=has_unit, has_unit_sub=has_unit_sub)
        return _topics(command, names)


def _with_acting_master(route: RouteData, broker: BrokerData) -> BrokerData:
    """
    A broker whose master is away, with its replica of lowest id in the master's place.

    Only for brokers that registered so and only for reading (Apache's
    ``RouteInfoManager.pickupTopicRouteData`` with ``supportActingMaster``).
    """
    addresses = broker.broker_addrs
    if not addresses or MASTER_ID in addresses or not broker.enable_acting_master:
        return broker
    queues = next((q for q in route.queue_datas if q.broker_name == broker.broker_name), None)
    if queues is None or queues.perm & Permission.WRITE:
        return broker
    lowest = min(addresses)
    moved = {MASTER_ID: addresses[lowest]}
    moved |= {key: value for key, value in addresses.items() if key != lowest}
    return BrokerData(
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        broker_addrs=moved,
        enable_acting_master=True,
        zone_name=broker.zone_name,
    )


def _of_zone(route: RouteData, zone: str) -> RouteData:
    """The part of a route in *zone*; brokers without a master stay, they can be read from."""
    kept = [
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()
    ]
    names = {broker.broker_name for broker in kept}
    return RouteData(
        queue_datas=[queue for queue in route.queue_datas if queue.broker_name in names],
        broker_datas=kept,
        filter_server_table=route.filter_server_table,
        order_topic_conf=route.order_topic_conf,
    )


def _topics(
    command: RemotingCommand, names: Sequence[str], *, broker_address: str | None = None
) -> RemotingCommand:
    members: dict[str, object] = {"topicList": sorted(names)}
    if broker_address is not None:
        members["brokerAddr"] = broker_address
    return command.answer(ResponseCode.SUCCESS, {}, encode_body(members))
