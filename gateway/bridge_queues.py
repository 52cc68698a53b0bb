"""Which messages wait for which bridge: the part that the routing decision needs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.routing import Decision, Target
from protocols.canonical import Head, QueueKind, QueueRef

PREFIX = "bridge/"


def bridge_queue(name: str) -> QueueRef:
    """Where messages for a bridge wait."""
    return QueueRef(QueueKind.SUBSCRIPTION, f"{PREFIX}{name}")


def bridged(
    head: Head,
    route: Decision,
    target: Target,
    bridges: frozenset[str],
    match: Callable[[Head], Sequence[QueueRef]],
) -> tuple[Head, Target]:
    """
    What goes over bridges is stored here, in their queues; a mirror's in addition.

    *match* finds the queues that want its subject: local subscribers get the message in any case.
    """
    names = [target.cluster, *(mirror.cluster for mirror in route.mirrors)]
    extra = [bridge_queue(name) for name in names if name in bridges]
    if not extra:
        return head, target
    queues = match(head) if head.queues is None else head.queues
    is_target = target.cluster in bridges
    wider = replace(head, queues=(*queues, *extra), is_in_topic=head.is_in_topic and not is_target)
    return wider, target._replace(cluster="", topic="") if is_target else target
