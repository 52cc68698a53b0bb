"""``/subscriptions``: make, show, replace and delete webhook subscriptions."""

import uuid
from typing import Final

import msgspec
from aiohttp import web

from protocols.canonical import Call
from protocols.cloudevents import subscriptions
from protocols.cloudevents.access import CONSUME, Access
from protocols.cloudevents.config import CloudEventsConfig
from protocols.cloudevents.ingest import read_body
from protocols.cloudevents.problems import Problem
from protocols.cloudevents.subscriptions import Stored
from protocols.directory import Put, Record
from protocols.errors import Refused
from protocols.pipeline import Services

ALLOW_ALL: Final = "GET, POST, OPTIONS"
ALLOW_ONE: Final = "GET, PUT, DELETE, OPTIONS"
FEATURES: Final = {
    "dialects": ["exact", "prefix", "suffix", "all", "any", "not"],
    "protocols": ["HTTP"],
    "credentialtypes": ["ACCESSTOKEN"],
    "config": sorted(subscriptions.CONFIG_MEMBERS),
}


class SubscriptionsApi:
    """
    The records in the directory are the truth; workers of any gateway follow them.

    A 201 or 200 means: whatever any gateway receives from now on reaches the sink.
    """

    def __init__(self, config: CloudEventsConfig, services: Services, access: Access) -> None:
        self._config = config
        self._services = services
        self._access = access

    async def create(self, request: web.Request) -> web.Response:
        call = await self._access.call_of(request)
        stored = await self._parsed(request, call, uuid.uuid4().hex)
        prefix = subscriptions.RECORDS + call.tenant + "/"
        count = sum(1 for _ in self._services.directory.items(prefix))
        if count >= self._config.subscriptions_max:
            raise Problem(429, f"{count} subscriptions, limit {self._config.subscriptions_max}")
        key = subscriptions.record_key(call.tenant, stored.id)
        await self._put(Put(key, subscriptions.encode(stored), 0), 409, f"'{stored.id}' exists")
        try:
            await self._connect(call, stored, None)
        except Refused:
            await self._services.directory.put([Put(key, None)])
            raise
        location = {"Location": f"/subscriptions/{stored.id}"}
        return _json(stored.view(), status=201, headers=location)

    async def list_all(self, request: web.Request) -> web.Response:
        call = await self._access.call_of(request)
        prefix = subscriptions.RECORDS + call.tenant + "/"
        found = [_decoded(record) for record in self._services.directory.items(prefix)]
        allowed = [stored for stored in found if self._may(call, stored)]
        return _json([stored.view() for stored in sorted(allowed, key=lambda one: one.id)])

    async def show(self, request: web.Request) -> web.Response:
        call = await self._access.call_of(request)
        _, stored = await self._found(call, request.match_info["id"])
        return _json(stored.view())

    async def replace(self, request: web.Request) -> web.Response:
        """A retired subscription is active again."""
        call = await self._access.call_of(request)
        identifier = request.match_info["id"]
        record, old = await self._found(call, identifier)
        stored = await self._parsed(request, call, identifier)
        if stored.id != identifier:
            raise Problem(400, f"id: '{stored.id}' is not '{identifier}'", attribute="id")
        if not stored.token:
            stored = msgspec.structs.replace(stored, token=old.token)  # write-only: keep it
        put = Put(record.key, subscriptions.encode(stored), record.version)
        await self._put(put, 412, f"'{identifier}' was changed meanwhile")
        await self._connect(call, stored, old)
        return _json(stored.view())

    async def delete(self, request: web.Request) -> web.Response:
        """What was not delivered yet is dropped."""
        call = await self._access.call_of(request)
        record, stored = await self._found(call, request.match_info["id"])
        put = Put(record.key, None, record.version)
        await self._put(put, 412, f"'{stored.id}' was changed meanwhile")
        await self._services.directory.subscribe([], stored.rows(), tenant=call.tenant)
        await self._services.streams.drop_group(call, stored.spec())
        return web.Response(status=204)

    async def options(self, request: web.Request) -> web.Response:
        """What this service can do."""
        allow = ALLOW_ONE if "id" in request.match_info else ALLOW_ALL
        return _json(FEATURES, headers={"Allow": allow})

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _parsed(self, request: web.Request, call: Call, identifier: str) -> Stored:
        stored = subscriptions.parse(
            await read_body(request, self._config.body_s_max),
            identifier=identifier,
            tenant=call.tenant,
            identity=call.identity.name,
            roles=call.identity.roles,
            config=self._config,
        )
        for subject in stored.subjects:
            self._access.require(call, CONSUME, subject, group=stored.group)
        return stored

    async def _found(self, call: Call, identifier: str) -> tuple[Record, Stored]:
        """Looked up once more at the directory's head before 404."""
        directory = self._services.directory
        key = subscriptions.record_key(call.tenant, identifier)
        record = directory.get(key)
        if record is None or record.value is None:
            await directory.catch_up()
            record = directory.get(key)
        if record is None or record.value is None:
            raise Problem(404, f"no subscription '{identifier}'")
        stored = _decoded(record)
        if not self._may(call, stored):
            raise Problem(403, f"'{call.identity.name}' may not consume what it subscribes to")
        return record, stored

    def _may(self, call: Call, stored: Stored) -> bool:
        try:
            for subject in stored.subjects:
                self._access.require(call, CONSUME, subject, group=stored.group)
        except Refused:
            return False
        return True

    async def _put(self, put: Put, status: int, hint: str) -> None:
        (result,) = await self._services.directory.put([put])
        if not result.is_ours:
            raise Problem(status, hint)

    async def _connect(self, call: Call, stored: Stored, old: Stored | None) -> None:
        """Start positions first, then the rows, then every gateway knows them."""
        services = self._services
        await services.streams.open_group(call, stored.spec())
        known = old.rows() if old is not None and old.status == subscriptions.ACTIVE else []
        add, remove = subscriptions.difference(known, stored.rows())
        if add or remove:
            version = await services.directory.subscribe(add, remove, tenant=call.tenant)
            await services.directory.barrier(version)


def _decoded(record: Record) -> Stored:
    assert record.value is not None, record.key
    return subscriptions.decode(record.value)


def _json(
    document: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    body = msgspec.json.encode(document)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
