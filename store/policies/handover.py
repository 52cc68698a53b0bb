"""
What a policy hands over to gateways: messages that are not delivered, queues that have ended.

A copy of the message, with the reason, goes into a light queue of this store that gateways pop;
whichever takes it routes it by today's topology and acknowledges. The copy stands in the block of
the record that ends the entry, so a crash leaves both or neither.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from protocols.canonical import QueueKind, queue_key
from protocols.errors import Refused
from protocols.remoting.records import encode_properties, encode_record
from store.appender import Draft, Plan, append_messages
from store.core import Core
from store.groups.guard import Guard
from store.log.format import EntryFlag
from store.log.messages import retargeted, topic_of

QUEUE: Final = "TG_DEAD_QUEUE"
"""Name of the light queue it was in, percent-encoded."""

REASON: Final = "TG_DEAD_REASON"
AT_MS: Final = "TG_DEAD_AT"
NOTE: Final = "TG_DEAD_NOTE"
"""The policy's ``dead_letter_note``, percent-encoded."""

INCARNATION: Final = "TG_DEAD_INCARNATION"
QUEUE_ENDED: Final = "queue-ended"
NOTICE_TOPIC: Final = "TG_NOTICE"


BLOCK_BYTES_MAX: Final = 4 << 20
"""Messages copied in one block, with what ends their entries."""


def fitting_count(core: Core, entries: Sequence[int]) -> int:
    """How many of *entries*, from the first on, are copied in one block; at least one."""
    room = BLOCK_BYTES_MAX
    for count, entry in enumerate(entries):
        room -= core.entries.length_of(core.entries.targets.get(entry, entry))
        if room < 0:
            return max(1, count)
    return len(entries)


class Handover:
    """Writes copies and notices."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def messages(self, guard: Guard, leaving: Sequence[int], reason: str) -> int:
        """Copies of these entries; how many could be read. State that waits shares the block."""
        records: list[bytes] = []
        entries = self._core.entries
        for entry in leaving:
            try:
                records.append(self._core.record_at(entries.targets.get(entry, entry)))
            except Refused:
                continue
        return self.records(guard, records, reason)

    def records(self, guard: Guard, records: Sequence[bytes], reason: str) -> int:
        """The same for messages that were never stored."""
        facts = self._facts(guard, reason)
        copies = [retargeted(record, topic_of(record), 0, facts) for record in records]
        self._append(guard.terms.dead_letter, copies)
        return len(copies)

    def notice(self, guard: Guard) -> None:
        """The queue has ended by itself: whoever declared it forgets it."""
        text = encode_properties(list(self._facts(guard, QUEUE_ENDED).items()))
        self._append(guard.terms.notices, [encode_record(NOTICE_TOPIC, b"", properties_text=text)])

    def _facts(self, guard: Guard, reason: str) -> dict[str, str]:
        name = guard.queue.name if guard.queue is not None else guard.group.name
        return {
            QUEUE: quote(name, safe="/"),
            REASON: reason,
            AT_MS: str(self._core.log.wall_ms),
            INCARNATION: str(guard.terms.incarnation),
            NOTE: quote(guard.terms.note, safe="/"),
        }

    def _append(self, name: str, copies: Sequence[bytes]) -> None:
        if not copies:
            return
        key = queue_key("", QueueKind.DEAD_LETTER, name)
        queue = self._core.light_queue(key, name, {})
        count = len(copies)
        draft = Draft(
            bytearray(b"".join(copies)),
            [len(copy) for copy in copies],
            [0] * count,
            [Plan(None, (queue,))],
            [1 | EntryFlag.BYTES_ONLY] * count,
            [0] * count,
        )
        append_messages(self._core, draft)
