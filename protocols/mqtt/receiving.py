"""The right to receive: asked topic by topic where a rule tells it from the right to subscribe."""

from protocols.canonical import Call
from protocols.pipeline import Permission


class Receiving:
    """Of one client; follows a reload of the rules."""

    __slots__ = ("_call", "_permission")

    def __init__(self, permission: Permission, call: Call) -> None:
        self._permission = permission
        self._call = call

    @property
    def is_judged(self) -> bool:
        """False: who may subscribe may receive; nothing is asked per message."""
        return self._permission.checks_receive

    def allows(self, topic: bytes, qos: int) -> bool:
        return self._permission.is_allowed(
            self._call, "receive", subject=topic.decode("utf-8", "replace"), qos=qos
        )
