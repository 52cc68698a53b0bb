"""
Models of the rule blocks: ``routes``, ``tests``, ``users``, ``acl``, ``throttle``.

Names that refer to something else in the configuration (a cluster, a listener) are checked while
they are read, from the sets in the validation context, so that all mistakes come at once.
"""

import ipaddress
import math
import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    ValidationInfo,
    model_validator,
)

from gateway.authenticators.verifiers import Verifier
from gateway.rules import HeaderTest, When, named_placeholders
from gateway.windows import TimeWindow
from protocols import subjects
from protocols.daemon.config import ConfigModel
from protocols.daemon.units import Count, DurationMs, Rate, Texts, as_list
from protocols.errors import Refused
from protocols.sql92 import parse as parse_sql
from protocols.suggestions import nearest

PROTOCOLS_KEY: Final = "protocols"
CLUSTERS_KEY: Final = "clusters"
LISTENERS_KEY: Final = "listeners"
ROUTES_KEY: Final = "routes"

ROUTE_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
_PLACEHOLDER = re.compile(r"\{([^}]*)\}")
_KNOWN_PLACEHOLDERS: Final = frozenset(
    {"identity", "client_id", "tenant", "certificate_name", "subject", "topic"}
)
_OVER = re.compile(r"wait|(?:delay\s+(\d+)\s*(ms|s)\s+then\s+)?reject")


def _known(what: str, key: str) -> Any:
    """A validator: the value is one of the names in the context."""

    def check(value: str, info: ValidationInfo) -> str:
        names = (info.context or {}).get(key)
        if names is not None and value not in names and "*" not in value:
            raise ValueError(f"'{value}' is no {what}{nearest(value, names)}")
        return value

    return AfterValidator(check)


def _topic_pattern(value: str) -> str:
    value = named_placeholders(value)
    if not value or ("*" not in value and not subjects.is_valid_filter(value)):
        raise ValueError(f"'{value}' is no topic pattern: + and # stand for whole levels, # last")
    _template(value, levels=False)
    return value


def _template(value: str, *, levels: bool = True) -> str:
    for name in _PLACEHOLDER.findall(value):
        if name in _KNOWN_PLACEHOLDERS or (levels and name.isdigit() and int(name) > 0):
            continue
        wanted = sorted(_KNOWN_PLACEHOLDERS) + (["1", "2", "…"] if levels else [])
        raise ValueError(f"'{{{name}}}' is none of {', '.join(wanted)}")
    return value


