"""Topics, opaque settings and consumer offsets: keyed state whose every change is a record."""

import re
from collections.abc import Mapping
from typing import Any, Final

from protocols.errors import Code, Refused
from store.answers import Offsets, TopicConfig
from store.core import Core
from store.log.format import Kind
from store.log.state import pack
from store.metadata.compacted import is_compacted

TOPIC_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,255}\Z")
"""RocketMQ's rule (TopicValidator); file names never contain it."""

RESERVE_TIME: Final = "reserve.time"
"""Topic attribute: how many hours its messages are kept (RocketMQ 5; its tiered storage reads it);
absent or not above 0: the store's own retention."""

HOUR_MS: Final = 3_600_000
QUEUE_COUNT_MAX: Final = 1024
PERM_WRITE: Final = 2


class Topics:
    """What topics there are and how many message queues each has."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.configs: dict[str, TopicConfig] = {}
        self.version = 0
        self._retentions: dict[str, int] = {}
        """Topics that have one of their own, ms."""

        self.compacted: set[str] = set()
        """Topics of which the last message of each key is kept."""

    def check(self, config: TopicConfig) -> None:
        """Raises Refused for a name or a count that cannot be."""
        if not TOPIC_NAME.match(config.name):
            raise Refused(Code.ILLEGAL_TOPIC, config.name[:255], "letters, digits and %|_- only")
        counts = (config.read_queue_count, config.write_queue_count)
        if not all(0 <= count <= QUEUE_COUNT_MAX for count in counts):
            raise Refused(Code.BAD_REQUEST, config.name, f"0 to {QUEUE_COUNT_MAX} queues")

    def put(self, config: TopicConfig) -> None:
        self._core.log.state(Kind.TOPIC, pack(*config[:-1], dict(config.attributes)))
        self.apply_put(config)
        for queue_id in range(max(config.read_queue_count, config.write_queue_count)):
            self._core.message_queue(config.name, queue_id)

    def apply_put(self, config: TopicConfig) -> None:
        self.configs[config.name] = config
        self.version += 1
        self.compacted.discard(config.name)
        if is_compacted(config.attributes):
            self.compacted.add(config.name)
        hours = config.attributes.get(RESERVE_TIME, "")
        self._retentions.pop(config.name, None)
        if hours.isdecimal() and int(hours) > 0:
            self._retentions[config.name] = int(hours) * HOUR_MS

    def retention_ms(self, name: str) -> int:
        """How long messages of the topic are kept, owed or not."""
        return self._retentions.get(name, self._core.config.retention_s * 1000)

    @property
    def retention_ms_min(self) -> int:
        """No topic's messages go before."""
        return min([*self._retentions.values(), self.retention_ms("")])

    @property
    def retention_ms_max(self) -> int:
        """All topics' messages may go then."""
        return max([*self._retentions.values(), self.retention_ms("")])

    def delete(self, name: str) -> bool:
        if name not in self.configs:
            return False
        self._core.log.state(Kind.TOPIC_END, pack(name))
        self.apply_delete(name)
        return True

    def apply_delete(self, name: str) -> None:
        self.configs.pop(name, None)
        self._retentions.pop(name, None)
        self.compacted.discard(name)
        self.version += 1

    def for_send(self, name: str, queue_id: int) -> TopicConfig:
        """The topic, created if the configuration says so. Raises Refused if it takes nothing."""
        config = self.configs.get(name)
        if config is None:
            count = self._core.config.auto_create_queue_count
            if count == 0:
                raise Refused(Code.TOPIC_NOT_FOUND, name, "create the topic at this store first")
            config = TopicConfig(name, count, count)
            self.check(config)
            self.put(config)
        if not config.perm & PERM_WRITE:
            raise Refused(Code.FORBIDDEN, name, "the topic is not writable")
        if not -1 <= queue_id < config.write_queue_count:
            raise Refused(Code.BAD_REQUEST, name, f"no writable queue {queue_id}")
        return config

    def dump(self) -> list[Any]:
        return [(*config[:-1], dict(config.attributes)) for config in self.configs.values()]

    def load(self, rows: list[Any]) -> None:
        for row in rows:
            self.apply_put(TopicConfig._make(row))


class Settings:
    """Tables of opaque values (subscription groups, name-value pairs)."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tables: dict[str, dict[str, bytes]] = {}

    def put(self, table: str, name: str, value: bytes | None) -> None:
        self._core.log.state(Kind.SETTING, pack(table, name, value))
        self.apply_put(table, name, value)

    def apply_put(self, table: str, name: str, value: bytes | None) -> None:
        values = self._tables.setdefault(table, {})
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value

    def table(self, table: str) -> Mapping[str, bytes]:
        return self._tables.get(table, {})

    def dump(self) -> list[Any]:
        return [(table, list(values.items())) for table, values in self._tables.items()]

    def load(self, rows: list[Any]) -> None:
        self._tables = {table: dict(items) for table, items in rows}


class ConsumerOffsets:
    """group → (topic, queue id) → offset, for consumers that read by offset."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_group: dict[str, dict[tuple[str, int], int]] = {}

    def commit(self, offsets: Offsets) -> None:
        self._core.log.state(Kind.OFFSETS, pack(*offsets))
        self.apply_commit(offsets)

    def apply_commit(self, offsets: Offsets) -> None:
        """An offset below 0 forgets what was committed."""
        for group, topic, queue_id, offset in offsets:
            table = self._by_group.setdefault(group, {})
            if offset >= 0:
                table[topic, queue_id] = offset
                continue
            table.pop((topic, queue_id), None)
            if not table:
                del self._by_group[group]

    def forget_topic(self, name: str) -> None:
        """What the record of a topic's end means for offsets."""
        for table in self._by_group.values():
            for key in [key for key in table if key[0] == name]:
                del table[key]

    def get(self, group: str, topic: str, queue_id: int) -> int:
        return self._by_group.get(group, {}).get((topic, queue_id), -1)

    def of_group(self, group: str) -> Mapping[tuple[str, int], int]:
        return self._by_group.get(group, {})

    def groups(self) -> list[str]:
        return list(self._by_group)

    def dump(self) -> list[Any]:
        return [
            (group, topic, queue_id, offset)
            for group, table in self._by_group.items()
            for (topic, queue_id), offset in table.items()
        ]

    def load(self, rows: list[Any]) -> None:
        self.apply_commit(rows)
