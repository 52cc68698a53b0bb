"""
A store link to an unmodified Apache RocketMQ 5 broker, over standard codes only.

``link`` is the ``StoreLink``; ``sender`` sends (310 with INNER_MULTI_DISPATCH), ``fetching`` reads
light queues by offset, ``light`` keeps their groups in this gateway, ``pop`` speaks the pop family
and ``polling`` waits for it.
JSON headers throughout: the 2000xx codes do not fit the binary one.

What Apache cannot keep for us is in ``APACHE`` below and in ARCHITECTURE.md.
"""

from typing import Final

from gateway.clusters.link import Capabilities

APACHE: Final = Capabilities(
    is_tidegate=False,
    has_fences=False,
    has_streams=False,
    has_once_keys=False,
    ends_pops=True,
)
"""No numbered frames (a lost answer may mean a duplicate), no fences, no once-keys, no retained
values (a store of ours beside it keeps them), no queue policies; groups of light queues live in
the gateway that reads them, and their progress is an offset at the broker."""
