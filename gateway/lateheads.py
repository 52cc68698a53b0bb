"""Heads of messages that nobody shall see yet: matched when they are visible, not when sent."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from protocols.canonical import Head, Message

HEADS_MAX: Final = 4096
"""Heads remembered; all are forgotten when there are more."""


class LateHeads:
    """The same late head for the same head, so that it is decided about once."""

    def __init__(self) -> None:
        self._heads: dict[Head, Head] = {}

    def of(self, messages: Sequence[Message], now_ms: int) -> Sequence[Message]:
        """*messages*, the delayed and half ones of them under late heads."""
        if not any([one.deliver_at_ms > now_ms or one.producer_group for one in messages]):
            return messages
        return [
            one._replace(head=self._late(one.head))
            if one.deliver_at_ms > now_ms or one.producer_group
            else one
            for one in messages
        ]

    def _late(self, head: Head) -> Head:
        found = self._heads.get(head)
        if found is None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            found = self._heads[head] = replace(head, is_late=True)
        return found
