"""The small HTTP server of the admin API: what it understands, refuses and bounds."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from protocols.daemon import http
from protocols.daemon.http import HttpServer
from protocols.daemon.requests import (
    FIELDS_MAX,
    Answer,
    BadRequest,
    Request,
    body_size,
    decode_head,
    json_answer,
    match,
)
from tests.support.patience import PATIENCE_S


def head(*lines: str) -> bytes:
    return "\r\n".join(lines).encode("latin-1")


def test_a_request_is_decoded() -> None:
    """Path as it came, the query decoded and in order, names of fields in lower case."""
    request = decode_head(
        head("POST /api/a%2Fb?x=1&y=%20z&x=2&e= HTTP/1.1", "Host: h:1", "X-A: \t1 ", "x-a:2")
    )
    assert (request.method, request.path) == ("POST", "/api/a%2Fb")
    assert request.query == [("x", "1"), ("y", " z"), ("x", "2"), ("e", "")]
    assert request.wish("x") == "1"
    assert request.wish("none", "d") == "d"
    assert request.headers == {"host": "h:1", "x-a": "1, 2"}
    assert not request.is_last


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://h:1/a/b?c=d", "/a/b"),
        ("https://h", "/"),
        ("/a#f", "/a"),
        ("/", "/"),
    ],
)
def test_targets(target: str, path: str) -> None:
    """The absolute form too (RFC 9112, 3.2.2)."""
    assert decode_head(head(f"GET {target} HTTP/1.1", "Host: h")).path == path


@pytest.mark.parametrize(
    ("version", "connection", "is_last"),
    [
        ("1.1", "", False),
        ("1.1", "keep-alive, Close", True),
        ("1.0", "", True),
    ],
)
def test_which_request_is_the_last(version: str, connection: str, is_last: bool) -> None:
    """RFC 9112, 9.3; HTTP/1.0 connections are not kept."""
    request = decode_head(head(f"GET / HTTP/{version}", "Host: h", f"Connection: {connection}"))
    assert request.is_last is is_last


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("GET /",), 400),
        (("GET  / HTTP/1.1",), 400),
        (("G(T / HTTP/1.1", "Host: h"), 400),
        (("GET a HTTP/1.1", "Host: h"), 400),
        (("GET /\x01 HTTP/1.1", "Host: h"), 400),
        (("GET / HTTP/2.0", "Host: h"), 505),
        (("GET / FTP", "Host: h"), 400),
        (("GET / HTTP/1.1",), 400),
        (("GET / HTTP/1.1", "Host: h", "Host: i"), 400),
        (("GET / HTTP/1.1", "Host : h"), 400),
        (("GET / HTTP/1.1", "Host: h", " folded: x"), 400),
        (("GET / HTTP/1.1", "Host: h", "X: a\nEvil: b"), 400),
        (("GET / HTTP/1.1", "Host: h", "no separator"), 400),
        (("POST / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked"), 411),
        (("GET / HTTP/1.1", "Host: h", *("X: y" for _ in range(FIELDS_MAX))), 431),
        (("GET /?" + "a=b&" * FIELDS_MAX + "c=d HTTP/1.1", "Host: h"), 400),
    ],
)
def test_what_is_no_request(lines: tuple[str, ...], status: int) -> None:
    """Nothing is guessed: where two readers could differ it is refused."""
    with pytest.raises(BadRequest) as refused:
        decode_head(head(*lines))
    assert refused.value.status == status


@pytest.mark.parametrize("value", ["-1", "+1", "1_0", "", "1, 1", "²", "9" * 20])
def test_lengths_that_are_none(value: str) -> None:
    """Digits only (RFC 9112, 6.3)."""
    request = decode_head(head("POST / HTTP/1.1", "Host: h", f"Content-Length: {value}"))
    with pytest.raises(BadRequest):
        body_size(request)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/a", "/a", {}),
        ("/a", "/a/", None),
        ("/a", "/b", None),
        ("/", "/", {}),
        ("/a/{x}", "/a/b%2Fc", {"x": "b/c"}),
        ("/a/{x}", "/a/b/c", None),
        ("/a/{x}", "/a/", None),
        ("/a/{x+}", "/a/b/c", {"x": "b/c"}),
        ("/a/{x+}", "/a", None),
        ("/a/{x+}/kick", "/a/b/c/kick", {"x": "b/c"}),
        ("/a/{x+}/kick", "/a/kick", None),
        ("/a/{x}/{y+}", "/a/b/c/d", {"x": "b", "y": "c/d"}),
    ],
)
def test_paths_with_variables(pattern: str, path: str, expected: dict[str, str] | None) -> None:
    """Parts are cut before they are decoded, so that a client id may have slashes."""
    assert match(pattern, path) == expected


class Site:
    """A server on loopback, what it was asked, and raw bytes to it."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.malformed_count = 0
        self.answer: Callable[[Request], Answer] = lambda request: json_answer({"ok": True})
        self.server = HttpServer(self._answer, self._malformed)
        self.address = ("", 0)

    async def _answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return self.answer(request)

    def _malformed(self) -> None:
        self.malformed_count += 1

    async def talk(self, data: bytes) -> bytes:
        """All that comes until the other end closes; nothing if it cuts the connection."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(data)
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    found.address = await found.server.start("127.0.0.1:0")
    yield found
    await found.server.stop()


async def test_requests_of_one_connection_follow_one_another(site: Site) -> None:
    """Sent in one go, answered in order, bodies kept apart."""
    site.answer = lambda request: Answer(request.body or request.path.encode())
    got = await site.talk(
        b"POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\none"
        b"\r\nHEAD /2 HTTP/1.1\r\nHost: h\r\n\r\n"
        b"GET /three HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    )
    assert [request.path for request in site.asked] == ["/1", "/2", "/three"]
    assert site.asked[0].peer == "127.0.0.1"
    parts = got.split(b"\r\n\r\n")
    assert parts[1].startswith(b"oneHTTP/1.1 200 OK\r\n")  # and nothing behind the second head
    assert parts[2].startswith(b"HTTP/1.1 200 OK\r\n")
    assert parts[3] == b"/three"
    assert b"Connection: close" in parts[2]
    assert b"Connection" not in parts[0]


async def test_nonsense_is_answered_counted_and_closed(site: Site) -> None:
    """What comes behind it is not read as a request."""
    got = await site.talk(b"nonsense\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert site.malformed_count == 1
    assert not site.asked


async def test_a_head_and_a_body_have_bounds(site: Site) -> None:
    """431 and 413; the body's by what it says it will be."""
    assert (await site.talk(b"GET /" + b"x" * 2 * http.HEAD_BYTES_MAX))[9:12] == b"431"
    size = http.BODY_BYTES_MAX + 1
    got = await site.talk(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
    assert got[9:12] == b"413"
    assert not site.asked


async def test_a_body_that_waits_to_be_asked_for(site: Site) -> None:
    """RFC 9110, 10.1.1."""
    reader, writer = await asyncio.open_connection(*site.address)
    writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"hi")
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    assert site.asked[0].body == b"hi"
    writer.close()


