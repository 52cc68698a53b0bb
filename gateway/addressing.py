"""
The topic of a subject that names none, by the settings of the MQTT listeners.

``levels``: the first level, if there is a topic of that name or one may be made. ``flat``: the
whole subject with ``/`` as ``_``, in the same way. Everything else goes to the catch-all topic;
AMQP's and other protocols' subjects always go by their first level.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.mapping import CATCH_ALL_TOPIC, SUBJECT_TOPIC, is_system_topic, qualified

FLAT_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]{1,127}")


class Addressing(NamedTuple):
    """``mqtt.mapping`` and ``mqtt.auto_topics``."""

    is_flat: bool = False
    auto_topics_max: int = 0

    def topic(self, protocol: str, tenant: str, subject: str, exists: Callable[[str], bool]) -> str:
        """The topic that there is for *subject*."""
        wanted = self.wanted(protocol, tenant, subject)
        if wanted and exists(wanted):
            return wanted
        return qualified(tenant, CATCH_ALL_TOPIC)

    def may_be_made(self, protocol: str, wanted: str) -> bool:
        """Whether a publish may bring the topic into being, as far as the settings say."""
        return bool(wanted) and self.auto_topics_max > 0 and protocol == "mqtt"

    def wanted(self, protocol: str, tenant: str, subject: str) -> str:
        """The topic it would like best; empty: none can have its name."""
        if self.is_flat and protocol == "mqtt":
            name, rule = subject.replace("/", "_"), FLAT_TOPIC
        else:
            name, rule = subject.partition("/")[0], SUBJECT_TOPIC
        if rule.fullmatch(name) and not is_system_topic(name):
            return qualified(tenant, name)
        return ""