def _not_empty(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Not ``min_length``: that counts only entries without mistakes of their own."""
    if not value:
        raise ValueError("at least one entry is wanted")
    return value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError as error:
        raise ValueError(f"'{value}' is no address or CIDR range") from error
    return value


ClusterName = Annotated[str, _known("cluster", CLUSTERS_KEY)]
ListenerName = Annotated[str, _known("listener", LISTENERS_KEY)]
ProtocolName = Annotated[str, _known("protocol", PROTOCOLS_KEY)]
RouteName = Annotated[str, _known("route", ROUTES_KEY)]
TopicPattern = Annotated[str, AfterValidator(_topic_pattern)]
Template = Annotated[str, AfterValidator(_template)]
Operation = Literal["publish", "consume", "subscribe", "receive", "admin", "all"]


class HeaderConfig(ConfigModel):
    """What a stored property has to be; one of the three."""

    exact: str | None = None
    """This value, a ``*`` in it included."""

    prefix: str | None = None
    """Begins so."""

    glob: str | None = None
    """``*`` is any run of characters."""

    @model_validator(mode="after")
    def _says_one(self) -> "HeaderConfig":
        if sum(item is not None for item in (self.exact, self.prefix, self.glob)) != 1:
            raise ValueError("one of exact, prefix, glob is wanted")
        return self


Header = str | HeaderConfig


def _header_test(item: Header) -> HeaderTest:
    if isinstance(item, str):
        return HeaderTest("glob", item)
    for kind in ("exact", "prefix", "glob"):
        value = getattr(item, kind)
        if value is not None:
            return HeaderTest(kind, value)
    raise AssertionError("the model lets one of them through")


def _expression(value: str) -> str:
    if value:
        try:
            parse_sql(value)
        except Refused as error:
            raise ValueError(error.hint) from error
    return value


def _window(value: str) -> str:
    TimeWindow.parse(value)
    return value


class WhenConfig(ConfigModel):
    """Conditions: fields are and-ed, the values of one field or-ed."""

    protocol: Annotated[tuple[ProtocolName, ...], BeforeValidator(as_list)] = ()
    """``mqtt``, ``amqp``, ``cloudevents``, ``grpc``, ``remoting`` or a plug-in's name."""

    listener: Annotated[tuple[ListenerName, ...], BeforeValidator(as_list)] = ()
    """Names of listeners; ``*`` globs."""

    tenant: Texts = ()
    """Tenants; ``*`` globs. The empty tenant is ``''``."""

    identity: Texts = ()
    """User names (``*`` globs), ``role:<name>``, ``anonymous``."""

    client_ip: Annotated[
        tuple[Annotated[str, AfterValidator(_network)], ...], BeforeValidator(as_list)
    ] = ()
    """Addresses or CIDR ranges of the client."""

    topic: Annotated[tuple[TopicPattern, ...], BeforeValidator(as_list)] = ()
    """MQTT pattern (``+``, ``#``) against the address, or a ``*`` glob against topic or address;
    ``{identity}``, ``{client_id}``, ``{tenant}`` and ``{certificate_name}`` stand for the
    caller's, and so do ``%u``, ``%c``, ``${username}``, ``${clientid}``,
    ``${cert_common_name}``."""

    group: Texts = ()
    """Consumer groups; ``*`` globs."""

    operation: Annotated[tuple[Operation, ...], BeforeValidator(as_list)] = ()
    """``publish``, ``consume``, ``admin``; MQTT's ``subscribe`` and ``receive`` are both
    ``consume``."""

    header: dict[str, Header] = {}
    """Stored property → value or ``*`` glob, or one of ``{exact: …}``, ``{prefix: …}``,
    ``{glob: …}``."""

    expression: Annotated[str, AfterValidator(_expression)] = ""
    """SQL92 over the properties, as RocketMQ's filters: ``temp > 30 AND site IN ('a', 'b')``."""

    time: Annotated[
        tuple[Annotated[str, AfterValidator(_window)], ...], BeforeValidator(as_list)
    ] = ()
    """Windows such as ``mon-fri 08:00-18:00 Europe/Berlin``; days, hours or zone (UTC) may be left
    out."""

    qos: Annotated[tuple[Annotated[int, Field(ge=0, le=2)], ...], BeforeValidator(as_list)] = ()
    """QoS of the publish, or the one a subscription asks for (MQTT)."""

    retain: bool | None = None
    """Retain flag of the publish (MQTT)."""

    def conditions(self) -> When:
        """The pure form that is matched."""
        return When(
            protocol=self.protocol,
            listener=self.listener,
            tenant=self.tenant,
            identity=self.identity,
            client_ip=self.client_ip,
            topic=self.topic,
            group=self.group,
            operation=self.operation,
            header={name: _header_test(item) for name, item in self.header.items()},
            expression=parse_sql(self.expression) if self.expression else None,
            time=tuple(TimeWindow.parse(text) for text in self.time),
            qos=self.qos,
            retain=self.retain,
        )


class TargetConfig(ConfigModel):
    """Where a route sends to."""

    cluster: ClusterName
    """A name under ``clusters:``."""

    topic: Template = ""
    """Topic to store in; ``{2}`` is the second level of the address. Empty: as mapped."""

    key: Template = ""
    """Business key (``KEYS``)."""

    tag: Template = ""
    """Tag."""

    weight: int = Field(default=1, ge=0, le=1_000_000)
    """Share of the keys; 0: drained, takes no new messages, is still read from."""

    properties: dict[str, Template] = {}
    """Stored properties to add."""


class MirrorConfig(ConfigModel):
    """A second, best-effort destination: bounded, never delays or fails the sender."""

    cluster: ClusterName
    percent: float = Field(default=100, gt=0, le=100)
    """Share of the messages."""

    topic: Template = ""
    """Topic to store in; empty: that of the first target."""


class RouteConfig(ConfigModel):
    """One entry of ``routes:``; the first that matches decides."""

    name: str = Field(pattern=ROUTE_NAME)
    """Names the route in logs, metrics and ``tidegate explain``."""

    when: WhenConfig = WhenConfig()
    """Empty: matches everything."""

    to: Annotated[tuple[TargetConfig, ...], AfterValidator(_not_empty)]
    """Targets; several share by weight, by consistent hash of the key."""

    mirror: tuple[MirrorConfig, ...] = ()
    """Copies of a share of the messages."""

    prefer: Literal["", "same_zone"] = ""
    """``same_zone``: queues of stores in our zone while one of them is up and writable, then all;
    message groups (FIFO) hash over all zones."""

    failover: Annotated[tuple[ClusterName, ...], BeforeValidator(as_list)] = ()
    """Clusters to go to, in order, when a target has no route, no writable queue, or its circuit
    is open."""

    fail_back: DurationMs = Field(default=60_000, ge=0)
    """How long a target must be well before it is used again."""

    order: Literal["strict", "best_effort"] = "strict"
    """``best_effort``: messages with an order key may fail over too."""

    @model_validator(mode="after")
    def _has_weight(self) -> "RouteConfig":
        if not any(target.weight for target in self.to) and not self.failover:
            raise ValueError("every target has weight 0 and there is no failover: nothing can go")
        return self


class RuleSendConfig(ConfigModel):
    """The request of a routing test."""

    protocol: ProtocolName = "mqtt"
    identity: str = "anonymous"
    roles: Texts = ()
    tenant: str = ""
    listener: str = ""
    client_id: str = ""
    client_ip: str = "127.0.0.1"
    topic: str
    """Address, or topic."""

    group: str = ""
    operation: Literal["publish", "consume", "subscribe", "receive", "admin"] = "publish"
    header: dict[str, str] = {}
    certificate_name: str = ""
    qos: int = -1
    retain: bool = False
    at: AwareDatetime | None = None
    """When, such as ``2026-01-05T09:00:00+01:00``; absent: outside of every time window."""


class RuleExpectConfig(ConfigModel):
    """What must come of it; absent fields are not compared."""

    route: RouteName | None = None
    cluster: ClusterName | None = None
    topic: str | None = None
    key: str | None = None
    tag: str | None = None
    allowed: bool | None = None
    denied: str | None = None
    """The refusal's words, or a part of them."""


class RuleTestConfig(ConfigModel):
    """One entry of ``tests:``; run by ``config validate`` and before every reload."""

    send: RuleSendConfig
    expect: RuleExpectConfig


def _password_hash(text: str) -> str:
    if text and not text.startswith(("$argon2", "$6$", "$7$")):
        raise ValueError("is no password hash: `tidegate user add NAME` prints the line to write")
    return text


def _verifiers(texts: Texts) -> Texts:
    methods = [Verifier.parse(text).method for text in texts]
    if len({*methods}) < len(methods):
        raise ValueError("one verifier of each method")
    return texts


class UserConfig(ConfigModel):
    """One entry of ``users:``."""

    name: str = Field(min_length=1, max_length=128)
    password_hash: Annotated[str, AfterValidator(_password_hash)] = ""
    """From ``tidegate user add`` (argon2) or ``mosquitto_passwd``; empty: no password,
    certificate only."""

    scram: Annotated[Texts, AfterValidator(_verifiers)] = ()
    """Verifiers of SCRAM-SHA-256 and SCRAM-SHA-512, one each, from ``tidegate user add --scram``:
    MQTT 5 clients may prove with them that they know the password, without sending it."""

    secret: str = ""
    """Shared secret of signing clients (gRPC and remoting: HMAC-SHA1 with access key = name)."""

    roles: Texts = ()
    """What ``identity: role:<name>`` asks for."""


class AclConfig(WhenConfig):
    """One entry of ``acl:``; the first that matches decides, the end is deny."""

    allow: Annotated[tuple[Operation, ...], BeforeValidator(as_list)] = ()
    """Operations it allows: ``publish``, ``consume``, ``admin``, ``all``. Of MQTT ``subscribe``
    (asking for a filter) and ``receive`` (each topic, as it is delivered) can be told apart:
    once some rule says ``receive``, deliveries are judged too."""

    deny: Annotated[tuple[Operation, ...], BeforeValidator(as_list)] = ()
    """Operations it denies."""

    @model_validator(mode="after")
    def _says_one(self) -> "AclConfig":
        if bool(self.allow) == bool(self.deny):
            raise ValueError("a rule has either allow or deny")
        return self


class ThrottleConfig(ConfigModel):
    """One entry of ``throttle:``; all that match apply, the smallest remainder wins."""

    name: str = Field(pattern=ROUTE_NAME)
    """Names the entry in logs, metrics and ``tidegate explain``."""

    per: Literal[
        "listener", "tenant", "identity", "client", "topic", "cluster", "client_ip", "all"
    ] = "all"
    """One bucket for each value of this field."""

    when: WhenConfig = WhenConfig()
    """Empty: applies to everything."""

    publish: Rate | None = Field(default=None, gt=0)
    """Messages in, such as ``20/s`` or ``5k/s``; absent: no limit."""

    bytes: Rate | None = Field(default=None, gt=0)
    """Body bytes in, such as ``64KiB/s``."""

    connections: Count | None = Field(default=None, ge=0)
    """Open connections."""

    connect_rate: Rate | None = Field(default=None, gt=0)
    """New connections."""

    inflight: Count | None = Field(default=None, ge=1)
    """Messages accepted and not yet stored."""

    burst: DurationMs = Field(default=1000, ge=1, le=600_000)
    """How much of a rate may come at once, as so many milliseconds' worth of it."""

    over: str = "reject"
    """What happens above a rate: ``reject``, ``delay 200ms then reject``, or ``wait``: nothing is
    refused, the client is not read until there is room (protocols that can: MQTT). Of what an MQTT
    or AMQP client sends in a row the first go as far as there is room; a batch of the other
    protocols goes or is refused as one."""

    @model_validator(mode="after")
    def _limits_something(self) -> "ThrottleConfig":
        if _OVER.fullmatch(self.over) is None:
            raise ValueError("over is 'reject', 'delay <n>ms then reject' or 'wait'")
        limits = (self.publish, self.bytes, self.connections, self.connect_rate, self.inflight)
        if all(limit is None for limit in limits):
            raise ValueError("limits nothing: publish, bytes, connections, connect_rate, inflight")
        return self

    @property
    def delay_ms_max(self) -> float:
        """How long a message may be held back before it is refused."""
        if self.over == "wait":
            return math.inf
        found = _OVER.fullmatch(self.over)
        if found is None or found[1] is None:
            return 0
        return int(found[1]) * (1000 if found[2] == "s" else 1)
