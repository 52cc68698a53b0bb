"""
The configuration: one schema, every mistake at once, safe by default.

``read`` gives the checked ``GatewayConfig``; what refers to files, ports or other machines is
looked at only when it is used. conf/README.md is generated from the docstrings here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.authenticators.settings import AuthenticatorConfig
from gateway.ruleconfig import (
    CLUSTERS_KEY,
    LISTENERS_KEY,
    PROTOCOLS_KEY,
    ROUTES_KEY,
    AclConfig,
    ClusterName,
    RouteConfig,
    RuleTestConfig,
    ThrottleConfig,
    UserConfig,
)
from protocols.adapter import ENTRY_POINT_GROUP
from protocols.daemon.config import (
    ClusterAuth,
    ConfigModel,
    build,
    unknown_blocks,
)
from protocols.daemon.documents import Document, load
from protocols.daemon.settings import apply_settings
from protocols.daemon.units import Addresses, Bind, Bytes, Count, DurationMs, Rate, Texts, as_list
from protocols.errors import ConfigError
from protocols.subjects import is_valid_filter
from protocols.suggestions import nearest
from protocols.tls import TlsSettings

DEFAULT_LISTENERS: Final[Mapping[str, tuple[str, str]]] = {
    "mqtt": ("mqtt", "127.0.0.1:1883"),
    "mqtt-ws": ("mqtt", "127.0.0.1:8083"),
    "amqp": ("amqp", "127.0.0.1:5672"),
    "events": ("cloudevents", "127.0.0.1:8088"),
    "grpc": ("grpc", "127.0.0.1:8081"),
    "remoting": ("remoting", "127.0.0.1:8080"),
    "admin": ("admin", "127.0.0.1:8089"),
}
"""Listeners that are there unless the file says ``enabled: false``: name → (protocol, bind)."""

ADMIN_PROTOCOL: Final = "admin"
DEFAULT_CLUSTER: Final = "default"
DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
OTHER_DAEMONS: Final = ("store", "namesrv", "spark")
"""Blocks that other daemons validate."""


def protocol_names() -> set[str]:
    """Every protocol that is installed, and ``admin``."""
    return {point.name for point in entry_points(group=ENTRY_POINT_GROUP)} | {ADMIN_PROTOCOL}


class DirectoryConfig(ConfigModel):
    """Which store keeps sessions, subscriptions, topology and leases."""

    cluster: ClusterName = ""
    """A name under ``clusters:``; empty: wherever a store says it is the directory store."""

    store: str = ""
    """Broker name; empty: the store of that cluster that has ``store.directory: true``."""


def _topic_filter(value: str) -> str:
    if not is_valid_filter(value):
        raise ValueError(f"'{value}' is no topic filter")
    return value


class ReceiveConfig(ConfigModel):
    """What a bridge subscribes to at the other broker."""

    topic: Annotated[str, AfterValidator(_topic_filter)]
    """Filter there."""

    qos: int = Field(default=1, ge=0, le=2)
    local_prefix: str = ""
    """Put before the topic here."""


class BridgeConfig(ConfigModel):
    """How a bridge target talks to the other broker (MQTT 3.1.1, AMQP 0-9-1)."""

    client_id: str = ""
    """Empty: ``tidegate-<name>``. The session there is kept while we are away. AMQP: name of the
    connection."""

    qos: int = Field(default=1, ge=0, le=1)
    """Highest QoS of what is sent."""

    remote_prefix: str = ""
    """Put before the address there."""

    receive: tuple[ReceiveConfig, ...] = ()
    """What comes the other way: published here in the name of ``bridge/<name>``."""

    inflight_max: Count = Field(default=100, ge=1, le=10_000)
    """Messages on their way at once; the others wait at the stores."""

    keep_alive_s: int = Field(default=30, ge=5, le=65_000)
    """Keep alive, or AMQP's heartbeat."""

    retry_s_max: int = Field(default=30, ge=1, le=3600)
    """Longest wait between attempts to connect; the first is half a second, each up to twice the
    one before."""

    ca_file: Path | None = None
    """Authorities of the other broker's certificate (``mqtts://``, ``wss://``, ``amqps://``);
    absent: the system's."""

    cert_file: Path | None = None
    """Our certificate, where the other broker wants one; read anew for each link."""

    key_file: Path | None = None
    """Its key."""

    exchange: str = "amq.topic"
    """AMQP: the topic exchange there; ``/`` is ``.`` in its routing keys."""

    queue: str = ""
    """AMQP: the durable queue there that keeps what is to be received; empty:
    ``tidegate.<name>``. A filter that is taken out here stays bound there."""

    @model_validator(mode="after")
    def _has_both(self) -> "BridgeConfig":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        return self


