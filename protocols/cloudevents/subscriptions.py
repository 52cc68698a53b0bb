"""
Subscription objects (CloudEvents Subscriptions API 0.1) and their records in the directory.

A subscription reads a light queue of its own, filled by the gateway's matching table with what
its addresses match; its filters are tried by the worker that delivers. Key of the record:
``ce/subscription/<tenant>/<id>``; of its present worker: ``ce/owner/<tenant>/<id>``.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from protocols.canonical import QueueKind, QueueRef
from protocols.cloudevents.config import CloudEventsConfig
from protocols.cloudevents.filters import compile_filters
from protocols.cloudevents.problems import Problem
from protocols.directory import Subscription
from protocols.errors import MALFORMED
from protocols.groups import GroupSpec, Read, Start
from protocols.subjects import is_valid_filter

RECORDS: Final = "ce/subscription/"
OWNERS: Final = "ce/owner/"
ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MEMBERS: Final = frozenset(
    (
        "id",
        "source",
        "types",
        "config",
        "filters",
        "sink",
        "sinkcredential",
        "protocol",
        "protocolsettings",
    )
)
CONFIG_MEMBERS: Final = frozenset(("topic", "subjects", "mode", "attemptsMax"))
ACTIVE: Final = "active"
RETIRED: Final = "retired"
"""The sink answered 410: nothing is sent any more until the subscription is replaced."""

SUBJECTS_MAX: Final = 100
URL_CHARS_MAX: Final = 2048


class Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a subscription, in msgpack."""

    id: str
    tenant: str
    subjects: tuple[str, ...]
    """Addresses it wants, MQTT syntax."""

    sink: str
    document: dict[str, Any]
    """What the client sent, without the credential."""

    token: str = ""
    """Bearer token for the sink; never shown."""

    identity: str = ""
    """Who made it; the ACL judges its deliveries by this name."""

    roles: tuple[str, ...] = ()
    status: str = ACTIVE

    @property
    def name(self) -> str:
        """Unique over tenants."""
        return f"{self.tenant}/{self.id}"

    @property
    def group(self) -> str:
        return f"ce/{self.name}" if self.tenant else f"ce/{self.id}"

    @property
    def queue(self) -> QueueRef:
        return QueueRef(QueueKind.SUBSCRIPTION, self.id, self.tenant)

    def rows(self) -> list[Subscription]:
        """Its rows of the matching table."""
        return [Subscription(subject, self.queue, self.group) for subject in self.subjects]

    def spec(self) -> GroupSpec:
        """Its group: no limit of attempts at the store, the worker counts."""
        return GroupSpec(name=self.group, reads=(Read(queue=self.queue),), start=Start.END)

    def view(self) -> dict[str, Any]:
        """What clients see."""
        return {"id": self.id} | self.document | {"status": self.status}

    @property
    def mode(self) -> str:
        """``binary`` or ``structured``."""
        return str(self.document.get("config", {}).get("mode", "binary"))

    @property
    def attempts_max(self) -> int:
        """0: as the listener says."""
        return int(self.document.get("config", {}).get("attemptsMax", 0))

    @property
    def filters(self) -> list[Any]:
        """Filters, with ``source`` and ``types`` as such."""
        found: list[Any] = list(self.document.get("filters", ()))
        if source := self.document.get("source"):
            found.append({"exact": {"source": source}})
        if types := self.document.get("types"):
            found.append({"any": [{"exact": {"type": kind}} for kind in types]})
        return found


def record_key(tenant: str, identifier: str) -> str:
    return f"{RECORDS}{tenant}/{identifier}"


def encode(stored: Stored) -> bytes:
    return msgspec.msgpack.encode(stored)


def decode(value: bytes) -> Stored:
    return msgspec.msgpack.decode(value, type=Stored)


