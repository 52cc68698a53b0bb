"""
Settings that may change while the name server runs: an allow-list, nothing else.

Apache's name server took any key but three and wrote files where a client said (CVE-2023-37582);
here a key is changed only if it is in the table below, and only in memory: what shall last stands
in the configuration file.
"""

from collections.abc import Callable
from typing import Final

from namesrv.config import NamesrvConfig
from protocols.errors import Code, Refused


class HotSettings:
    """What the handlers read; ``update`` is UPDATE_NAMESRV_CONFIG."""

    def __init__(self, config: NamesrvConfig) -> None:
        self.order_topics = config.order_topics
        self.acting_master = config.acting_master
        self.topics_max = config.topics_max

    def update(self, text: str) -> dict[str, str]:
        """
        Take ``key=value`` lines, all or none; what was changed. Raises Refused, naming the keys
        that may be changed.
        """
        pairs = [line.partition("=") for line in text.splitlines() if line.strip()]
        parsed: list[tuple[str, bool | int]] = []
        for key, _, value in pairs:
            name, parse = HOT_KEYS.get(key.strip(), ("", _flag))
            if not name:
                raise Refused(
                    Code.FORBIDDEN,
                    key.strip()[:64],
                    f"may change while it runs: {', '.join(sorted(HOT_KEYS))}; "
                    "the rest is in the file",
                )
            parsed.append((name, parse(value.strip())))
        for name, given in parsed:
            setattr(self, name, given)
        return {name: str(given).lower() for name, given in parsed}

    def lines(self) -> dict[str, str]:
        """Current values under every name they have."""
        return {key: str(getattr(self, name)).lower() for key, (name, _) in HOT_KEYS.items()}


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise Refused(Code.BAD_REQUEST, text[:64], "true or false is wanted")
    return text == "true"


def _count(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 10_000_000:
        raise Refused(Code.BAD_REQUEST, text[:64], "a number from 1 to 10000000 is wanted")
    return int(text)


HOT_KEYS: Final[dict[str, tuple[str, Callable[[str], bool | int]]]] = {
    "order_topics": ("order_topics", _flag),
    "acting_master": ("acting_master", _flag),
    "topics_max": ("topics_max", _count),
    "orderMessageEnable": ("order_topics", _flag),
    "supportActingMaster": ("acting_master", _flag),
}
"""Key, ours or Apache's → (attribute, how its text is read)."""
