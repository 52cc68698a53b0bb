"""Which store: rendezvous hashing, so that a store that comes or goes moves only its own keys."""

from collections.abc import Iterable
from hashlib import blake2b


def rendezvous(key: str, names: Iterable[str]) -> str:
    """The name with the highest hash of (name, key); empty if there is none."""
    return max(names, key=lambda name: _score(name, key), default="")


def _score(name: str, key: str) -> bytes:
    text = f"{name}\x00{key}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=8).digest()


def bucket(key: str, count: int) -> int:
    """One of *count* places for *key*."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count