def parse(
    body: bytes,
    *,
    identifier: str,
    tenant: str,
    identity: str,
    roles: tuple[str, ...],
    config: CloudEventsConfig,
) -> Stored:
    """
    A subscription as a client sent it.

    *identifier* is used when the document names none. Raises Problem(400) naming the member.
    """
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except MALFORMED as error:
        raise Problem(400, f"the body is no JSON object: {error}") from error
    _check_members("", document, MEMBERS)
    document = {name: value for name, value in document.items() if value is not None}
    given = document.pop("id", identifier)
    if not isinstance(given, str) or not ID.fullmatch(given):
        raise Problem(400, "id: 1 to 64 of a-z A-Z 0-9 _ -", attribute="id")
    token = _token(document.pop("sinkcredential", None))
    if document.get("protocol", "HTTP") != "HTTP":
        raise Problem(400, "protocol: only HTTP", attribute="protocol")
    _check_sink(document.get("sink"), config)
    _check_texts(document)
    stored = Stored(
        id=given,
        tenant=tenant,
        subjects=_subjects(document.get("config")),
        sink=document["sink"],
        document=document,
        token=token,
        identity=identity,
        roles=roles,
    )
    try:
        compile_filters(stored.filters)
    except ValueError as error:
        raise Problem(400, str(error), attribute="filters") from error
    return stored


def _check_members(where: str, value: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in value:
        if name not in known:
            hint = f"unknown; there are {', '.join(sorted(known))}"
            raise Problem(400, f"{where}{name}: {hint}", attribute=f"{where}{name}")


def _check_sink(sink: Any, config: CloudEventsConfig) -> None:
    parts = urlsplit(sink) if isinstance(sink, str) and len(sink) <= URL_CHARS_MAX else None
    try:
        is_url = (
            parts is not None
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.username is None
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_url = False
    if not is_url:
        raise Problem(400, "sink: an http or https URL, without credentials", attribute="sink")
    host = parts.hostname if parts is not None and parts.hostname else ""
    if not any(fnmatchcase(host, pattern) for pattern in config.webhook_hosts):
        raise Problem(403, f"sink: '{host}' is none of webhook_hosts", attribute="sink")


def _check_texts(document: Mapping[str, Any]) -> None:
    source, types = document.get("source", ""), document.get("types", [])
    if not isinstance(source, str):
        raise Problem(400, "source: a text", attribute="source")
    if not isinstance(types, list) or not all(isinstance(kind, str) and kind for kind in types):
        raise Problem(400, "types: an array of texts", attribute="types")
    if not isinstance(document.get("filters", []), list):
        raise Problem(400, "filters: an array", attribute="filters")


def _token(credential: Any) -> str:
    if credential is None:
        return ""
    if isinstance(credential, dict) and isinstance(credential.get("accesstoken"), str):
        token = credential["accesstoken"]
        if token.isascii() and token.isprintable():
            return str(token)
    hint = "sinkcredential: {'credentialtype': 'ACCESSTOKEN', 'accesstoken': ...}"
    raise Problem(400, hint, attribute="sinkcredential")


def _subjects(config: Any) -> tuple[str, ...]:
    """``config.topic`` (all of a topic) or ``config.subjects`` (filters with + and #)."""
    if not isinstance(config, dict):
        raise Problem(400, "config: name a 'topic' or 'subjects'", attribute="config")
    _check_members("config.", config, CONFIG_MEMBERS)
    if config.get("mode", "binary") not in ("binary", "structured"):
        raise Problem(400, "config.mode: binary or structured", attribute="config.mode")
    attempts = config.get("attemptsMax", 1)
    if not isinstance(attempts, int) or isinstance(attempts, bool) or not 1 <= attempts <= 1000:
        raise Problem(400, "config.attemptsMax: 1 to 1000", attribute="config.attemptsMax")
    if "topic" in config:
        topic = config["topic"]
        if not isinstance(topic, str) or not re.fullmatch(r"[a-zA-Z0-9_-]{1,127}", topic):
            raise Problem(400, "config.topic: a topic name", attribute="config.topic")
        return (f"{topic}/#",)  # "#" matches the parent too [MQTT-4.7.1.2]
    return _checked_subjects(config.get("subjects"))


def _checked_subjects(subjects: Any) -> tuple[str, ...]:
    is_list = isinstance(subjects, list) and 1 <= len(subjects) <= SUBJECTS_MAX
    if not is_list or not all(isinstance(one, str) and is_valid_filter(one) for one in subjects):
        hint = f"config.subjects: 1 to {SUBJECTS_MAX} filters such as plants/+/alarm/#"
        raise Problem(400, hint, attribute="config.subjects")
    return tuple(dict.fromkeys(subjects))


def difference(
    old: Sequence[Subscription], new: Sequence[Subscription]
) -> tuple[list[Subscription], list[Subscription]]:
    """Rows to (add, remove)."""
    return [row for row in new if row not in old], [row for row in old if row not in new]


def retired(stored: Stored) -> Stored:
    return msgspec.structs.replace(stored, status=RETIRED)
