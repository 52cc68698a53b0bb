"""
The directory: one compacted table of keyed records with conditional writes.

A write is judged against the newest state; readers see durable versions only. Versions are
offsets: they rise with each write of any key. (Semantics page, "The directory".)
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from protocols.remoting.private import DirectoryRecord, DirectoryWrite
from store.core import Core
from store.log.format import Kind
from store.log.state import pack

MOVED_KEY: Final = "directory/moved"
"""A record that carries the version at which a directory came from another store."""

ROWS_MAX: Final = 1000
"""In one record of the log, where a whole directory is written."""

Row = tuple[str, bytes | None, int, str, int]
"""(key, value, version, gateway, gateway epoch)"""


class DirectoryTable:
    """Latest record per key, twice: as written and as durable."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._written: dict[str, DirectoryRecord] = {}
        self._durable: dict[str, DirectoryRecord] = {}
        self._bound: dict[tuple[str, int], dict[str, None]] = {}
        self._versions: list[int] = []
        self._keys: list[str] = []
        self._tombstone_count = 0
        self.last_version = 0
        self.head = 0
        """Highest durable version."""

        self.is_changed = False

    def get(self, key: str) -> DirectoryRecord | None:
        """As written, which may not be durable yet; deleted ones have no value."""
        return self._written.get(key)

    def put(
        self, gateway: str, gateway_epoch: int, writes: Sequence[DirectoryWrite]
    ) -> list[tuple[bool, DirectoryRecord]]:
        """Judge and write, all in one record; per write whether it won and what stands now."""
        rows: list[Row] = []
        results: list[tuple[bool, DirectoryRecord]] = []
        for write in writes:
            standing = self._written.get(write.key)
            version = standing.version if standing is not None and not _is_gone(standing) else 0
            if write.if_version is not None and write.if_version != version:
                results.append((False, standing or DirectoryRecord(key=write.key)))
                continue
            owner = (gateway, gateway_epoch) if write.is_bound else ("", 0)
            row = (write.key, write.value, self.last_version + 1, *owner)
            rows.append(row)
            results.append((True, self._apply_row(row)))
        self._log(rows)
        return results

    def write(self, key: str, value: bytes | None, owner: tuple[str, int]) -> DirectoryRecord:
        """An unconditional write by the store itself."""
        row = (key, value, self.last_version + 1, *owner)
        record = self._apply_row(row)
        self._log([row])
        return record

    def unbound(self) -> list[DirectoryRecord]:
        """Records that stand and are bound to no lease, as written."""
        found = self._written.values()
        return [one for one in found if not _is_gone(one) and not one.gateway]

    def take(self, records: Sequence[DirectoryRecord], version: int) -> None:
        """Records of another store's directory, whose highest version was *version*."""
        rows: list[Row] = [(one.key, one.value, one.version, "", 0) for one in records]
        rows.append((MOVED_KEY, b"", version + 1, "", 0))
        rows.sort(key=lambda row: row[2])
        for row in rows:
            self._apply_row(row)
        for start in range(0, len(rows), ROWS_MAX):
            self._log(rows[start : start + ROWS_MAX])

    def next_version(self) -> int:
        return self.last_version + 1

    def end_bound(self, gateway: str, gateway_epoch: int) -> list[Row]:
        """Tombstones for what was bound to a lease; the caller logs them with its end."""
        rows: list[Row] = []
        for key in list(self._bound.get((gateway, gateway_epoch), ())):
            row = (key, None, self.last_version + 1, "", 0)
            rows.append(row)
            self._apply_row(row)
        return rows

    def read(self, after: int, count_max: int) -> tuple[list[DirectoryRecord], int]:
        """(latest durable records above *after* in version order, version covered)."""
        found: list[DirectoryRecord] = []
        index = bisect_right(self._versions, after)
        while index < len(self._versions):
            if len(found) == count_max:
                return found, found[-1].version
            version, key = self._versions[index], self._keys[index]
            record = self._durable.get(key)
            if record is not None and record.version == version:
                found.append(record)
            index += 1
        return found, max(self.head, after)

    # ── apply ───────────────────────────────────────────────────────────────────────────

    def _log(self, rows: Sequence[Row]) -> None:
        if rows:
            self._core.log.state(Kind.DIRECTORY, pack(*rows))
            self.show_later(rows)

    def show_later(self, rows: Sequence[Row]) -> None:
        """Readers see *rows* when they are durable."""
        self._core.log.when_durable(partial(self.show, rows))

    def apply(self, rows: Sequence[Row]) -> None:
        """Replay: what is read back is durable."""
        for row in rows:
            self._apply_row(row)
        self.show(rows)

    def _apply_row(self, row: Row) -> DirectoryRecord:
        key, value, version, gateway, epoch = row
        earlier = self._written.get(key)
        if earlier is not None and earlier.gateway:
            self._bound.get((earlier.gateway, earlier.gateway_epoch), {}).pop(key, None)
        record = _record(row)
        self._written[key] = record
        self.last_version = max(self.last_version, version)
        if gateway and value is not None:
            self._bound.setdefault((gateway, epoch), {})[key] = None
        return record

    def show(self, rows: Sequence[Row]) -> None:
        for row in rows:
            key, value, version, _, _ = row
            earlier = self._durable.get(key)
            if earlier is not None and _is_gone(earlier):
                self._tombstone_count -= 1
            self._durable[key] = _record(row)
            self._tombstone_count += value is None
            self._versions.append(version)
            self._keys.append(key)
            self.head = max(self.head, version)
        self.is_changed = True
        if len(self._versions) > 2 * len(self._durable) + 1024:
            self._compact()

    def _compact(self) -> None:
        """Drop overwritten versions, and the oldest deletions beyond the bound."""
        records = sorted(self._durable.values(), key=lambda record: record.version)
        surplus = self._tombstone_count - self._core.config.tombstones_max
        kept: list[DirectoryRecord] = []
        for record in records:
            if surplus > 0 and _is_gone(record):
                surplus -= 1
                self._tombstone_count -= 1
                del self._durable[record.key]
                if self._written[record.key].version == record.version:
                    del self._written[record.key]
                continue
            kept.append(record)
        self._versions = [record.version for record in kept]
        self._keys = [record.key for record in kept]

    def dump(self) -> list[Any]:
        rows = [
            (record.key, record.value, record.version, record.gateway, record.gateway_epoch)
            for record in sorted(self._written.values(), key=lambda record: record.version)
        ]
        return [self.last_version, rows]

    def load(self, state: list[Any]) -> None:
        last_version, rows = state
        self.apply(rows)
        self.last_version = max(self.last_version, last_version)
        self.head = self.last_version


def _record(row: Row) -> DirectoryRecord:
    key, value, version, gateway, epoch = row
    return DirectoryRecord(
        key=key, value=value, version=version, gateway=gateway, gateway_epoch=epoch
    )


def _is_gone(record: DirectoryRecord) -> bool:
    return record.value is None
