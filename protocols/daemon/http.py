"""
A small HTTP server for the admin API: requests of a connection one after another, each in time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Final

from protocols import clock
from protocols.daemon.requests import (
    Answer,
    BadRequest,
    Request,
    body_size,
    decode_head,
    encode_head,
    json_answer,
)
from protocols.driver import listen, split_bind
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.http")

HEAD_BYTES_MAX: Final = 16 << 10
BODY_BYTES_MAX: Final = 1 << 20
CONNECTIONS_MAX: Final = 1000
"""Open at a time; the next one is closed unheard."""

REQUEST_S_MAX: Final = 10.0
"""From the start of a connection to the end of its first head, and from there to the end of the
body; for a peer to take an answer."""

IDLE_S_MAX: Final = 75.0
"""From an answer to the end of the next request's head."""

STOP_S_MAX: Final = 2.0
"""What is under way when the server stops gets so long."""

PIECE_BYTES: Final = 64 << 10

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpServer:
    """
    One listener.

    Args:
        answer: what to send back; raises nothing on purpose.
        malformed: called for each request that was no HTTP.
    """

    def __init__(
        self, answer: Callable[[Request], Awaitable[Answer]], malformed: Callable[[], None]
    ) -> None:
        self._answer = answer
        self._malformed = malformed
        self._tasks = Tasks("http")
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._busy_count = 0
        """Requests between their heads and their answers."""

    async def start(self, bind: str) -> tuple[str, int]:
        """Listen; the bound host and port. Raises OSError."""

        def connection() -> asyncio.Protocol:
            reader = asyncio.StreamReader(limit=HEAD_BYTES_MAX)
            return asyncio.StreamReaderProtocol(reader, self._connected)

        self._server = await listen(connection, bind)
        return split_bind(bind)[0], int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """What is being answered may end; idle connections end now."""
        if self._server is not None:
            self._server.close()
        await self._tasks.settle(STOP_S_MAX if self._busy_count else 0)
        await self._tasks.close()

    # ── a connection ────────────────────────────────────────────────────────────────────

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open.add(writer)
        self._tasks.start(self._serve(reader, writer), name="connection")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wait_s = REQUEST_S_MAX
        try:
            while await self._exchange(reader, writer, wait_s):
                wait_s = IDLE_S_MAX
            writer.close()
        except (OSError, EOFError, TimeoutError):  # it went away, or is too slow
            writer.transport.abort()
        except BadRequest as error:
            self._malformed()
            refusal = json_answer({"error": str(error)}, status=error.status)
            with contextlib.suppress(OSError, TimeoutError):
                await _send(writer, refusal, is_last=True, is_head=False)
            writer.close()
        finally:
            self._open.discard(writer)
            if not writer.is_closing():
                writer.transport.abort()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait_s: float
    ) -> bool:
        """One request and its answer; whether another may follow."""
        async with asyncio.timeout(wait_s):
            request = await _read_head(reader)
        self._busy_count += 1
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                request = await _with_body(request, reader, writer)
            answer = await self._answer(request)
            is_head = request.method == "HEAD"
            await _send(writer, answer, is_last=request.is_last, is_head=is_head)
        finally:
            self._busy_count -= 1
        return not request.is_last


async def _read_head(reader: asyncio.StreamReader) -> Request:
    """Raises BadRequest, EOFError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise BadRequest(431, "the head is too long") from error
    return decode_head(head.removeprefix(b"\r\n")[:-4])  # RFC 9112, 2.2


async def _with_body(
    request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request:
    """Raises BadRequest, EOFError."""
    size = body_size(request)
    if size > BODY_BYTES_MAX:
        raise BadRequest(413, f"the body has more than {BODY_BYTES_MAX} bytes")
    if size and request.headers.get("expect", "").lower() == "100-continue":
        writer.write(_CONTINUE)
    name = writer.get_extra_info("peername")
    peer = str(name[0]) if isinstance(name, tuple) else ""
    return request._replace(body=await reader.readexactly(size) if size else b"", peer=peer)


async def _send(
    writer: asyncio.StreamWriter, answer: Answer, *, is_last: bool, is_head: bool
) -> None:
    """Raises TimeoutError if the peer does not take it, OSError."""
    date = formatdate(clock.wall_ms() / 1000, usegmt=True)
    if answer.file is None:
        head = encode_head(answer, len(answer.body), is_last=is_last, date=date)
        writer.write(head if is_head else head + answer.body)
        return await _drain(writer)
    with answer.file.open("rb") as file:
        left = answer.file.stat().st_size
        writer.write(encode_head(answer, left, is_last=is_last, date=date))
        while left and not is_head:
            piece = file.read(min(left, PIECE_BYTES))
            if not piece:  # it has been cut: the length that was promised cannot be kept
                raise EOFError
            left -= len(piece)
            writer.write(piece)
            await _drain(writer)


async def _drain(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(REQUEST_S_MAX):
        await writer.drain()
