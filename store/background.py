"""What the engine wants done in the background: segments, index files, snapshots, reads ahead."""

from protocols.clock import Now
from store.core import Core
from store.index.sealing import SealWork
from store.lifecycle import Lifecycle
from store.log.ahead import Prefetch
from store.log.snapshots import SnapshotWork
from store.log.spares import PrepareSegment, Upkeep


class Background:
    """
    Work for other threads, each kind asked for by ``…_due`` (or ``…_wanted``) and reported back
    when its ``execute`` has run. All of it may be late: the engine goes on without.
    """

    def __init__(self, core: Core, life: Lifecycle) -> None:
        self._core = core
        self._life = life

    def segment_wanted(self) -> PrepareSegment | None:
        """A segment to prepare in the background, if none is ready; once per segment."""
        return self._core.log.segment_wanted()

    def segment_prepared(self, work: PrepareSegment) -> None:
        """*work* is done."""
        self._core.log.spares.prepared(work)

    @property
    def index_bytes(self) -> int:
        """Index files of sealed segments that are in memory."""
        return self._core.cold.byte_count

    def seal_due(self) -> SealWork | None:
        """A segment whose index goes from memory to a file: ``gather`` until it is true, then
        ``execute`` in the background, then ``release`` until it is true."""
        return self._core.sealer.due() if self._core.log.failure is None else None

    def seal_done(self) -> None:
        """That work is over, whether or not its file could be written."""
        self._core.sealer.done()

    @property
    def wants_ahead(self) -> bool:
        """``take_prefetches`` would return something."""
        return self._core.ahead.is_wanting

    def take_prefetches(self) -> list[Prefetch]:
        """Parts of the log that readers will come to, to be read in the background."""
        return self._core.ahead.take_wanted()

    def prefetched(self, work: Prefetch) -> None:
        """*work* is done."""
        self._core.ahead.fetched(work)

    def upkeep_due(self) -> Upkeep | None:
        """Files of segments that went, for the background thread; one at a time."""
        return self._core.log.upkeep_due()

    def upkeep_done(self, work: Upkeep) -> None:
        """*work* is done: its files may be used again."""
        self._core.log.spares.upkeep_done(work)

    def snapshot_due(self, now: Now, *, is_forced: bool = False) -> SnapshotWork | None:
        """State to write as a snapshot, when enough log has passed and all of it is durable."""
        return self._life.snapshot_due(now, is_forced=is_forced)

    def snapshot_written(self, work: SnapshotWork) -> None:
        """*work* is done: old segments may now go (deleted by a later ``tick``)."""
        self._life.snapshot_written(work)
