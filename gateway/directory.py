"""
This gateway's lease and its copy of the directory.

Joins at the directory store, tails the one compacted table into memory, and answers from there.
What is applied is reported at once, because every SUBACK in the cluster may be waiting for it:
first the tables change, then what is in no written frame is routed again, then the report goes.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from gateway.applied import Applied
from gateway.clusters.client import ClusterClient
from gateway.clusters.connection import unpacked
from gateway.clusters.presence import GatewayPresence
from gateway.clusters.tidegate import TidegateLink
from gateway.fences import Fences
from gateway.matching import PREFIX as FILTER_PREFIX
from gateway.matching import MatchingTable, encode_row, row_key
from protocols import clock
from protocols.directory import Put, PutResult, Record, Subscription
from protocols.errors import Code, GatewayError, Refused
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import (
    DirectoryPut,
    DirectoryPutAnswer,
    DirectoryRead,
    DirectoryRecord,
    DirectoryRecords,
    DirectoryWait,
    DirectoryWaited,
    DirectoryWrite,
    HelloAnswer,
    Join,
    Joined,
    Leave,
    PrivateCode,
)
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.directory")

T = TypeVar("T")

LEASE_PREFIX: Final = "gateway/"
"""Key of a lease: ``gateway/<name>``; the version of its record is the gateway epoch."""

AWAY_S_MAX: Final = 10.0
"""How long writes and barriers wait for an absent directory before they are refused."""

FOUND_S_MAX: Final = 15
"""How long a start waits for the directory store."""

JOIN_S_MAX: Final = 75
"""How long a start waits for a former life's lease to end, which lasts at most a minute."""

READ_WAIT_MS: Final = 20_000
WAIT_MS: Final = 2000
BACK_OFF_S: Final = 0.1
STORM_MIN: Final = 8
STORM_GATHER_S: Final = 0.003
"""After a request for so many at once the next waits a little: in a storm of connections each
request, its commit and its reading back cost as much as ten writes."""

RECORDS_MAX: Final = 10_000
WRITES_MAX: Final = 1000
"""Conditional writes of one request; more wait for the next."""


class TablesChanged(Protocol):
    """The pipeline's end: what it decided under older tables is void."""

    def tables_changed(self) -> None: ...


