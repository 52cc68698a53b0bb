"""
The store's configuration in Apache's words: read (26), and changed by an allow-list (25).

Apache's brokers took any key over this code, and with it paths, addresses and commands
(CVE-2023-33246, CVE-2023-37582). Here only what is in ``HOT_KEYS`` can be changed, each value is
checked by the configuration's own classes, and what was changed is kept in the log.
"""

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from protocols import clock
from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from store.config import StoreConfig
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.system_topics import system_topics

TABLE: Final = "config"
"""Table of the engine's settings that holds what was changed."""

BODY_BYTES_MAX: Final = 64 << 10

HOT_KEYS: Final[Mapping[str, str]] = {
    "brokerPermission": "permission",
    "autoCreateTopicEnable": "auto_create_topics",
    "autoCreateSubscriptionGroup": "auto_create_groups",
    "defaultTopicQueueNums": "topic_queue_count",
    "maxMessageSize": "limits.message_bytes_max",
    "traceOn": "trace",
}
"""Apache's name → key of ``store:``."""


def get_config(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """As properties text (26)."""
    config = context.config
    lines = {
        "brokerName": config.name,
        "brokerClusterName": config.cluster,
        "brokerId": "0",
        "brokerRole": "SYNC_MASTER" if config.flush == "sync" else "ASYNC_MASTER",
        "flushDiskType": "SYNC_FLUSH" if config.flush == "sync" else "ASYNC_FLUSH",
        "namesrvAddr": ";".join(config.namesrv),
        "listenPort": context.address.rpartition(":")[2],
        "brokerIP1": context.ip_address.rpartition(":")[0],
        "storePathRootDir": str(config.data),
        "fileReservedTime": str(config.retention_hours),
        "enablePropertyFilter": "true",
        "mappedFileSizeCommitLog": str(config.segment_bytes),
        **{name: _text(_value(config, key)) for name, key in HOT_KEYS.items()},
    }
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    version = bodies.DataVersion(
        timestamp=context.started.wall_ms, counter=len(context.engine.catalog.settings(TABLE))
    )
    fields = {"version": bodies.encode_body(version).decode()}
    return request.answer(fields=fields, body=text.encode())


def _value(config: StoreConfig, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def update_config(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Change hot keys while running (25); all or none."""
    changes = properties_of(bytes(request.body))
    if not changes:
        raise Refused(Code.BAD_REQUEST, "configuration", "no name=value line")
    for name in changes:
        if name not in HOT_KEYS:
            allowed = ", ".join(HOT_KEYS)
            raise Refused(
                Code.FORBIDDEN, name[:60], f"'{name[:60]}' cannot be changed here, only {allowed}"
            )
    config = changed(context.config, changes)
    now = clock.read()
    pendings = [
        context.engine.catalog.put_setting(TABLE, name, value.encode(), now)
        for name, value in changes.items()
    ]
    use_config(context, config)
    context.when_durable(connection, request, pendings[-1], lambda _: request.answer())
    return None


def properties_of(text: bytes) -> dict[str, str]:
    """``name=value`` lines. Raises Refused."""
    if len(text) > BODY_BYTES_MAX:
        raise Refused(Code.BAD_REQUEST, "configuration", f"more than {BODY_BYTES_MAX} bytes")
    pairs = [line.partition("=") for line in text.decode("utf-8", "replace").splitlines()]
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}


def changed(config: StoreConfig, changes: Mapping[str, str]) -> StoreConfig:
    """*config* with Apache's names set, checked. Raises Refused."""
    data = config.model_dump()
    for name, value in changes.items():
        where = data
        *groups, last = HOT_KEYS[name].split(".")
        for group in groups:
            where = where[group]
        where[last] = value
    try:
        return StoreConfig.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise Refused(Code.BAD_REQUEST, key, f"{key}: {problem['msg']}") from error


def use_config(context: Context, config: StoreConfig) -> None:
    """From now on; the topic that others are made from follows."""
    context.config = config
    context.config_changes += 1
    context.system_topics = system_topics(config)
    context.topics_changed()


def restore(context: Context) -> None:
    """At start: what was changed in an earlier run still counts."""
    kept = {
        name: value.decode()
        for name, value in context.engine.catalog.settings(TABLE).items()
        if name in HOT_KEYS
    }
    if kept:
        context.config = changed(context.config, kept)
        context.system_topics = system_topics(context.config)


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_BROKER_CONFIG: get_config,
    RequestCode.UPDATE_BROKER_CONFIG: update_config,
}
