"""
Who is kept out, at every gateway: client ids, users, addresses, each until a time.

A ban is a directory record, so a gateway that starts tomorrow knows it too. When one appears,
every gateway ends the connections that it holds for; a kick is a record of its own whose time has
always been over. Records that are over are deleted by whichever gateway sees it first.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, Literal, get_args

import msgspec

from gateway.clients import ClientTable
from gateway.rules import address_of
from protocols import clock
from protocols.canonical import Call
from protocols.directory import Directory, Put, Record
from protocols.errors import Code, Refused
from protocols.observing import ClientInfo
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.bans")

PREFIX: Final = "ban/"
BANS_MAX: Final = 100_000
"""Records kept; more are refused."""

NETWORKS_MAX: Final = 10_000
"""Ranges among them, which are looked through one by one for each new connection."""

SWEEP_S: Final = 10.0
KICK_MS: Final = 1
"""The time of a kick: over on every clock."""

Kind = Literal["client", "user", "ip"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)


class Ban(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record."""

    kind: Kind
    value: str
    """Client id, user name, or address or CIDR range."""

    tenant: str = ""
    """Of the client id or user; empty: in all."""

    until_ms: int = 0
    """Wall time; 0: for good."""

    at_ms: int = 0
    reason: str = ""
    by: str = ""

    @property
    def key(self) -> str:
        """A kick leaves the ban of the same client alone."""
        kind = "kick" if self.until_ms == KICK_MS else self.kind
        return f"{PREFIX}{kind}/{self.tenant}/{self.value}"

    def is_over(self, now_ms: int) -> bool:
        return 0 < self.until_ms <= now_ms


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Bans:
    """The table of one gateway; ``add`` and ``remove`` write for all of them."""

    def __init__(self, directory: Directory, clients: ClientTable) -> None:
        self._directory = directory
        self._clients = clients
        self._bans: dict[str, tuple[Ban, int]] = {}
        self._writing: dict[str, Ban] = {}
        """On their way to the directory: in force here meanwhile, so that who flaps stays out."""

        self._networks: dict[str, tuple[Network, Ban]] = {}
        self._tasks = Tasks("bans")
        self._undo = directory.watch(PREFIX, self._changed)

    def start(self) -> None:
        self._changed(list(self._directory.items(PREFIX)))
        self._tasks.start(self._sweep_for_ever(), name="sweep")

    async def close(self) -> None:
        self._undo()
        await self._tasks.close()

    # ── asking ──────────────────────────────────────────────────────────────────────────

    def find(
        self, *, peer: str, tenant: str = "", client_id: str = "", user: str = ""
    ) -> Ban | None:
        """The ban that holds for such a connection now."""
        if not self._bans and not self._writing:
            return None
        now_ms = clock.wall_ms()
        for kind, value in (("client", client_id), ("user", user)):
            for of in {tenant, ""} if value else ():
                found = self._known(f"{PREFIX}{kind}/{of}/{value}")
                if found is not None and not found.is_over(now_ms):
                    return found
        return self._find_address(peer, now_ms)

    def find_call(self, call: Call) -> Ban | None:
        return self.find(
            peer=call.peer,
            tenant=call.tenant,
            client_id=call.client_id,
            user=call.identity.name,
        )

    def __iter__(self) -> Iterator[Ban]:
        """Those in force."""
        now_ms = clock.wall_ms()
        return iter([ban for ban, _ in self._bans.values() if not ban.is_over(now_ms)])

    def __len__(self) -> int:
        return len(self._bans)

    # ── writing ─────────────────────────────────────────────────────────────────────────

    async def add(self, ban: Ban) -> Ban:
        """Write it; what it holds for is closed everywhere. Raises Refused."""
        if ban.kind not in KINDS or not ban.value:
            raise Refused(Code.BAD_REQUEST, ban.kind, f"a ban is of a {', '.join(KINDS)}")
        if ban.kind == "ip":
            network = _network(ban.value)
            ban = msgspec.structs.replace(ban, value=_network_text(network), tenant="")
            if network.num_addresses > 1 and len(self._networks) >= NETWORKS_MAX:
                raise Refused(Code.TOO_MANY_REQUESTS, ban.value, f"{NETWORKS_MAX} ranges already")
        if len(self._bans) >= BANS_MAX and ban.key not in self._bans:
            raise Refused(Code.TOO_MANY_REQUESTS, ban.value, f"{BANS_MAX} bans already")
        self._writing[ban.key] = ban
        try:
            await self._directory.put([Put(ban.key, msgspec.msgpack.encode(ban))])
        finally:
            self._writing.pop(ban.key, None)
        return ban

    async def remove(self, kind: str, value: str, tenant: str = "") -> bool:
        """Whether there was one."""
        if kind == "ip":
            value, tenant = _network_text(_network(value)), ""
        key = f"{PREFIX}{kind}/{tenant}/{value}"
        was_there = key in self._bans
        if was_there:
            await self._directory.put([Put(key, None)])
        return was_there

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _known(self, key: str) -> Ban | None:
        found = self._bans.get(key)
        return found[0] if found is not None else self._writing.get(key)

    def _find_address(self, peer: str, now_ms: int) -> Ban | None:
        address = address_of(peer)
        if address is None:
            return None
        found = self._known(f"{PREFIX}ip//{address}")
        if found is not None and not found.is_over(now_ms):
            return found
        for network, ban in self._networks.values():
            if address in network and not ban.is_over(now_ms):
                return ban
        return None

    def _changed(self, records: Sequence[Record]) -> None:
        for record in records:
            self._bans.pop(record.key, None)
            self._networks.pop(record.key, None)
            if record.value is None:
                continue
            ban = msgspec.msgpack.decode(record.value, type=Ban)
            self._bans[record.key] = (ban, record.version)
            if ban.kind == "ip" and "/" in ban.value:
                self._networks[record.key] = (_network(ban.value), ban)
            count = self._clients.kick_where(partial(_holds_for, ban))
            if count:
                logger.info("%s %s: %d connections closed", ban.kind, ban.value, count)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_ms = clock.wall_ms()
            over = [
                Put(ban.key, None, version)
                for ban, version in self._bans.values()
                if ban.is_over(now_ms)
            ]
            if over:
                try:
                    await self._directory.put(over)  # lost: another gateway was first
                except Refused as error:
                    logger.info("bans that are over stay for now: %s", error)


def _holds_for(ban: Ban, info: ClientInfo) -> bool:
    if ban.tenant and ban.tenant != info.tenant:
        return False
    if ban.kind == "client":
        return ban.value == info.client_id
    if ban.kind == "user":
        return ban.value == info.identity
    address = address_of(info.peer)
    return address is not None and address in _network(ban.value)


def _network(value: str) -> Network:
    """Raises Refused."""
    try:
        return ipaddress.ip_network(value, strict=False)
    except ValueError as error:
        raise Refused(Code.BAD_REQUEST, value, "no address or CIDR range") from error


def _network_text(network: Network) -> str:
    """A single address without its prefix length."""
    return str(network.network_address if network.num_addresses == 1 else network)