SCHEMES: Final = {"amqp": ("amqp", "amqps"), "mqtt": ("mqtt", "mqtts", "ws", "wss")}
"""Of bridge targets by type."""


class ClusterConfig(ConfigModel):
    """One broker cluster, ours or Apache RocketMQ 5, or a bridge target."""

    type: Literal["rocketmq", "amqp", "mqtt"] = "rocketmq"
    """``amqp`` and ``mqtt`` are bridge targets (extra ``bridge``)."""

    namesrv: Addresses = ()
    """Name servers: a list or ``a:p;b:p``."""

    broker_cluster: str = ""
    """Cluster name at that name server; empty: the only one there."""

    zones: dict[str, str] = {}
    """Broker name → zone, for ``prefer: same_zone``; others as they registered (``store.zone``)."""

    auth: ClusterAuth | None = None
    """Credentials for its name servers and brokers; absent: those of ``cluster_auth``."""

    url: str = ""
    """Bridge targets: where to connect."""

    url_file: Path | None = None
    """Bridge targets: file with the URL, when it holds a password."""

    bridge: BridgeConfig = BridgeConfig()
    """Bridge targets: ``mqtt://``, ``mqtts://``, ``ws://``, ``wss://``; ``amqp://``,
    ``amqps://``."""

    @model_validator(mode="after")
    def _has_address(self) -> "ClusterConfig":
        if self.type == "rocketmq" and not self.namesrv:
            raise ValueError("namesrv is missing")
        if self.type == "rocketmq":
            if self.url or self.url_file is not None:
                raise ValueError("url and url_file are for bridge targets: type amqp or mqtt")
            return self
        if not self.url and self.url_file is None:
            raise ValueError(f"a cluster of type {self.type} wants url or url_file")
        if self.namesrv or self.broker_cluster or self.zones:
            raise ValueError(f"a cluster of type {self.type} has no name servers, only url")
        schemes = SCHEMES[self.type]
        if self.url and self.url.partition("://")[0] not in schemes:
            raise ValueError(
                f"'{self.url.partition('@')[2] or self.url}' is no {schemes[0]}:// URL"
            )
        return self


def _tenant_source(value: str) -> str:
    kind, _, argument = value.partition(" ")
    if "%" in value:  # parts the tenant from the topic in stored names
        raise ValueError(f"'{value}': a tenant has no %")
    known = ("from_cert_o", "from_cert_ou", "from_vhost", "from_namespace", "from_header")
    if kind.startswith("from_") and kind not in known:
        raise ValueError(f"'{value}' is none of {', '.join(known)}{nearest(kind, known)}")
    if (kind == "from_header") != bool(argument.strip()):
        raise ValueError("write 'from_header <name>', a name of its own, or another source")
    return value


class ListenerConfig(ConfigModel):
    """
    One open door. Keys beyond these are the protocol's own; its adapter checks them.
    """

    model_config = {**ConfigModel.model_config, "extra": "allow"}

    protocol: str
    """``mqtt``, ``amqp``, ``cloudevents``, ``grpc``, ``remoting``, ``admin`` or a plug-in's."""

    bind: Bind
    """``host:port``; port 0 takes any, the ready line says which. MQTT also: ``unix:<file>``."""

    enabled: bool = True
    """False: leave a default listener out."""

    tls: TlsSettings | None = None
    """Absent: plain text."""

    proxy_protocol: bool = False
    """Every connection begins with a PROXY header (version 1 or 2), whose address is the
    client's in ACL, throttles and logs. Not for gRPC."""

    proxy_from: Texts = ()
    """Addresses or CIDR ranges of the load balancers that may connect; empty: any."""

    proxy_requires: Literal["nothing", "tls", "certificate"] = "nothing"
    """What the load balancer has to say of a client (version 2): that it spoke ``tls`` to it, or
    showed a ``certificate`` that the balancer verified. Not for gRPC."""

    accept_rate: Rate | None = Field(default=None, gt=0)
    """New connections, such as ``500/s``; more wait in the kernel's queue. Not for gRPC."""

    tenant: Annotated[str, AfterValidator(_tenant_source)] = ""
    """A fixed tenant, or where it comes from: ``from_cert_o``, ``from_cert_ou``, ``from_vhost``,
    ``from_namespace``, ``from_header <name>``. AMQP without it: ``from_vhost``."""

    advertise: str = ""
    """``host:port`` that route answers name; empty: the bound address."""

    websocket: bool = False
    """MQTT over WebSocket (subprotocol ``mqtt``)."""

    path: str = "/mqtt"
    """WebSocket path."""


