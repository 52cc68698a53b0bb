"""
Refusals in HTTP's words: a status and a problem document (RFC 9457).

``Refused`` codes come from the pipeline, ``BadEvent`` from the codec.
"""

from typing import Any, Final

import msgspec

from protocols.errors import Code, Refused

CONTENT_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
"""What 429 and 503 advise; webhooks and SDKs honour it (webhook specification 2.1)."""

STATUS: Final = {
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.TOPIC_NOT_FOUND: 404,
    Code.CONSUMER_GROUP_NOT_FOUND: 404,
    Code.MESSAGE_NOT_FOUND: 404,
    Code.REQUEST_TIMEOUT: 408,
    Code.PAYLOAD_TOO_LARGE: 413,
    Code.MESSAGE_BODY_TOO_LARGE: 413,
    Code.PRECONDITION_FAILED: 412,
    Code.TOO_MANY_REQUESTS: 429,
    Code.LITE_TOPIC_QUOTA_EXCEEDED: 429,
    Code.REQUEST_HEADER_FIELDS_TOO_LARGE: 431,
    Code.MESSAGE_PROPERTIES_TOO_LARGE: 431,
    Code.INTERNAL_ERROR: 500,
    Code.INTERNAL_SERVER_ERROR: 503,
    Code.HA_NOT_AVAILABLE: 503,
    Code.PROXY_TIMEOUT: 503,
    Code.MASTER_PERSISTENCE_TIMEOUT: 507,
    Code.SLAVE_PERSISTENCE_TIMEOUT: 503,
    Code.NOT_IMPLEMENTED: 501,
    Code.UNSUPPORTED: 501,
}
"""By code; any other 4xxxx is 400, any other 5xxxx 503."""

TITLES: Final = {
    400: "Not acceptable as it is",
    401: "Who are you?",
    403: "Not allowed",
    404: "No such thing",
    405: "Not that method",
    408: "Too slow",
    409: "Exists already",
    410: "Gone for good",
    412: "Changed meanwhile",
    413: "Too large",
    415: "Unknown format",
    429: "Too many requests",
    431: "Attributes too large",
    500: "Our fault",
    501: "Not supported",
    503: "Not now",
    507: "Store full",
}


class Problem(Exception):
    """An HTTP refusal; *more* goes into the document."""

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more = more

    def body(self) -> bytes:
        """The problem document."""
        document = {
            "type": "about:blank",
            "title": TITLES.get(self.status, "Refused"),
            "status": self.status,
            "detail": self.detail,
        }
        return msgspec.json.encode(_printable(document | self.more))

    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": CONTENT_TYPE}
        if self.status in (429, 503):
            headers["Retry-After"] = str(self.more.get("retryAfter", RETRY_AFTER_S))
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="tidegate", charset="UTF-8"'
        return headers


def _printable(document: dict[str, Any]) -> dict[str, Any]:
    """Without the bytes that a header had and UTF-8 has not: they are quoted in hints."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, str)
        else value
        for name, value in document.items()
    }


def status_of(code: Code) -> int:
    if code in STATUS:
        return STATUS[code]
    return 400 if 40000 <= code < 50000 else 503


def problem_of(refusal: Refused) -> Problem:
    return Problem(status_of(refusal.code), refusal.hint, code=refusal.code.name)
