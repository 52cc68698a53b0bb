"""Who asks, for which tenant and topic: what every handler needs first."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from protocols.canonical import Call
from protocols.cloudevents.config import FROM_HEADER, CloudEventsConfig
from protocols.cloudevents.guard import Doors
from protocols.cloudevents.problems import Problem
from protocols.errors import Code, Refused
from protocols.pipeline import Credentials, Services, TopicInfo
from protocols.tasks import LongPolls

if TYPE_CHECKING:
    from aiohttp import web

TOPIC: Final = re.compile(r"[%a-zA-Z0-9_-]{1,127}")
SYSTEM_PREFIXES: Final = ("%RETRY%", "rmq_sys_", "RMQ_SYS_")
DEAD_LETTERS: Final = "%DLQ%"
PUBLISH: Final = "publish"
CONSUME: Final = "consume"


class Access:
    """Authentication, tenancy, topics."""

    def __init__(
        self, name: str, config: CloudEventsConfig, services: Services, doors: Doors
    ) -> None:
        self._name = name
        self._doors = doors
        self._config = config
        self._services = services
        self._created: set[str] = set()

    def polls_of(self, request: "web.Request") -> LongPolls:
        """What waits on the request's connection, and ends with it."""
        door = self._doors.get(request.transport) if request.transport else None
        if door is None:
            raise ConnectionResetError("the client has gone")
        if door.polls is None:
            door.polls = LongPolls()
        return door.polls

    async def call_of(self, request: "web.Request") -> Call:
        """
        The caller; authenticated anew only when a connection shows other credentials.

        Raises Problem(401, 429).
        """
        headers = request.headers
        door = self._doors.get(request.transport) if request.transport else None
        if door is None:
            raise ConnectionResetError("the client has gone")
        shown = (headers.get("Authorization", ""), self._tenant(headers))
        if door.call is not None and door.credentials == shown:
            return door.call
        credentials = self._credentials(shown[0], door.peer)
        identity = await self._services.authenticator.authenticate(credentials)
        if identity is None:
            raise Problem(401, "show a user and password (Basic) or a token (Bearer)")
        call = Call(
            protocol="cloudevents",
            listener=self._name,
            identity=identity,
            tenant=shown[1],
            client_id=identity.name,
            peer=door.peer,
        )
        if door.call is None:
            self._admit(call)
        else:
            self._services.pipeline.forget(door.call)
        door.call, door.credentials = call, shown
        return call

    def _admit(self, call: Call) -> None:
        code = self._services.admit(call)
        if code == Code.FORBIDDEN:
            raise Problem(403, "no connections from here")
        if code == Code.HA_NOT_AVAILABLE:
            raise Problem(503, "this gateway takes no more connections")
        if code != Code.OK:
            raise Problem(429, "too many connections")

    def _credentials(self, header: str, peer: str) -> Credentials:
        kind, _, text = header.partition(" ")
        user, password = "", b""
        if kind.lower() == "basic":
            try:
                name, separator, rest = base64.b64decode(text, validate=True).partition(b":")
                user, password = name.decode(), rest
            except (binascii.Error, UnicodeDecodeError) as error:
                raise Problem(401, "the Basic credentials are not base64") from error
            if not separator:
                raise Problem(401, "the Basic credentials have no colon")
        elif kind.lower() == "bearer":
            password = text.strip().encode("utf-8", "surrogateescape")
        elif kind:
            raise Problem(401, "Authorization is neither Basic nor Bearer")
        return Credentials(
            protocol="cloudevents",
            listener=self._name,
            user=user,
            password=password,
            peer=peer,
            has_credentials=bool(kind),
        )

    def _tenant(self, headers: Mapping[str, str]) -> str:
        source = self._config.tenant
        if source.startswith(FROM_HEADER):
            return headers.get(source.removeprefix(FROM_HEADER).strip(), "")
        return source

    async def topic(self, call: Call, name: str, *, may_create: bool = False) -> TopicInfo:
        """The topic in the caller's tenant. Raises Problem(404), Refused."""
        if not TOPIC.fullmatch(name) or name.startswith(SYSTEM_PREFIXES):
            raise Problem(404, f"'{name}' is no topic name: 1 to 127 of a-z A-Z 0-9 _ -")
        stored_name = qualified(call.tenant, name)
        info = await self._services.topics.find(stored_name)
        if info is not None:
            return info
        config = self._config
        if not (may_create and config.auto_create_topics) or name.startswith("%"):
            raise Problem(404, f"no topic '{name}'")
        if stored_name not in self._created and len(self._created) >= config.auto_topics_max:
            raise Problem(404, f"no topic '{name}', and {config.auto_topics_max} were made already")
        self.require(call, PUBLISH, name)
        self._created.add(stored_name)  # many may ask at once
        return await self._services.topics.create(stored_name)

    def require(self, call: Call, operation: str, subject: str, *, group: str = "") -> None:
        """Raises Refused(FORBIDDEN) unless the ACL allows it."""
        topic = subject.partition("/")[0]
        allowed = self._services.permission.is_allowed(
            call, operation, subject=subject, topic=topic, group=group
        )
        if not allowed:
            hint = f"'{call.identity.name}' may not {operation} here"
            raise Refused(Code.FORBIDDEN, subject, hint)


def qualified(tenant: str, name: str) -> str:
    """
    In its tenant's namespace: ``<tenant>%<name>``, ``%DLQ%<tenant>%<group>``.

    Source: ``NamespaceUtil.wrapNamespace``.
    """
    if not tenant:
        return name
    if name.startswith(DEAD_LETTERS):
        return f"{DEAD_LETTERS}{tenant}%{name.removeprefix(DEAD_LETTERS)}"
    return f"{tenant}%{name}"
