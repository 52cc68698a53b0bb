"""
HTTP/1.1 requests and answers as bytes, as much as the admin API needs (RFC 9110, RFC 9112).

Bodies have a length: chunked ones are refused with 411, as RFC 9112, 6.3 allows. A library that can
do more, aiohttp, would be a fifth of the start of a gateway that speaks no other HTTP.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from protocols.errors import PeerError

PHRASES: Final = {
    200: "OK",
    202: "Accepted",
    303: "See Other",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
FIELDS_MAX: Final = 100
"""Header fields of one request."""

_TOKEN: Final = frozenset(
    "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
"""RFC 9110, 5.6.2."""

_SINGLE: Final = ("host", "content-length")
"""Fields that must not come twice (RFC 9112, 3.2 and 6.3)."""


class BadRequest(PeerError):
    """No HTTP, or none that is understood here; *status* is the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Request(NamedTuple):
    """One request; ``parts`` are the variables of the path that a route has named."""

    method: str
    path: str
    """As it came, ``%`` and all."""

    query: list[tuple[str, str]]
    headers: Mapping[str, str]
    """Names in lower case."""

    is_last: bool
    """The connection ends with the answer."""

    body: bytes = b""
    peer: str = ""
    """Address without port."""

    parts: Mapping[str, str] = {}

    def wish(self, name: str, default: str = "") -> str:
        """The first value of *name* in the query."""
        return next((value for key, value in self.query if key == name), default)

    def cookies(self) -> dict[str, str]:
        pairs = (part.partition("=") for part in self.headers.get("cookie", "").split(";"))
        return {name.strip(): value.strip() for name, _, value in pairs}

    def json(self) -> Any:
        """Raises ValueError."""
        return json.loads(self.body)


class Answer(NamedTuple):
    """What is sent back; a *file* instead of a body is sent in pieces."""

    body: bytes = b""
    status: int = 200
    kind: str = "application/json; charset=utf-8"
    headers: Mapping[str, str] = {}
    file: Path | None = None


def json_answer(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Answer:
    return Answer(json.dumps(value).encode(), status, headers=headers or {})


def decode_head(head: bytes) -> Request:
    """The request whose head, without the empty line, is *head*. Raises BadRequest."""
    lines = head.decode("latin-1").split("\r\n")
    method, target, version = _request_line(lines[0])
    headers = _fields(lines[1:])
    if "host" not in headers and version == "HTTP/1.1":
        raise BadRequest(400, "no Host")  # RFC 9112, 3.2
    if "transfer-encoding" in headers:
        raise BadRequest(411, "a body without a length")
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    # The absolute form, as proxies write it, means the same (RFC 9112, 3.2.2).
    origin = target if target.startswith("/") else "/" + "".join(target.split("/", 3)[3:])
    path, _, query = origin.partition("#")[0].partition("?")
    try:
        wishes = parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise BadRequest(400, str(error)) from error
    return Request(
        method=method,
        path=path,
        query=wishes,
        headers=headers,
        is_last="close" in options or version == "HTTP/1.0",
    )


def body_size(request: Request) -> int:
    """How many bytes follow the head. Raises BadRequest."""
    text = request.headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadRequest(400, "Content-Length is no number")
    return int(text)


def encode_head(answer: Answer, size: int, *, is_last: bool, date: str) -> bytes:
    """Status and fields of *answer*, the empty line included."""
    fields = {
        "Date": date,
        "Content-Type": answer.kind,
        "Content-Length": str(size),
        **({"Connection": "close"} if is_last else {}),
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {answer.status} {PHRASES.get(answer.status, '')}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def match(pattern: str, path: str) -> dict[str, str] | None:
    """
    The variables of *pattern* in *path*, decoded; None if it is another path.

    ``{name}`` is one part between slashes, ``{name+}`` one or more, slashes included.
    """
    wanted, given = pattern.split("/"), path.split("/")
    spare = len(given) - len(wanted)
    found: dict[str, str] = {}
    at = 0
    for word in wanted:
        is_variable = word.startswith("{")
        count = 1 + spare if is_variable and word.endswith("+}") else 1
        text = "/".join(given[at : at + count])
        at += count
        if count < 1 or (not text and is_variable) or (not is_variable and text != word):
            return None
        if is_variable:
            found[word.strip("{+}")] = unquote(text)
    return found if at == len(given) else None


def _request_line(line: str) -> tuple[str, str, str]:
    words = line.split(" ")
    if len(words) != 3 or not words[0] or not _TOKEN.issuperset(words[0]):
        raise BadRequest(400, "no request line")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        is_http = version.startswith("HTTP/") and len(version) == 8
        raise BadRequest(505 if is_http else 400, "neither HTTP/1.1 nor HTTP/1.0")
    if not (target.startswith(("/", "http://", "https://")) and target.isprintable()):
        raise BadRequest(400, "no path")
    return method, target, version


def _fields(lines: list[str]) -> dict[str, str]:
    if len(lines) > FIELDS_MAX:
        raise BadRequest(431, "too many header fields")
    fields: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition(":")
        if not separator or not name or not _TOKEN.issuperset(name):  # folded lines too
            raise BadRequest(400, "no header field")
        if "\r" in value or "\n" in value or "\0" in value:
            raise BadRequest(400, "a control character in a header field")
        key, value = name.lower(), value.strip(" \t")
        if key in fields and key in _SINGLE:
            raise BadRequest(400, f"{name} twice")
        fields[key] = f"{fields[key]}, {value}" if key in fields else value
    return fields
