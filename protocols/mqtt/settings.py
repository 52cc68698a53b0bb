"""One MQTT listener's part of ``gateway.yaml``."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from protocols import unix_sockets
from protocols.checking import CheckedModel
from protocols.daemon.units import Bytes, Count
from protocols.doors import DoorSettings
from protocols.errors import ConfigError
from protocols.groups import GroupSpec, ShareStrategy
from protocols.mqtt.naming import RewriteRule, check_mount_point
from protocols.mqtt.packets import NEVER_EXPIRES_S, V5, V31, V311
from protocols.mqtt.states import Limits
from protocols.mqtt.topics import parse_filter
from protocols.sections import checked

Strategy = Literal["round_robin", "random", "sticky", "hash_client", "hash_topic"]


Version = Literal["3.1", "3.1.1", "5.0"]

LEVELS: Final[dict[Version, int]] = {"3.1": V31, "3.1.1": V311, "5.0": V5}
"""Protocol levels of CONNECT."""


def _versions(value: object) -> object:
    """A list or one; YAML takes 5.0 for a number."""
    found = [str(item) for item in value] if isinstance(value, list | tuple) else value
    if isinstance(found, str | int | float):
        found = [str(found)]
    if isinstance(found, list):
        return ["5.0" if item == "5" else item for item in found]
    return found


def _some(versions: frozenset[Version]) -> frozenset[Version]:
    if not versions:
        raise ValueError("at least one version is wanted")
    return versions


def _filter(value: str) -> str:
    filled = re.sub(r"\{\w+\}", "x", value)
    if parse_filter(filled) is None:
        raise ValueError(f"'{value}' is no topic filter")
    return value


class AutoSubscription(CheckedModel):
    """One subscription that clients have without asking."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: Annotated[str, AfterValidator(_filter)]
    """Filter; ``{client_id}``, ``{identity}``, ``{tenant}`` stand for the client's."""

    qos: int = Field(default=1, ge=0, le=2)
    """Highest QoS of what it brings."""

    no_local: bool = False
    """Without what the client itself publishes."""

    retain_handling: int = Field(default=0, ge=0, le=2)
    """Retained values: 0 at each connect, 1 with a new session, 2 never."""


