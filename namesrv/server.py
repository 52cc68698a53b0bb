"""Answers the requests that a name server gets: one table of handlers; who is registered."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from namesrv.bodies import decode_register_body
from namesrv.config import NamesrvConfig
from namesrv.files import write_whole
from namesrv.gateways import Gateways
from namesrv.kvconfig import ORDER_TOPICS, KvTable
from namesrv.members import MemberFile
from namesrv.metrics import Metrics
from namesrv.queries import Queries
from namesrv.registry import Registration, Registry
from namesrv.settings import HotSettings
from namesrv.watching import Watchers
from protocols import clock
from protocols.errors import PeerError, Refused
from protocols.remoting.bodies import DataVersion, RouteData, decode_body, encode_body
from protocols.remoting.bodies import KvTable as KvBody
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import CHANGES_SINCE, DROPPED_TOPICS, TAKES_CHANGES
from protocols.remoting.discovery import encode_body as encode_private
from protocols.remoting.headers import (
    HeaderError,
    bool_field,
    bool_text,
    int_field,
    text_field,
)
from protocols.remoting.peer import Peer
from protocols.remoting.private import PrivateCode
from protocols.remoting.signing import ACCESS_KEY, is_signed_by
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.namesrv")

Handler = Callable[[Peer, RemotingCommand], RemotingCommand | None]
"""None: the answer comes later."""

CHANGES: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        PrivateCode.GATEWAY_REGISTER,
    }
)
"""Must be signed with the cluster's secret where one is configured; reading is free."""

LATE_S_MAX: Final = 0.5
"""A timer that is later than this was not held up by work: the machine stopped the process."""

SAVED: Final = frozenset({RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG})
"""Answered when the key-value table is on disk."""


