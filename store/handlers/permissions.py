"""Who may read and write: the store's bits, the topic's, the group's, and pairs of the two."""

from typing import Final

from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import Permission
from store.answers import TopicConfig
from store.handlers.context import Context

FORBIDDEN_TABLE: Final = "forbidden"
"""Table of the engine's settings: ``group@topic`` is there if the group may not read it (353)."""

BY_STORE: Final = "1"
BY_GROUP: Final = "2"
BY_TOPIC: Final = "3"
BY_BROADCAST: Final = "4"
BY_SUBSCRIPTION: Final = "5"
"""``ForbiddenType``: why a pull was refused."""


_READ: Final = int(Permission.READ)  # plain: IntFlag costs 0.6 µs per message
_WRITE: Final = int(Permission.WRITE)


def is_readable(context: Context, group: str, topic: str) -> bool:
    forbidden = context.engine.catalog.settings(FORBIDDEN_TABLE)
    return not forbidden or f"{group}@{topic}" not in forbidden


def can(config: TopicConfig, permission: Permission) -> bool:
    """Whether the topic's permission bits allow it."""
    return bool(config.perm & permission.value)


def reading_forbidden(
    context: Context, config: TopicConfig, group: bodies.GroupConfig
) -> tuple[str, str] | None:
    """(``ForbiddenType``, remark) if *group* may not read the topic now."""
    name = group.group_name
    if not context.config.permission & _READ:
        return BY_STORE, f"the store[{context.config.name}] reading is forbidden"
    if not group.consume_enable:
        return BY_GROUP, f"subscription group no permission, {name}"
    if not config.perm & _READ:
        return BY_TOPIC, f"the topic[{config.name}] reading is forbidden"
    if not is_readable(context, name, config.name):
        return BY_SUBSCRIPTION, f"the group[{name}] is forbidden for topic[{config.name}]"
    if not group.consume_broadcast_enable and context.clients.is_broadcasting(name):
        return BY_BROADCAST, f"the group[{name}] can not consume by broadcast way"
    return None


def check_writing(context: Context, config: TopicConfig) -> None:
    """Raise Refused(FORBIDDEN) if nobody may send to the topic now."""
    if not context.config.permission & _WRITE:
        hint = f"the store[{context.config.name}] sending message is forbidden"
        raise Refused(Code.FORBIDDEN, config.name, hint)
    if not config.perm & _WRITE:
        raise Refused(Code.FORBIDDEN, config.name, f"the topic[{config.name}] sending is forbidden")
