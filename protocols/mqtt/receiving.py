"""
The right to receive, asked topic by topic where it is not the right to subscribe.

A filter is granted unless the ACL denies all of it; what is denied of the rest is dropped at
delivery. Other sessions pay a comparison per batch.
"""

from protocols.canonical import Call
from protocols.mqtt.session import Subscriptions
from protocols.pipeline import Permission


class Receiving:
    """Of one client; follows a reload of the rules."""

    __slots__ = ("_call", "_permission")

    def __init__(self, permission: Permission, call: Call) -> None:
        self._permission = permission
        self._call = call

    def is_judged(self, subscriptions: Subscriptions) -> bool:
        """False: all that these match may be received; nothing is asked per message."""
        permission = self._permission
        if subscriptions.judged_at != permission.version:
            subscriptions.judged_at = permission.version
            subscriptions.is_partial = permission.checks_receive or not all(
                permission.sees_all(self._call, item.subject_filter) for item in subscriptions
            )
        return subscriptions.is_partial

    def allows(self, topic: bytes, qos: int) -> bool:
        return self._permission.is_allowed(
            self._call, "receive", subject=topic.decode("utf-8", "replace"), qos=qos
        )