class DirectoryClient:
    """Implements ``protocols.pipeline.Directory``."""

    def __init__(
        self,
        presence: GatewayPresence,
        clusters: Mapping[str, ClusterClient],
        matching: MatchingTable,
        pipeline: TablesChanged,
        *,
        cluster: str = "",
        store: str = "",
        address: str = "",
        protocols: Mapping[str, str] | None = None,
        instance: str = "",
    ) -> None:
        self._presence = presence
        self._clusters = clusters
        self._matching = matching
        self._pipeline = pipeline
        self._wanted = (cluster, store)
        self._address = address
        self._protocols = dict(protocols or {})
        self._instance = instance or secrets.token_hex(8)
        self._link: TidegateLink | None = None
        self._found = asyncio.Event()
        self._table: dict[str, dict[str, Record]] = {}
        self._applied = Applied(AWAY_S_MAX, lambda: _away("its table cannot be read"))
        self._watches: list[tuple[str, Callable[[Sequence[Record]], None]]] = []
        self._writes: list[tuple[list[Put], asyncio.Future[list[PutResult]]]] = []
        self._is_writing = False
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._is_waiting = False
        self._tasks = Tasks("directory")
        self._fences = Fences(presence, clusters, self._tasks)
        self._ended: list[Callable[[], None]] = []
        self._joined: list[Callable[[], None]] = []
        self._is_joined = False
        """The table is read up to the lease: clients may be served."""

        self._joined_at = 0
        """Version of the table at which the lease was granted."""

        presence.on_change(self._epoch_changed)
        presence.on_suspect(self._suspected)
        for client in clusters.values():
            client.on_greeted(self._greeted)

    # ── life ────────────────────────────────────────────────────────────────────────────

    def on_ended(self, callback: Callable[[], None]) -> None:
        """The lease is over: close every client connection now."""
        self._ended.append(callback)

    def on_joined(self, callback: Callable[[], None]) -> None:
        """A lease is held and the table is read: listeners may open. Also the first time."""
        self._joined.append(callback)

    async def start(self) -> None:
        """Join and read the table. Raises Refused (no directory store, name taken)."""
        search = self._tasks.start(self._found.wait(), name="search")
        if not await _comes(search, wait_s=FOUND_S_MAX):
            raise Refused(
                Code.NOT_FOUND,
                "directory",
                "no store says that it keeps the directory: set store.directory on one of them",
            )
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_joined(lambda: None if ready.done() else ready.set_result(None))
        run = self._tasks.start(self._run(), name="tail")
        if not await _comes(ready, run, wait_s=JOIN_S_MAX):
            raise Refused(
                Code.HA_NOT_AVAILABLE,
                self._presence.name,
                "the directory store grants no lease; does another gateway have this name?",
            )

    async def leave(self) -> None:
        """Give the lease back and stop."""
        epoch = self._presence.epoch
        if self._link is not None and epoch:
            try:
                body = Leave(gateway=self._presence.name, gateway_epoch=epoch)
                await self._link.connection.request(PrivateCode.LEAVE, body, timeout_s=1.0)
            except GatewayError as error:
                logger.info("could not give the lease back: %s", error)
        await self._tasks.close()
        self._applied.close()

    def _greeted(self, link: TidegateLink, hello: HelloAnswer) -> None:
        """A store answered HELLO: is it the one that keeps the directory?"""
        cluster, store = self._wanted
        if not hello.is_directory_store or (store and store != link.broker):
            return
        if cluster and cluster != link.cluster:
            return
        here = self._link
        if here is not None and (here.cluster, here.broker) != (link.cluster, link.broker):
            logger.error(
                "two stores keep a directory, %s/%s and %s/%s: name one in `directory:`",
                here.cluster,
                here.broker,
                link.cluster,
                link.broker,
            )
            return
        self._link = link
        self._presence.directory = link.connection.name
        self._found.set()

    async def _run(self) -> None:
        """Hold a lease and tail the table, for ever."""
        last_error = ""
        while True:
            try:
                if self._presence.epoch == 0:
                    await self._join()
                await self._tail()
            except GatewayError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    logger.warning("directory: %s", error)
            await asyncio.sleep(BACK_OFF_S)

    async def _join(self) -> None:
        sent_at = clock.monotonic()
        body = Join(
            gateway=self._presence.name,
            instance=self._instance,
            address=self._address,
            protocols=self._protocols,
        )
        joined = unpacked(await self._request(PrivateCode.JOIN, body), Joined, self._presence.name)
        self._joined_at = joined.version
        self._presence.joined(joined.gateway_epoch, sent_at, lease_ms=joined.lease_ms)
        logger.info("joined as %s, epoch %d", self._presence.name, joined.gateway_epoch)

    async def _tail(self) -> None:
        while self._presence.epoch:
            if not self._is_joined and self._applied.version >= self._joined_at:
                self._is_joined = True
                for callback in self._joined:
                    callback()
            await self._read(wait_ms=READ_WAIT_MS if self._is_joined else 0)

    def _epoch_changed(self) -> None:
        if self._presence.epoch == 0 and self._is_joined:
            self._is_joined = False
            logger.warning("the lease of %s has ended: closing all clients", self._presence.name)
            for callback in self._ended:
                callback()

    def _suspected(self) -> None:
        """A store refused our epoch: ask for the lease now rather than at the next beat."""
        if self._link is not None:
            self._link.connection.beat_soon()

    async def _request(
        self, code: PrivateCode, body: msgspec.Struct, *, timeout_s: float = 3.0
    ) -> RemotingCommand:
        if self._link is None:
            raise Refused(Code.HA_NOT_AVAILABLE, "directory", "no directory store is known")
        return await self._link.connection.request(code, body, timeout_s=timeout_s)

    # ── the table ───────────────────────────────────────────────────────────────────────

    async def _read(self, *, wait_ms: int) -> None:
        body = DirectoryRead(after=self._applied.version, count_max=RECORDS_MAX, wait_ms=wait_ms)
        answer = await self._request(
            PrivateCode.DIRECTORY_READ, body, timeout_s=wait_ms / 1000 + 3.0
        )
        found = unpacked(answer, DirectoryRecords, "directory")
        self._take(found.records, found.head)

    def _take(self, records: Sequence[DirectoryRecord], head: int) -> None:
        """Apply what is news, tell who watches, report it."""
        if head <= self._applied.version:
            return
        news = [
            Record(item.key, item.value, item.version, item.gateway, item.gateway_epoch)
            for item in records
            if item.version > self._applied.version
        ]
        for record in news:
            self._apply(record)
        before = self._matching.version
        self._matching.apply([record for record in news if record.key.startswith(FILTER_PREFIX)])
        if self._matching.version != before:
            self._pipeline.tables_changed()
        self._presence.applied = head
        if self._link is not None:
            self._link.connection.beat_soon()
        for prefix, listener in list(self._watches):
            changed = [record for record in news if record.key.startswith(prefix)]
            if changed:
                try:
                    listener(changed)
                except Exception:
                    logger.exception("a watcher of %s failed", prefix)
        self._applied.rise(head)

    def _apply(self, record: Record) -> None:
        kind = record.key.partition("/")[0]
        table = self._table.setdefault(kind, {})
        if record.key.startswith(LEASE_PREFIX):
            old = table.get(record.key)
            if old is not None and old.version != record.version:
                # Whatever that epoch still sends under an old table must not count.
                self._fences.fence(old.key.removeprefix(LEASE_PREFIX), old.version)
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record

    def get(self, key: str) -> Record | None:
        return self._table.get(key.partition("/")[0], {}).get(key)

    def items(self, prefix: str) -> Iterable[Record]:
        table = self._table.get(prefix.partition("/")[0], {})
        return [record for key, record in table.items() if key.startswith(prefix)]

    def watch(
        self, prefix: str, listener: Callable[[Sequence[Record]], None]
    ) -> Callable[[], None]:
        entry = (prefix, listener)
        self._watches.append(entry)

        def undo() -> None:
            if entry in self._watches:
                self._watches.remove(entry)

        return undo

    async def catch_up(self) -> None:
        await self._patiently(lambda: self._read(wait_ms=0), "read")

    # ── writes ──────────────────────────────────────────────────────────────────────────

    async def put(self, puts: Sequence[Put]) -> list[PutResult]:
        if not puts:
            return []
        future: asyncio.Future[list[PutResult]] = asyncio.get_running_loop().create_future()
        self._writes.append((list(puts), future))
        if not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write(), name="write")
        return await future

    async def _write(self) -> None:
        """Send what has gathered, one request at a time: writes of a storm share a commit."""
        try:
            while self._writes:
                taken: list[tuple[list[Put], asyncio.Future[list[PutResult]]]] = []
                count = 0
                while self._writes and count < WRITES_MAX:
                    taken.append(self._writes.pop(0))
                    count += len(taken[-1][0])
                try:
                    results = await self._put([put for puts, _ in taken for put in puts])
                except GatewayError as error:
                    for _, future in taken:
                        if not future.done():
                            future.set_exception(error)
                    continue
                at, written = 0, []
                for puts, future in taken:
                    written.append((future, results[at : at + len(puts)]))
                    at += len(puts)
                self._applied.written(written)
                if len(taken) >= STORM_MIN:
                    await asyncio.sleep(STORM_GATHER_S)
        finally:
            self._is_writing = False

    async def _put(self, puts: Sequence[Put]) -> list[PutResult]:
        is_again = False

        async def attempt() -> list[PutResult]:
            nonlocal is_again
            was_sent, is_again = is_again, True
            body = DirectoryPut(
                gateway=self._presence.name,
                gateway_epoch=self._presence.epoch,
                writes=[
                    DirectoryWrite(
                        key=put.key,
                        value=put.value,
                        if_version=put.if_version,
                        is_bound=put.is_bound,
                    )
                    for put in puts
                ],
            )
            answer = unpacked(
                await self._request(PrivateCode.DIRECTORY_PUT, body),
                DirectoryPutAnswer,
                "directory",
            )
            return [
                PutResult(
                    # After a lost answer our own write may be the winner that beat us.
                    is_ours or (was_sent and item.value == put.value),
                    Record(item.key, item.value, item.version, item.gateway, item.gateway_epoch),
                )
                for put, (is_ours, item) in zip(puts, answer.results, strict=True)
            ]

        return await self._patiently(attempt, "write")

    async def _patiently(self, attempt: Callable[[], Awaitable[T]], verb: str) -> T:
        """Try until it works; Refused when the directory has been away for too long."""
        deadline = clock.monotonic() + AWAY_S_MAX
        while True:
            try:
                return await attempt()
            except Refused as error:
                if error.code not in (Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT):
                    raise
                if clock.monotonic() >= deadline:
                    raise _away(f"could not {verb} for {AWAY_S_MAX:.0f} s") from error
            await asyncio.sleep(BACK_OFF_S)

    async def subscribe(
        self,
        add: Sequence[Subscription],
        remove: Sequence[Subscription] = (),
        *,
        tenant: str = "",
        is_bound: bool = False,
    ) -> int:
        puts = [
            Put(row_key(row, tenant), encode_row(row, tenant), is_bound=is_bound) for row in add
        ]
        puts += [Put(row_key(row, tenant), None) for row in remove]
        results = await self.put(puts)
        return max((result.record.version for result in results), default=0)

    # ── barrier and fences ──────────────────────────────────────────────────────────────

    async def barrier(self, version: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._barriers.append((version, future))
        if not self._is_waiting:
            self._is_waiting = True
            self._tasks.start(self._wait(), name="barrier")
        await future

    async def _wait(self) -> None:
        """One wait for the highest version asked for serves all who asked before."""
        try:
            while self._barriers:
                taken, self._barriers = self._barriers, []
                version = max(version for version, _ in taken)
                error: GatewayError | None = None
                try:
                    await self._wait_for(version)
                except GatewayError as failure:
                    error = failure
                for _, future in taken:
                    if future.done():
                        continue
                    if error is None:
                        future.set_result(None)
                    else:
                        future.set_exception(error)
        finally:
            self._is_waiting = False

    async def _wait_for(self, version: int) -> None:
        deadline = clock.monotonic() + AWAY_S_MAX
        while True:

            async def attempt() -> DirectoryWaited:
                body = DirectoryWait(version=version, timeout_ms=WAIT_MS)
                answer = await self._request(
                    PrivateCode.DIRECTORY_WAIT, body, timeout_s=WAIT_MS / 1000 + 3.0
                )
                return unpacked(answer, DirectoryWaited, "directory")

            waited = await self._patiently(attempt, "wait")
            if waited.is_applied:
                break
            if clock.monotonic() >= deadline:
                raise _away("a gateway with a lease does not take up the change")
        for gateway, epoch in waited.ended:
            self._fences.fence(gateway, epoch)
        await self._applied.reached(version)  # leases that ended before it are being fenced too
        await self._fences.done()

    # ── who ─────────────────────────────────────────────────────────────────────────────

    @property
    def gateway(self) -> str:
        return self._presence.name

    @property
    def gateway_epoch(self) -> int:
        return self._presence.epoch

    def is_live(self, gateway: str, gateway_epoch: int) -> bool:
        record = self.get(LEASE_PREFIX + gateway)
        return record is not None and record.version == gateway_epoch


async def _comes(*awaited: asyncio.Future[Any], wait_s: int) -> bool:
    """Whether one of *awaited* is done within *wait_s*, a pause of this process apart."""
    for _ in range(wait_s):
        done, _ = await asyncio.wait(awaited, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return True
    return False


def _away(why: str) -> Refused:
    return Refused(Code.HA_NOT_AVAILABLE, "directory", f"the directory is unavailable: {why}")
