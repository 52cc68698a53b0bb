"""Request code → handler. What is not here is answered REQUEST_CODE_NOT_SUPPORTED."""

from store.handlers import (
    assignments,
    broker,
    clients,
    configuration,
    directory,
    gateways,
    group_tools,
    groups,
    held,
    maintenance,
    offsets,
    pop,
    pull,
    queries,
    relays,
    replies,
    send,
    statistics,
    subscription_groups,
    topics,
    users,
)
from store.handlers.context import Handler

MODULES = (
    gateways,
    groups,
    directory,
    send,
    held,
    pull,
    pop,
    offsets,
    clients,
    assignments,
    topics,
    subscription_groups,
    broker,
    configuration,
    group_tools,
    maintenance,
    queries,
    relays,
    replies,
    statistics,
    users,
)


def _merge() -> dict[int, Handler]:
    """All tables as one; a code has one handler."""
    table: dict[int, Handler] = {}
    for module in MODULES:
        assert not table.keys() & module.HANDLERS.keys(), module.__name__
        table.update(module.HANDLERS)
    return table


HANDLERS: dict[int, Handler] = _merge()
