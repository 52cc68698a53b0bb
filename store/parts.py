"""The engine's parts by name: what replay feeds and snapshots write."""

from typing import Any

from store.core import Core
from store.groups.table import GroupTable
from store.log.state import packed_rows
from store.metadata.compacted import Compacted
from store.metadata.directory import DirectoryTable
from store.metadata.frames import FrameTable
from store.metadata.leases import Leases
from store.metadata.once import OnceKeys
from store.metadata.retained import RetainedTable
from store.metadata.topics import ConsumerOffsets, Settings, Topics
from store.timers.held import Held


class Parts:
    """Everything derived from the log, but the index."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.topics = Topics(core)
        self.settings = Settings(core)
        self.offsets = ConsumerOffsets(core)
        self.directory = DirectoryTable(core)
        self.leases = Leases(core, self.directory)
        self.frames = FrameTable(core)
        self.once = OnceKeys(
            core.config.once_window_s,
            core.config.once_released_window_s,
            core.config.once_keys_max,
        )
        self.retained = RetainedTable(core.config.retained_max)
        self.compacted = Compacted(core.config.retention_s * 1000)
        self.groups = GroupTable(core, self.offsets.get)
        self.held = Held(core)

    def dump(self) -> dict[str, Any]:
        """State as of now, for a snapshot."""
        self.core.sealer.finish()
        lagging = self.core.lagging.sealed()
        queues = packed_rows(
            (
                q.number, q.key, q.name, q.policy, q.topic, q.queue_id, q.next, q.first,
                lagging.get(q.number, q.sealed),
            )
            for q in self.core.queues
        )  # fmt: skip
        return {
            "epoch": self.core.log.epoch,
            "sequence": self.core.log.sequence,
            "queues": queues,
            "idle": self.core.queues.idle.dump(),
            "sealed": self.core.cold.newest,
            "remnants": self._dump_remnants(),
            "left": sorted(self.core.cold.left),
            "next_queue": self.core.queues.next_number,
            "topics": self.topics.dump(),
            "settings": self.settings.dump(),
            "offsets": self.offsets.dump(),
            "directory": self.directory.dump(),
            "frames": self.frames.dump(),
            "once": self.once.dump(),
            "retained": self.retained.dump(),
            "compacted": self.compacted.dump(),
            "groups": self.groups.dump(),
            "held": self.held.dump(),
        }

    def _dump_remnants(self) -> list[Any]:
        """What outlived its segment, with the facts that no index file has."""
        remnants, entries = self.core.cold.remnants, self.core.entries

        def sparse(facts: dict[int, int]) -> list[tuple[int, int]]:
            return [(at, value) for at, value in facts.items() if remnants.covering(at)]

        return [remnants.dump(), sparse(entries.targets), sparse(entries.expires)]