class ProtocolSection(ConfigModel):
    """Settings of all listeners of one protocol; the adapter checks them."""

    model_config = {**ConfigModel.model_config, "extra": "allow"}


class MqttConfig(ProtocolSection):
    """What is the same for all MQTT listeners, beside the settings of each."""

    mapping: Literal["levels", "flat"] = "levels"
    """``levels``: the first level is the topic if there is one of that name, else the topic
    ``mqtt``. ``flat``: the same with the whole topic name, ``/`` written as ``_``.
    Subscribers see no difference: they are matched by the topic name."""

    auto_topics: Count = Field(default=0, ge=0)
    """How many topics publishes may bring into being, over all gateways and for good (a row of the
    directory each); 0: none, all that has no topic goes to ``mqtt``."""


class FlappingConfig(ConfigModel):
    """A client id that connects too often at one gateway is banned for a while, at all of them."""

    connects: int = Field(default=15, ge=2)
    """Connections in one window that are still normal."""

    window: DurationMs = Field(default=60_000, ge=1000)
    ban: DurationMs = Field(default=300_000, ge=1000)


class LimitsConfig(ConfigModel):
    """Bounds of the gateway as a whole."""

    trace_folder: Path = Path("traces")
    """Where traces of single clients, topics and addresses are written."""

    trace_bytes_max: Bytes = Field(default=16 << 20, ge=1024)
    """Size of one trace; what comes later is counted."""

    flapping: FlappingConfig | None = None
    """Absent: nobody is banned by itself."""

    connections_max: Count = Field(default=100_000, ge=1)
    """Client connections over all listeners; never more than the system lets the process open
    (``ulimit -n``), of which some are kept for files and stores."""

    store_wait: DurationMs = Field(default=10_000, ge=0, le=300_000)
    """How long a publish waits for a store that is away and that it could not do without, before it
    is refused: a store that is started anew costs no connection. gRPC and remoting: at most 2 s, as
    their clients try again by themselves. A store that was up is waited for 3 s in any case."""

    store_wait_bytes_max: Bytes = Field(default=64 << 20, ge=0)
    """Of what waits so, over all clients; more is refused at once."""