class NameServerHandler:
    """The remoting handler; LOCAL mode calls it without a socket."""

    def __init__(
        self,
        config: NamesrvConfig,
        registry: Registry,
        kv: KvTable,
        members: MemberFile,
        metrics: Metrics,
        *,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        self.registry = registry
        self.gateways = Gateways()
        self.members = members
        self.watchers = Watchers(registry, members)
        self._config = config
        self._settings = HotSettings(config)
        self._kv = kv
        self._metrics = metrics
        self._credentials = credentials
        self._tasks = Tasks("namesrv")
        self._saving = asyncio.Lock()
        self._is_saving_members = False
        self._timer: asyncio.TimerHandle | None = None
        self._known_peers: set[Peer] = set()
        self._handlers = self._table()

    def _table(self) -> dict[int, Handler]:
        queries = Queries(self.registry, self._kv, self._settings)
        return {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: queries.member_group,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: queries.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: queries.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: queries.topic_list,
            RequestCode.GET_TOPICS_BY_CLUSTER: queries.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: queries.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: queries.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: queries.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: queries.unit_topics,
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            PrivateCode.GATEWAY_REGISTER: self._register_gateway,
            PrivateCode.GATEWAY_LIST: self._list_gateways,
            PrivateCode.ROUTE_WATCH: self._watch_routes,
        }

    # ── one read of one peer ────────────────────────────────────────────────────────────

    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        answers: list[RemotingCommand] = []
        for command in commands:
            self._metrics.request(command.code)
            answer = self._answer(peer, command)
            if answer is None:
                continue  # a later answer: it waits for the disk
            if not command.is_oneway:
                answers.append(answer)
        if answers:
            peer.send(answers)
        self._arm()
        self.watchers.tell()
        if self.members.is_changed and not self._is_saving_members:
            self._is_saving_members = True
            self._tasks.start(self._save_members(), name="save members")

    def _answer(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        handler = self._handlers.get(command.code)
        if handler is None:
            return command.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request type {command.code} not supported",
            )
        if command.code in CHANGES and not self._is_allowed(command):
            if self._is_done(command):
                return command.answer()
            return command.answer(
                ResponseCode.NO_PERMISSION, remark="not signed with the cluster's credentials"
            )
        try:
            answer = handler(peer, command)
        except (HeaderError, PeerError) as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Refused as error:
            return command.answer(ResponseCode.SYSTEM_BUSY, remark=str(error))
        if answer is not None and command.code in SAVED:
            self._tasks.start(self._save_kv(peer, command, answer), name="save")
            return None
        return answer

    def _is_allowed(self, command: RemotingCommand) -> bool:
        if self._credentials is None:
            return True
        access_key, secret = self._credentials
        return command.fields.get(ACCESS_KEY) == access_key and is_signed_by(command, secret)

    def _is_done(self, command: RemotingCommand) -> bool:
        """
        There is nothing left to change. ``mqadmin deleteTopic`` signs as a user, whom stores
        know: they have deleted the topic, and told us, when the tool comes here.
        """
        topic = command.fields.get("topic", "")
        is_deletion = command.code == RequestCode.DELETE_TOPIC_IN_NAMESRV
        return is_deletion and self.registry.routes.find(topic) is None

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.watchers.close()
        await self._tasks.close()
        await self._save_members()

    # ── brokers ─────────────────────────────────────────────────────────────────────────

    def _register(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        fields = command.fields
        wrapper = decode_register_body(command).topic_config_serialize_wrapper
        lease_ms = int_field(fields, "heartbeatTimeoutMillis", self._config.lease_ms)
        given = Registration(
            cluster=text_field(fields, "clusterName"),
            broker=text_field(fields, "brokerName"),
            broker_id=int_field(fields, "brokerId"),
            address=text_field(fields, "brokerAddr"),
            ha_address=text_field(fields, "haServerAddr", ""),
            zone=fields.get("zoneName"),
            lease_s=max(lease_ms, 500) / 1000,
            is_acting_master_enabled=bool_field(fields, "enableActingMaster"),
            is_full_table=bool_field(fields, "isFullTable"),
            changes_since=_changes_since(fields),
            dropped=tuple(filter(None, fields.get(DROPPED_TOPICS, "").split(","))),
            data_version=wrapper.data_version,
            topics=wrapper.topic_config_table,
        )
        before = self._lowest_id(given.broker)
        result = self.registry.register(given, peer, clock.monotonic())
        if result.is_whole_wanted:
            return command.answer(ResponseCode.BROKER_NOT_EXIST, remark=result.refused)
        if result.refused:
            self._metrics.refused.inc()
            logger.warning("registration of %s refused: %s", given.address, result.refused)
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=result.refused)
        self._watch(peer)
        self.members.came(given.broker, given.cluster)
        self._tell_lowest_id(given.broker, before, gone="")
        order = self._kv.entries(ORDER_TOPICS) if self._settings.order_topics else None
        return command.answer(
            ResponseCode.SUCCESS,
            {
                **_present(haServerAddr=result.ha_address, masterAddr=result.master_address),
                TAKES_CHANGES: "true",
            },
            encode_body(KvBody(table=order)) if order else b"",
        )

    def _unregister(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        fields = command.fields
        broker, address = text_field(fields, "brokerName"), text_field(fields, "brokerAddr")
        before = self._lowest_id(broker)
        if self.registry.unregister(text_field(fields, "clusterName"), broker, address):
            logger.info("broker %s at %s unregistered", broker, address)
            if broker not in self.registry.routes.brokers:
                self.members.left(broker)
            self._tell_lowest_id(broker, before, gone=address)
        return command.answer()

    def _query_data_version(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        cluster = text_field(command.fields, "clusterName")
        address = text_field(command.fields, "brokerAddr")
        given = decode_body(DataVersion, command.body) if command.body else DataVersion()
        known = self.registry.data_version(cluster, address)
        if known == given:
            self._watch(peer)
            self.registry.leases.renew(cluster, address, None, peer, clock.monotonic())
        return command.answer(
            ResponseCode.SUCCESS,
            {"changed": bool_text(known != given)},
            encode_body(known) if known is not None else b"",
        )

    def _heartbeat(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """Oneway from Apache's brokers; asked with an answer it tells who must register again."""
        fields = command.fields
        lease_ms = int_field(fields, "heartbeatTimeoutMills", 0)
        is_known = self.registry.leases.renew(
            text_field(fields, "clusterName"),
            text_field(fields, "brokerAddr"),
            lease_ms / 1000 if lease_ms > 0 else None,
            peer,
            clock.monotonic(),
        )
        if is_known:
            self._watch(peer)
            return command.answer()
        return command.answer(ResponseCode.BROKER_NOT_EXIST, remark="register first")

    def _lowest_id(self, broker: str) -> int | None:
        found = self.registry.routes.brokers.get(broker)
        if found is None or not found.enable_acting_master:
            return None
        return min(found.broker_addrs)

    def _tell_lowest_id(self, broker: str, before: int | None, *, gone: str) -> None:
        """Replicas with an acting master learn who has the lowest id now (905, oneway)."""
        after = self._lowest_id(broker)
        if after is None or before is None or after == before:
            return
        found = self.registry.routes.brokers[broker]
        fields = _present(
            minBrokerId=str(after),
            brokerName=broker,
            minBrokerAddr=found.broker_addrs[after],
            offlineBrokerAddr=gone,
        )
        for address in found.broker_addrs.values():
            lease = self.registry.leases.get(found.cluster, address)
            if lease is not None and isinstance(lease.connection, Peer):
                lease.connection.send_oneway(
                    RemotingCommand(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, dict(fields))
                )

    # ── liveness ────────────────────────────────────────────────────────────────────────

    def _watch(self, peer: Peer) -> None:
        if peer not in self._known_peers:
            self._known_peers.add(peer)
            peer.on_lost(self._peer_lost)

    def _peer_lost(self, peer: Peer) -> None:
        self._known_peers.discard(peer)
        self.gateways.connection_lost(peer)
        self.watchers.lost(peer)
        self.registry.leases.connection_lost(peer, clock.monotonic())
        self._arm()

    def _arm(self) -> None:
        """One timer for the lease that ends first; one that was renewed is looked at in vain."""
        due = self.registry.leases.deadline
        if due is None or (self._timer is not None and self._timer.when() <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._expire, due)

    def _expire(self, due: float) -> None:
        self._timer = None
        now = clock.monotonic()
        if now - due > LATE_S_MAX:  # what brokers said meanwhile is in their sockets, unread
            logger.warning("this process did not run for %.1f s; leases are prolonged", now - due)
            self.registry.leases.prolong(now - due + LATE_S_MAX, now)
        for lease in self.registry.expire(now):
            self._metrics.expired.inc()
            reason = "its connection was lost" if lease.lost_at is not None else "it is silent"
            logger.warning("broker %s at %s is gone: %s", lease.broker, lease.address, reason)
        self._arm()
        self.watchers.tell()

    # ── changes by tools ────────────────────────────────────────────────────────────────

    def _wipe_write_permission(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        broker = text_field(command.fields, "brokerName")
        count = self.registry.routes.change_write_permission(broker, False)
        return command.answer(ResponseCode.SUCCESS, {"wipeTopicCount": str(count)})

    def _add_write_permission(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        broker = text_field(command.fields, "brokerName")
        count = self.registry.routes.change_write_permission(broker, True)
        return command.answer(ResponseCode.SUCCESS, {"addTopicCount": str(count)})

    def _delete_topic(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        topic = text_field(command.fields, "topic")
        self.registry.routes.drop_topic(topic, text_field(command.fields, "clusterName", ""))
        return command.answer()

    def _register_topic(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        topic = text_field(command.fields, "topic")
        route = decode_body(RouteData, command.body) if command.body else RouteData()
        self.registry.routes.put_queues(topic, route.queue_datas)
        return command.answer()

    # ── key-value table and configuration ───────────────────────────────────────────────

    def _put_kv(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        fields = command.fields
        self._kv.put(
            text_field(fields, "namespace"), text_field(fields, "key"), text_field(fields, "value")
        )
        return command.answer()

    def _delete_kv(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        self._kv.delete(text_field(command.fields, "namespace"), text_field(command.fields, "key"))
        return command.answer()

    async def _save_kv(self, peer: Peer, command: RemotingCommand, answer: RemotingCommand) -> None:
        """Answer a change when it is on disk; saves run one after the other, newest wins."""
        try:
            async with self._saving:
                await asyncio.to_thread(self._kv.save, self._kv.to_bytes())
        except OSError as error:
            logger.error("key-value table not saved: %s", error)
            answer = command.answer(ResponseCode.SYSTEM_ERROR, remark=f"not saved: {error}")
        if not command.is_oneway:
            peer.send((answer,))

    def _get_kv(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        namespace, key = (text_field(command.fields, name) for name in ("namespace", "key"))
        value = self._kv.get(namespace, key)
        if value is None:
            return command.answer(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {namespace} Key: {key}",
            )
        return command.answer(ResponseCode.SUCCESS, {"value": value})

    def _list_kv(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        namespace = text_field(command.fields, "namespace")
        entries = self._kv.entries(namespace)
        if entries is None:
            return command.answer(
                ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}"
            )
        return command.answer(ResponseCode.SUCCESS, {}, encode_body(KvBody(table=entries)))

    def _get_config(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        settings = {**self._config.model_dump(mode="json"), **self._settings.lines()}
        text = "".join([f"{key}={value}\n" for key, value in sorted(settings.items())])
        return command.answer(ResponseCode.SUCCESS, {}, text.encode())

    def _update_config(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """Only keys of the allow-list, and only when the cluster has credentials or on loopback."""
        try:
            changed = self._settings.update(bytes(command.body).decode())
        except Refused as error:
            return command.answer(ResponseCode.NO_PERMISSION, remark=str(error))
        except UnicodeDecodeError:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="the body is no text")
        self.registry.topics_max = self._settings.topics_max
        logger.warning("settings changed by %s until the next start: %s", peer.address, changed)
        return command.answer()

    # ── gateways ────────────────────────────────────────────────────────────────────────

    def _register_gateway(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        self.gateways.register(command.body, peer, clock.monotonic())
        self._watch(peer)
        return command.answer()

    def _list_gateways(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        wishes = {name: command.fields.get(name, "") for name in ("protocol", "zone", "topic")}
        found = self.gateways.find(clock.monotonic(), self.registry.routes, **wishes)
        return command.answer(ResponseCode.SUCCESS, {}, encode_private(found))

    def _watch_routes(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        self._watch(peer)
        return self.watchers.ask(peer, command)

    async def _save_members(self) -> None:
        """Until what is on disk is what is known; a disk that fails is tried again later."""
        members = self.members
        try:
            while members.is_changed:
                version, content = members.version, members.to_bytes()
                await asyncio.to_thread(write_whole, members.path, content)
                members.saved(version)
        except OSError as error:
            logger.error("names of the brokers not saved: %s", error)
        finally:
            self._is_saving_members = False


def _changes_since(fields: Mapping[str, str]) -> tuple[int, int] | None:
    """Raises HeaderError."""
    text = fields.get(CHANGES_SINCE, "")
    if not text:
        return None
    timestamp, _, counter = text.partition(":")
    if not (timestamp.isdigit() and counter.isdigit()):
        raise HeaderError(CHANGES_SINCE, f"is no timestamp:counter: {text[:40]}")
    return int(timestamp), int(counter)


def _present(**fields: str) -> dict[str, str]:
    """Only fields with a value: a null one is absent on the wire."""
    return {name: value for name, value in fields.items() if value}
