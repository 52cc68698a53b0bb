"""
What a client's topic names and filters stand for: mount point, rewrite rules, ``$delayed``,
``$exclusive``.

Pure, and asked once per topic of a connection. Names are rewritten first and mounted then; ACL,
routes and all other protocols see the outcome. Names that begin with ``$`` are neither.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict

from protocols import subjects
from protocols.canonical import Call
from protocols.checking import CheckedModel
from protocols.mqtt.fields import PacketError, protocol_error
from protocols.mqtt.packets import Reason
from protocols.mqtt.topics import is_valid_name

NAME_BYTES_MAX: Final = 30_000
"""Longest name or filter, mount point included: a stored message has 32,767 bytes for this and
its other properties (RocketMQ's record)."""

DELAYED: Final = "$delayed/"
DELAY_S_MAX: Final = 42_949_669
"""As EMQX has it: 497 days; a larger number is a time, in seconds since 1970."""

DELAY_DIGITS_MAX: Final = 10
"""Of either: until the year 2286."""

EXCLUSIVE: Final = "$exclusive/"

_PLACEHOLDER: Final = re.compile(r"\{([^}]*)\}")
_WORDS: Final = ("client_id", "identity", "tenant", "certificate_name")


def _filter(value: str) -> str:
    if not subjects.is_valid_filter(value) or value.startswith("$"):
        raise ValueError(f"'{value}' is no topic filter of clients")
    return value


def _template(value: str) -> str:
    for word in _PLACEHOLDER.findall(value):
        if word != "#" and word not in _WORDS and not (word.isdigit() and int(word) > 0):
            text = f"'{{{word}}}' is neither a level, {{1}}, nor {{#}}, nor {', '.join(_WORDS)}"
            raise ValueError(text)
    return value


def check_mount_point(value: str) -> str:
    """A prefix of addresses with placeholders. Raises ValueError."""
    for word in _PLACEHOLDER.findall(value):
        if word not in _WORDS:
            raise ValueError(f"'{{{word}}}' is none of {', '.join(_WORDS)}")
    if value and not is_valid_name(value):
        raise ValueError(f"'{value}' is no part of a topic name")
    return value


class RewriteRule(CheckedModel):
    """One entry of ``rewrite:``; the first that matches a name or filter is applied."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: Annotated[str, AfterValidator(_filter)]
    """Names, and filters, that it is for: ``old/+/#``."""

    to: Annotated[str, AfterValidator(_template)]
    """What they become: ``new/{2}/{#}``; ``{2}`` is the second level, ``{#}`` what ``#`` stands
    for. ``{client_id}``, ``{identity}``, ``{tenant}`` and ``{certificate_name}`` are the client's;
    the rule is not for one whose name cannot be a level."""

    on: Literal["publish", "subscribe", "all"] = "all"
    """Which side it changes."""

    @cached_property
    def words(self) -> frozenset[str]:
        """What it wants to know of the client."""
        return frozenset(_PLACEHOLDER.findall(self.to)) & frozenset(_WORDS)

    def apply(self, name: str, words: Mapping[str, str]) -> str | None:
        """*name* (or a filter) rewritten; None: the rule is not for it."""
        if not words.keys() >= self.words:
            return None
        wanted, levels = self.topic.split("/"), name.split("/")
        for index, level in enumerate(wanted):
            if level == "#":
                break
            if index >= len(levels) or level not in ("+", levels[index]) or levels[index] == "#":
                return None
        else:
            if len(levels) != len(wanted):
                return None
        rest = "/".join(levels[len(wanted) - 1 :]) if wanted[-1] == "#" else ""

        def value(found: re.Match[str]) -> str:
            if found[1] == "#":
                return rest
            if found[1] in words:
                return words[found[1]]
            index = int(found[1]) - 1
            return levels[index] if index < len(levels) else ""

        return _PLACEHOLDER.sub(value, self.to)


class Name(NamedTuple):
    """What a publish goes to."""

    subject: str
    delay_s: int = 0
    due_s: int = 0
    """In place of a delay: seconds since 1970."""


class Naming:
    """Of the clients that share a mount point, or of one that rules name."""

    def __init__(
        self,
        mount_point: str = "",
        rules: tuple[RewriteRule, ...] = (),
        levels_max: int = 201,
        words: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.mount_point = mount_point
        self._rules = rules
        self._levels_max = levels_max
        self._words = words

    def of(self, call: Call) -> "Naming":
        """Of this client: itself if no rule wants to know who it is."""
        if not any(rule.words for rule in self._rules):
            return self
        return Naming(self.mount_point, self._rules, self._levels_max, words_of(call))

    def publish(self, topic: str) -> Name:
        """Raises PacketError for a name that this server does not take."""
        seconds = 0
        if topic.startswith(DELAYED):
            seconds, topic = _delay(topic)
        if topic.count("/") >= self._levels_max:
            raise protocol_error(f"a topic of more than {self._levels_max} levels")
        subject = self._named(topic, "publish")
        if _is_too_long(subject):
            raise PacketError(Reason.TOPIC_NAME_INVALID, f"a topic of over {NAME_BYTES_MAX} bytes")
        if not is_valid_name(subject):
            raise PacketError(Reason.TOPIC_NAME_INVALID, f"'{topic}' becomes '{subject}'")
        if seconds > DELAY_S_MAX:
            return Name(subject, due_s=seconds)
        return Name(subject, seconds)

    def filter(self, topic_filter: str) -> str:
        """The subjects that a filter asks for; empty: it cannot be one."""
        subject_filter = self._named(topic_filter.removeprefix(EXCLUSIVE), "subscribe")
        if _is_too_long(subject_filter) or not subjects.is_valid_filter(subject_filter):
            return ""
        return subject_filter

    def _named(self, name: str, side: str) -> str:
        if name.startswith("$"):
            return name
        for rule in self._rules:
            if rule.on in (side, "all"):
                found = rule.apply(name, self._words)
                if found is not None:
                    name = found
                    break
        return self.mount_point + name


PLAIN: Final = Naming()


def _is_too_long(subject: str) -> bool:
    return len(subject) > NAME_BYTES_MAX // 4 and len(subject.encode()) > NAME_BYTES_MAX


def words_of(call: Call) -> dict[str, str]:
    """What placeholders stand for, of those that can be a level of a topic."""
    values = (call.client_id, call.identity.name, call.tenant, call.certificate_name)
    return {
        word: value
        for word, value in zip(_WORDS, values, strict=True)
        if value and not any(sign in value for sign in "+#/")
    }


def mount_point_of(template: str, call: Call) -> str | None:
    """*template* filled in for one client; None: its names cannot stand in a topic."""
    if not template:
        return ""
    words = words_of(call)
    if not words.keys() >= set(_PLACEHOLDER.findall(template)):
        return None
    return _PLACEHOLDER.sub(lambda found: words[found[1]], template)


def _delay(topic: str) -> tuple[int, str]:
    """Of ``$delayed/<seconds or time>/<topic>``. Raises PacketError."""
    seconds, separator, rest = topic[len(DELAYED) :].partition("/")
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) <= DELAY_DIGITS_MAX
    is_once = separator and rest and not rest.startswith(DELAYED)  # one delay, not two
    if not is_once or not is_number:
        raise PacketError(Reason.TOPIC_NAME_INVALID, f"'{topic}' is no $delayed/<seconds>/<topic>")
    return int(seconds), rest