class GatewayConfig(ConfigModel):
    """The whole file, as the gateway sees it."""

    version: Literal[1] = 1
    """Of this schema."""

    zone: str = ""
    """Availability zone of this process."""

    name: str = Field(default="gw-1", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Name of this gateway: its lease in the directory. Unique among live gateways."""

    include: Any = None
    """Further files of the same schema."""

    directory: DirectoryConfig = DirectoryConfig()
    """Where sessions, subscriptions, queues and leases are kept."""

    cluster_auth: ClusterAuth | None = None
    """What store, name server and gateway show one another."""

    clusters: dict[str, ClusterConfig] = {}
    """Broker clusters by name; absent: one named `default` at 127.0.0.1:9876 or `--namesrvAddr`."""

    listeners: dict[str, ListenerConfig] = {}
    """Open doors by name; the default ones are there without an entry."""

    routes: tuple[RouteConfig, ...] = ()
    """Where messages go; the first match decides. Absent: all to the first cluster."""

    tests: tuple[RuleTestConfig, ...] = ()
    """Requests and what must come of them, checked before every start and reload."""

    users: tuple[UserConfig, ...] = ()
    """Who may log in; the first one turns anonymous access off everywhere."""

    authenticators: Annotated[tuple[AuthenticatorConfig, ...], BeforeValidator(as_list)] = ()
    """Asked in order after the users: ``{type: passwords | jwt | http, …}``, or a plug-in by its
    name or as ``{type: <name>, settings: {…}}``. The first that knows the client decides."""

    acl: tuple[AclConfig, ...] | None = None
    """Absent: every authenticated identity may do everything."""

    acl_file: Path | None = None
    """An ACL file of Mosquitto, as it is; judges what no rule of ``acl`` matches. With it, what
    is delivered to MQTT clients is judged topic by topic."""

    throttle: tuple[ThrottleConfig, ...] = ()
    """Token buckets; all that match apply."""

    limits: LimitsConfig = LimitsConfig()
    """Bounds of the gateway as a whole."""

    mqtt: MqttConfig = MqttConfig()
    """Of all MQTT listeners."""

    amqp: ProtocolSection = ProtocolSection()
    """Of all AMQP listeners."""

    cloudevents: ProtocolSection = ProtocolSection()
    """Of all CloudEvents listeners."""

    grpc: ProtocolSection = ProtocolSection()
    """Of all gRPC listeners."""

    remoting: ProtocolSection = ProtocolSection()
    """Of all remoting listeners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checked configuration and where it came from."""

    config: GatewayConfig
    document: Document


def read(
    path: Path | None,
    settings: Iterable[str] = (),
    *,
    namesrv: Iterable[str] = (),
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """
    The configuration of *path* with *settings* on top.

    Args:
        namesrv: of ``--namesrvAddr``: without clusters in the file this is the cluster
            ``default``; with them it is a mistake.

    Raises:
        ConfigError: all mistakes.
    """
    document = load(path, environ=environ, text=text)
    apply_settings(document, settings)
    return check(document, namesrv=tuple(namesrv))


def check(document: Document, *, namesrv: tuple[str, ...] = ()) -> Loaded:
    """Validate a document. Raises ConfigError with all mistakes."""
    from gateway.checks import cross_problems

    problems = unknown_blocks(document)
    if namesrv and document.value.get("clusters"):
        problems.append("--namesrvAddr: the file has clusters of its own; give one or the other")
    value = with_defaults(document, namesrv)
    context = reference_context(value)
    try:
        config = build(document, GatewayConfig, value, context=context)
    except ConfigError as error:
        raise ConfigError(problems + error.problems) from None
    problems += cross_problems(config, document)
    if problems:
        raise ConfigError(problems)
    return Loaded(config=config, document=document)


def with_defaults(document: Document, namesrv: tuple[str, ...] = ()) -> dict[str, Any]:
    """The document's tree with the default cluster, listeners and route filled in."""
    value = {
        key: item
        for key, item in document.value.items()
        if key not in OTHER_DAEMONS and item is not None and key in GatewayConfig.model_fields
    }
    if not value.get("clusters"):
        value["clusters"] = {DEFAULT_CLUSTER: {"namesrv": list(namesrv) or [DEFAULT_NAMESRV]}}
    if not value.get("routes") and isinstance(value["clusters"], dict):
        value["routes"] = [{"name": "default", "to": [{"cluster": next(iter(value["clusters"]))}]}]
    given = value.get("listeners", {})
    if isinstance(given, dict):
        value["listeners"] = {name: default_listener(name) for name in DEFAULT_LISTENERS}
        for name, item in given.items():
            merged = {**default_listener(name), **item} if isinstance(item, dict) else item
            value["listeners"][name] = merged
    return value


def default_listener(name: str) -> dict[str, Any]:
    """The settings a listener of this name has by itself."""
    if name not in DEFAULT_LISTENERS:
        return {}
    protocol, bind = DEFAULT_LISTENERS[name]
    listener: dict[str, Any] = {"protocol": protocol, "bind": bind}
    if name == "mqtt-ws":
        listener["websocket"] = True
    return listener


def reference_context(value: Mapping[str, Any]) -> dict[str, set[str]]:
    """The names that other parts of the file may refer to."""

    def names(block: str) -> set[str]:
        found = value.get(block)
        return {str(key) for key in found} if isinstance(found, dict) else set()

    routes = value.get("routes")
    return {
        CLUSTERS_KEY: names("clusters") | {""},
        LISTENERS_KEY: names("listeners"),
        PROTOCOLS_KEY: protocol_names(),
        ROUTES_KEY: {
            str(route.get("name"))
            for route in (routes if isinstance(routes, list) else [])
            if isinstance(route, dict)
        },
    }