async def test_who_says_nothing_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first request, in the midst of one and after one; no answer is made up."""
    monkeypatch.setattr(http, "REQUEST_S_MAX", 0.02)
    monkeypatch.setattr(http, "IDLE_S_MAX", 0.02)
    for data in (b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nx"):
        assert await site.talk(data) == b""
    assert not site.asked


async def test_connections_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one too many is closed unheard; when another leaves there is room again."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    ask = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection(*site.address)
    writer.write(ask.replace(b"close", b"keep-alive"))
    await reader.readline()
    assert await site.talk(ask) == b""
    writer.close()
    async with asyncio.timeout(PATIENCE_S):
        while not await site.talk(ask):
            pass


async def test_a_file_is_sent_as_long_as_it_was(site: Site, tmp_path: Path) -> None:
    """Whatever is written to it meanwhile belongs to the next look."""
    file = tmp_path / "trace"
    file.write_bytes(b"x" * (3 * http.PIECE_BYTES + 1))
    site.answer = lambda request: Answer(file=file)
    got = await site.talk(b"GET / HTTP/1.0\r\n\r\n")
    assert got.partition(b"\r\n\r\n")[2] == file.read_bytes()


async def test_stopping_ends_idle_connections(site: Site) -> None:
    """And waits for nobody who is not being answered."""
    reader, writer = await asyncio.open_connection(*site.address)
    await site.talk(b"GET / HTTP/1.0\r\n\r\n")  # the first connection has been seen
    await site.server.stop()
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
