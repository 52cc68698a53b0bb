"""What a private request must hold before the engine sees it. All raise Refused(BAD_REQUEST)."""

from typing import Final

from protocols.errors import Code, Refused
from protocols.groups import ShareStrategy
from protocols.remoting.private import Adopt, GroupOpen, Pop, StreamOpen
from store.policies.terms import check_policy

U16_MAX: Final = 0xFFFF
U32_MAX: Final = 0xFFFFFFFF
STRATEGIES: Final = frozenset(ShareStrategy)
I64_MAX: Final = 0x7FFFFFFFFFFFFFFF
NAME_CHARACTERS_MAX: Final = 70_000
"""Longest name of a group or queue: an MQTT filter or client id has up to 65,535 bytes, and
goes behind a prefix and a tenant."""

TAKER_CHARACTERS_MAX: Final = 512
"""It is written down with each grant; Java's client ids have some 40 characters."""

READS_MAX: Final = 10_000
STARTS: Final = ("end", "earliest", "epoch")
INVISIBLE_MS_MAX: Final = 30 * 24 * 3600 * 1000
"""Longest invisible time: thirty days."""


def require(is_right: bool, subject: str, hint: str) -> None:
    if not is_right:
        raise Refused(Code.BAD_REQUEST, subject, hint)


def check_key(key: bytes) -> None:
    """A queue key has 16 bytes."""
    require(len(key) == 16, "queue key", f"{len(key)} bytes, 16 wanted")


def check_name(name: str, subject: str) -> None:
    require(
        0 < len(name) <= NAME_CHARACTERS_MAX,
        subject,
        f"a name of {len(name)} characters, 1 to {NAME_CHARACTERS_MAX}",
    )


def check_group_open(spec: GroupOpen) -> None:
    check_name(spec.name, "group")
    require(len(spec.reads) <= READS_MAX, spec.name, f"more than {READS_MAX} queues")
    require(spec.start in STARTS, spec.name, f"start '{spec.start[:20]}' is none of {STARTS}")
    for number in (spec.incarnation, spec.owner_epoch, spec.attempts_max):
        require(0 <= number <= I64_MAX, spec.name, f"{number} is out of range")
    check_policy(spec.name, spec.policy)
    tags = {read.tag for read in spec.reads}
    require(len(tags) == len(spec.reads), spec.name, "read tags are not unique")
    for read in spec.reads:
        require(0 <= read.tag <= U16_MAX, spec.name, f"read tag {read.tag}: 0 to {U16_MAX}")
        require(bool(read.key) != bool(read.topic), spec.name, "a read has a key or a topic")
        if read.key:
            check_key(read.key)


def check_stream_open(asked: StreamOpen) -> None:
    require(0 <= asked.stream <= U32_MAX, "stream", f"{asked.stream} is no u32")
    require(0 <= asked.group <= U32_MAX, "stream", f"group {asked.group} is no u32")
    require(0 <= asked.credit <= I64_MAX, "stream", f"credit {asked.credit}")
    require(asked.strategy in STRATEGIES, "stream", f"strategy {asked.strategy}")


def check_pop(asked: Pop) -> None:
    require(asked.count > 0, "pop", f"count {asked.count}: 1 or more")
    _check_taking(asked, characters_min=0)


def check_adopt(asked: Adopt) -> None:
    _check_taking(asked, characters_min=1)


def _check_taking(asked: Pop | Adopt, *, characters_min: int) -> None:
    """What both say; a pop need not name its taker."""
    require(0 <= asked.group <= U32_MAX, "pop", f"group {asked.group} is no u32")
    hint = f"{len(asked.taker)} characters, 1 to {TAKER_CHARACTERS_MAX}"
    require(characters_min <= len(asked.taker) <= TAKER_CHARACTERS_MAX, "taker", hint)
    require(
        0 < asked.invisible_ms <= INVISIBLE_MS_MAX,
        "pop",
        f"invisible_ms {asked.invisible_ms}: 1 to {INVISIBLE_MS_MAX}",
    )
