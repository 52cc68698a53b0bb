"""
One request or response of the remoting protocol, apart from its bytes.

Source: Apache RocketMQ 5, ``RemotingCommand``. The in-memory transport of LOCAL mode carries
these objects as they are; ``frame`` gives them bytes.
"""

from typing import Final

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2
VERSION: Final = 493
"""Ordinal of 5.4.0 in ``MQVersion``."""


class RemotingCommand:
    """
    A header and a body. Plain and slotted: one is made per frame on the hot path.

    ``fields`` are the header's ``extFields``, text both ways; numbers and booleans are the
    business of ``headers``.
    """

    __slots__ = (
        "body",
        "code",
        "fields",
        "flag",
        "is_binary",
        "language",
        "opaque",
        "remark",
        "version",
    )

    def __init__(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        remark: str = "",
        language: str = "PYTHON",
        version: int = VERSION,
        is_binary: bool = False,
    ) -> None:
        self.code = code
        self.fields = fields if fields is not None else {}
        self.body = body
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.language = language
        self.version = version
        self.is_binary = is_binary
        """Header serialization: ROCKETMQ binary (our own hops) or JSON. Answers follow suit."""

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def answer(
        self,
        code: int = 0,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        *,
        remark: str = "",
    ) -> "RemotingCommand":
        """The response to this request: same opaque, same serialization."""
        return RemotingCommand(
            code,
            fields,
            body,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            remark=remark,
            is_binary=self.is_binary,
        )

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "request"
        return f"<{kind} {self.code} opaque={self.opaque} {self.fields} {len(self.body)} B>"
