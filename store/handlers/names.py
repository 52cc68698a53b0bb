"""Which names topics and groups may have. Source: Apache RocketMQ 5, ``TopicValidator``."""

import re
from typing import Final

from protocols.errors import Code, Refused

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
TOPIC_BYTES_MAX: Final = 127
INTERNAL_TOPIC_BYTES_MAX: Final = 255
"""Retry and dead-letter topics carry a prefix and a group's name."""

GROUP_BYTES_MAX: Final = 255


def check_topic_name(name: str) -> None:
    """Raise Refused(ILLEGAL_TOPIC) unless *name* may be a topic's."""
    limit = INTERNAL_TOPIC_BYTES_MAX if name.startswith(("%RETRY%", "%DLQ%")) else TOPIC_BYTES_MAX
    if not name or len(name) > limit:
        raise Refused(Code.ILLEGAL_TOPIC, name[:40], f"a topic's name has 1 to {limit} characters")
    if not _NAME.fullmatch(name):
        raise Refused(
            Code.ILLEGAL_TOPIC,
            name,
            f"the topic {name} contains illegal characters, allowed are a-z A-Z 0-9 % | - _",
        )


def check_group_name(name: str) -> None:
    """Raise Refused(ILLEGAL_CONSUMER_GROUP) unless *name* may be a group's."""
    if not name or len(name) > GROUP_BYTES_MAX or not _NAME.fullmatch(name):
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, name[:40], "no legal name of a group")