class MqttSettings(DoorSettings):
    """Keys of an MQTT listener, and of ``mqtt:`` for all of them."""

    protocol: str = "mqtt"
    bind: str = "127.0.0.1:1883"
    """``host:port``, port 0: any; or ``unix:<file>``, a socket of this machine: who may write to
    the file may connect."""

    enabled: bool = True
    tenant: str = ""
    """A fixed tenant, or ``from_cert_o`` / ``from_cert_ou``: taken from the client certificate."""

    advertise: str = ""
    websocket: bool = False
    """MQTT over WebSocket (RFC 6455, subprotocol ``mqtt``)."""

    path: str = "/mqtt"
    """Path of the WebSocket handshake."""

    origins: tuple[str, ...] = ()
    """Allowed ``Origin`` values of the WebSocket handshake; empty: any."""

    queue_qos0: bool = False
    """Keep QoS 0 messages for sessions that are away."""

    server_keep_alive_s_max: int = Field(default=0, ge=0, le=65_535)
    """Longest keep alive; who asks for more (or for none) is told this one. 0: no bound."""

    session_expiry_s_max: int = Field(default=NEVER_EXPIRES_S, ge=0, le=NEVER_EXPIRES_S)
    """Longest time a session is kept after its connection; the default: for ever."""

    versions: Annotated[frozenset[Version], BeforeValidator(_versions), AfterValidator(_some)] = (
        frozenset(LEVELS)
    )
    """Versions that are spoken: ``3.1``, ``3.1.1``, ``5.0``; a CONNECT of another is told 0x84
    (3.x: 1)."""

    anonymous: bool | None = None
    """``true``: clients without user and password come in as ``anonymous``, also where there are
    users; the ACL says what they may. ``false``: none, also where there are no users. Absent: they
    come in as long as the gateway has no users."""

    authentication_methods: tuple[str, ...] | None = None
    """Methods of enhanced authentication (5.0) that are taken, such as ``SCRAM-SHA-256``; absent:
    all that ``users`` and ``authenticators`` bring; ``[]``: none. Others are told 0x8C."""

    assigned_ids: str = Field(default="auto-", max_length=64, pattern="^[!-~]*$")
    """What the ids begin with that clients get who bring none. Empty: they get none (0x85; 3.x:
    2)."""

    connect_s_max: float = Field(default=10.0, gt=0)
    """From the open socket to a whole CONNECT, and from there to the end of an enhanced
    authentication."""

    connect_bytes_max: Bytes = Field(default=256 * 1024, ge=256)
    """Largest CONNECT, will included."""

    packet_bytes_max: Bytes = Field(default=2_000_000, ge=20, le=268_435_460)
    """Largest packet; 5.0 clients are told."""

    receive_max: int = Field(default=1024, ge=1, le=65_535)
    """Unanswered publishes of a client; 5.0 clients are told, others are not read for a while."""

    topic_alias_max: int = Field(default=10, ge=0, le=65_535)
    """Topic aliases that a 5.0 client may use; it is told."""

    qos_max: int = Field(default=2, ge=0, le=2)
    """Highest QoS of publishes and wills; 5.0 clients are told (Maximum QoS). A higher one ends the
    connection (0x9B), subscriptions are granted this one."""

    retained: bool = True
    """Take retained publishes and wills; 5.0 clients are told. Without it one ends the connection
    (0x9A)."""

    wildcard_subscriptions: bool = True
    """Take filters with ``+`` or ``#``; 5.0 clients are told. Without it one ends a 5.0 connection
    (0xA2); 3.x: 0x80."""

    shared_subscriptions: bool = True
    """Take ``$share`` filters; 5.0 clients are told. Without it one ends a 5.0 connection (0x9E);
    3.x: 0x80."""

    inflight_max: Count = Field(default=1024, ge=1, le=65_535)
    """Unacknowledged publishes to a client, if it does not set a lower bound itself."""

    queue_max: Count = Field(default=1000, ge=8, le=65_535)
    """Deliveries that a session may hold here; the others wait at the store."""

    backlog_max: Count = Field(default=0, ge=0)
    """Messages that wait for one kept session or one shared subscription, at each store, beside
    those that are out; QoS 0 counts. 0: no limit."""

    backlog_overflow: Literal["drop-head", "drop-new"] = "drop-head"
    """What goes when there are more: the oldest, or what comes."""

    subscriptions_max: Count = Field(default=10_000, ge=1)
    """Subscriptions of one session; more are refused with 0x97 (3.x: 0x80)."""

    topic_levels_max: int = Field(default=201, ge=1, le=201)
    """Levels of a topic name or filter, one more than separators; a deeper one is a protocol error
    (0x82; 3.x: close)."""

    will_bytes_max: Bytes = Field(default=2_000_000, ge=0)
    """Largest will payload; a CONNECT with a larger one is refused with 0x95."""

    retained_s_max: int = Field(default=0, ge=0)
    """How long a retained value is handed to new subscribers; 0: for good."""

    guards_sessions: bool = False
    """A client id belongs to the identity that connected with it, as long as it is connected or
    its session is kept: another user's CONNECT with it is refused (0x87; 3.x: 5) instead of taking
    over."""

    checks_retained_source: bool = False
    """Keep with a retained publish who sent it, and hand it to new subscribers only as long as
    that client may still publish there."""

    opening_max: Count = Field(default=500, ge=1)
    """CONNECTs in work at once; others wait their turn."""

    opening_s_max: float = Field(default=10.0, gt=0)
    """How long a CONNECT may wait for its turn before it is told 0x89 (3.x: 3). By default long
    enough for thousands of kept sessions whose gateway has died."""

    mount_point: Annotated[str, AfterValidator(check_mount_point)] = ""
    """Put before every topic and filter of a client and taken off again on the way out:
    ``tenants/{tenant}/``; also ``{client_id}``, ``{identity}``, ``{certificate_name}``."""

    rewrite: tuple[RewriteRule, ...] = ()
    """Topics and filters that become others: ``{topic: "old/+/#", to: "new/{2}/{#}"}``."""

    auto_subscribe: tuple[AutoSubscription, ...] = ()
    """What every client is subscribed to when it connects, if the ACL lets it."""

    cloudevents: Literal["binary", "structured"] = "binary"
    """``structured``: JSON of CloudEvents is taken apart when it comes in (5.0: by its content
    type; 3.x: by its form), and 3.x clients get events as JSON instead of their data alone."""

    apache_properties: bool = False
    """Write the properties and the tag of Apache rocketmq-mqtt (``originMqttTopic``,
    ``qosLevel``, ``clientId``, ``MQTT_COMMON``) beside ours, and name the light queues that its
    nodes read where an Apache broker is the store."""

    events_topic: str = Field(default="", pattern=r"^[a-zA-Z0-9_-]{0,64}$")
    """RocketMQ topic of online and offline events, which MQTT clients see under
    ``$events/<client id>/online`` and ``…/offline``; made when needed. Empty: none are sent."""

    denied: Literal["ignore", "disconnect"] = "ignore"
    """What a publish that the ACL denies costs: the message (5.0 is told 0x87), or the
    connection."""

    system_interval_s: float = Field(default=10.0, gt=0)
    """How often subscribers of ``$SYS/#`` are told what changed."""

    response_information: str = ""
    """Told in CONNACK to clients that ask for it: where answers to their requests may go, such as
    ``replies/{client_id}``."""

    checks_payload_format: bool = True
    """Refuse a publish or will that says it is text (Payload Format Indicator 1) and is no UTF-8:
    0x99."""

    tells_unmatched: bool = False
    """Acknowledge with 0x10 a publish of QoS 1 that no MQTT client subscribes to now (consumers of
    the topic are not asked). Costs time per message."""

    shared_strategy: Strategy = "round_robin"
    """Which member of a shared subscription gets a message. ``sticky``: the oldest, as long as it
    is there; ``hash_client``, ``hash_topic``: the same one for all of a publisher, of a topic,
    unless it has no room. Of members at different listeners the last to subscribe decides."""

    shared_strategies: Mapping[str, Strategy] = {}
    """The same by share name: ``{workers: hash_topic}``."""

    subscribe_denied: Literal[0x80, 0x87, 0] = 0x87
    """SUBACK code of a filter that the ACL denies (3.x: always 0x80). 0: the client is told that it
    has it, as by Mosquitto, and nothing comes."""

    def strategy_of(self, share: str) -> ShareStrategy:
        name = self.shared_strategies.get(share, self.shared_strategy)
        return ShareStrategy[name.upper()]

    def takes_method(self, method: str) -> bool:
        return self.authentication_methods is None or method in self.authentication_methods

    def limited(self, group: GroupSpec) -> GroupSpec:
        """A group that keeps messages for clients, within this listener's bound."""
        if not self.backlog_max or group.is_volatile:
            return group
        policy = (("max_length", self.backlog_max), ("overflow", self.backlog_overflow))
        return replace(group, policy=policy)

    @property
    def limits(self) -> Limits:
        return Limits(
            connect_s_max=self.connect_s_max,
            connect_bytes_max=self.connect_bytes_max,
            packet_bytes_max=self.packet_bytes_max,
            receive_max=self.receive_max,
            topic_alias_max=self.topic_alias_max,
            qos_max=self.qos_max,
            takes_retained=self.retained,
            levels=frozenset(LEVELS[version] for version in self.versions),
        )


def read_settings(name: str, section: Mapping[str, Any]) -> MqttSettings:
    """The settings of listener *name*. Raises ConfigError with every mistake."""
    bind = section.get("bind")
    if not isinstance(bind, str) or not bind.startswith(unix_sockets.PREFIX):
        return checked(MqttSettings, name, section, "bind")
    try:
        unix_sockets.path_of(bind)
    except ValueError as error:
        raise ConfigError([f"listeners.{name}.bind: {error}"]) from error
    return checked(MqttSettings, name, section)
