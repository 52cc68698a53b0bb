"""
Which member of a shared group gets a message, where it is not simply the next one's turn.

Pure: members with room, keys of messages, and who gets each. Hashes name the same member at every
store and move as few keys as can be when members come and go (rendezvous hashing). A member
without room is passed over: one that is slow holds up nobody.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from random import Random
from typing import Final, NamedTuple

from protocols.canonical import StoredMessage
from protocols.groups import ShareStrategy

KEYS: Final[dict[ShareStrategy, Callable[[StoredMessage], str]]] = {
    ShareStrategy.HASH_CLIENT: lambda message: message.properties.get("TG_CLIENT", ""),
    ShareStrategy.HASH_TOPIC: lambda message: message.subject,
}


class Member(NamedTuple):
    """One stream, as far as sharing needs it."""

    name: str
    room: int
    """Deliveries that it takes now."""


def at_random(members: Sequence[Member], count: int, random: Random) -> list[int]:
    """Index of the member for each of *count* messages; the members have room for all."""
    rooms = [member.room for member in members]
    free = [index for index, room in enumerate(rooms) if room > 0]
    found: list[int] = []
    for _ in range(count):
        index = random.choice(free)
        found.append(index)
        rooms[index] -= 1
        if not rooms[index]:
            free.remove(index)
    return found


def by_hash(members: Sequence[Member], keys: Sequence[str]) -> list[int]:
    """Index of the member for the message of each key; the members have room for all."""
    rooms = [member.room for member in members]
    rankings: dict[str, list[int]] = {}
    found: list[int] = []
    for key in keys:
        ranking = rankings.get(key)
        if ranking is None:
            ranking = rankings[key] = _ranked(members, key)
        index = next(index for index in ranking if rooms[index] > 0)
        rooms[index] -= 1
        found.append(index)
    return found


def _ranked(members: Sequence[Member], key: str) -> list[int]:
    """All members, the one that the key belongs to first."""

    def score(index: int) -> bytes:
        text = f"{members[index].name}\x00{key}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=8).digest()

    return sorted(range(len(members)), key=score, reverse=True)
