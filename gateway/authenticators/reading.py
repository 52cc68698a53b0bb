"""Answers of web services, whole and not too large."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


async def whole_body(answer: "aiohttp.ClientResponse", bytes_max: int) -> bytes:
    """All of it, however many packets it comes in. Raises ValueError above *bytes_max*."""
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > bytes_max:
            raise ValueError(f"an answer of more than {bytes_max} bytes")
    return bytes(data)
