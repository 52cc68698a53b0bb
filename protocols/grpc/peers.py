"""Who calls: from metadata to an authenticated client; what all RPCs ask first."""

from typing import Final

from protocols import clock
from protocols.canonical import Call
from protocols.errors import Code, Refused
from protocols.grpc.clients import Client, ClientTable
from protocols.grpc.config import GrpcConfig
from protocols.grpc.context import NAMESPACE, Rpc, signature_of
from protocols.pipeline import Credentials, Services, TopicInfo

FROM_NAMESPACE: Final = "from_namespace"


class Peers:
    """Authentication, tenancy and the lookups that every RPC needs."""

    def __init__(self, name: str, config: GrpcConfig, services: Services) -> None:
        self._name = name
        self._config = config
        self._services = services
        self._created: set[str] = set()
        self.clients = ClientTable(name)

    async def client_of(self, rpc: Rpc) -> Client:
        """
        Authenticate and find the client. Raises Refused(UNAUTHORIZED, CLIENT_ID_REQUIRED).

        The order is the Apache proxy's: credentials before the client id.
        """
        signature = signature_of(rpc.metadata)
        credentials = Credentials(
            protocol="grpc",
            listener=self._name,
            user=signature.access_key if signature else "",
            password=signature.digest if signature else b"",
            client_id=rpc.client_id,
            peer=rpc.peer,
            signed=signature.signed if signature else b"",
            digest="hmac-sha1" if signature else "",
            has_credentials=signature is not None,
        )
        identity = await self._services.authenticator.authenticate(credentials)
        if identity is None:
            hint = "unknown access key or wrong signature" if signature else "credentials needed"
            raise Refused(Code.UNAUTHORIZED, credentials.user or "anonymous", hint)
        if not rpc.client_id.strip():
            raise Refused(Code.CLIENT_ID_REQUIRED, identity.name, "x-mq-client-id is missing")
        tenant = self._tenant(rpc)
        return self.clients.get(identity, rpc, tenant=tenant, now=clock.monotonic())

    def _tenant(self, rpc: Rpc) -> str:
        if self._config.tenant == FROM_NAMESPACE:
            return rpc.metadata.get(NAMESPACE, "")
        return self._config.tenant

    async def topic(self, call: Call, name: str, *, may_create: bool = False) -> TopicInfo:
        """The topic in the caller's tenant. Raises Refused(TOPIC_NOT_FOUND)."""
        stored_name = qualified(call.tenant, name)
        info = await self._services.topics.find(stored_name)
        if info is not None:
            return info
        config = self._config
        if not (may_create and config.auto_create_topics) or name.startswith("%"):
            raise Refused(Code.TOPIC_NOT_FOUND, name, f"no topic '{name}'")
        if stored_name not in self._created and len(self._created) >= config.auto_topics_max:
            hint = f"no topic '{name}', and {config.auto_topics_max} were made already"
            raise Refused(Code.TOPIC_NOT_FOUND, name, hint)
        self._created.add(stored_name)  # many may ask at once
        return await self._services.topics.create(stored_name)

    def require(self, call: Call, operation: str, *, topic: str, group: str = "") -> None:
        """Raises Refused(FORBIDDEN) unless the ACL allows it."""
        allowed = self._services.permission.is_allowed(
            call, operation, subject=topic, topic=topic, group=group
        )
        if not allowed:
            hint = f"'{call.identity.name}' may not {operation} here"
            raise Refused(Code.FORBIDDEN, topic or group, hint)


def qualified(tenant: str, name: str) -> str:
    """
    In its tenant's namespace: ``<tenant>%<name>``, ``%DLQ%<tenant>%<group>``.

    Source: ``NamespaceUtil.wrapNamespace``.
    """
    if not tenant:
        return name
    for prefix in ("%DLQ%", "%RETRY%"):
        if name.startswith(prefix):
            return f"{prefix}{tenant}%{name.removeprefix(prefix)}"
    return f"{tenant}%{name}"


def group_name(tenant: str, group: str, topic: str) -> str:
    """The group at the stores: ``rmq/<group>/<topic>``, the same for every RocketMQ protocol."""
    return f"rmq/{qualified(tenant, group)}/{qualified(tenant, topic)}"
