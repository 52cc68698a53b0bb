"""Topic names, topic filters and ``$share``: what may be one, and its parts [MQTT 5, 4.7, 4.8]."""

from typing import Final, NamedTuple

from protocols import subjects
from protocols.mqtt.fields import is_text_clean

LEVELS_MAX: Final = 200
"""Separators in a name: Mosquitto's limit; deeper names only cost matching time."""

SHARE: Final = "$share/"


class TopicFilter(NamedTuple):
    """A filter taken apart."""

    share: str
    """Name of the shared subscription; empty: an ordinary one."""

    subject_filter: str
    """What subjects are matched with."""


def is_valid_name(topic: str) -> bool:
    """Not empty, no wildcard, clean text, at most ``LEVELS_MAX`` separators."""
    return (
        bool(topic)
        and "+" not in topic
        and "#" not in topic
        and is_text_clean(topic)
        and topic.count("/") <= LEVELS_MAX
    )


def parse_filter(topic_filter: str) -> TopicFilter | None:
    """The parts of a filter; None if it is none, ``$share`` forms included [MQTT-4.8.2-1, -2]."""
    if not is_text_clean(topic_filter) or topic_filter.count("/") > LEVELS_MAX:
        return None
    share, subject_filter = "", topic_filter
    if topic_filter.startswith(SHARE):
        share, separator, subject_filter = topic_filter[len(SHARE) :].partition("/")
        if not share or not separator or "+" in share or "#" in share:
            return None
    if not subjects.is_valid_filter(subject_filter):
        return None
    return TopicFilter(share, subject_filter)


def is_share(topic_filter: str) -> bool:
    return topic_filter.startswith(SHARE)


def has_wildcard(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter


def is_local(subject_filter: str) -> bool:
    """``$SYS``: known to the gateway alone, in no store."""
    return subject_filter == "$SYS" or subject_filter.startswith("$SYS/")
