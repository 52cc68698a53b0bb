"""
Reply codes and the two ways a request fails: its channel ends, or its connection.

Texts are ``NAME - explanation`` as RabbitMQ sends them; clients log them and some parse them.
Source: AMQP 0-9-1 section 1.1 (constants), RabbitMQ's use of them.
"""

from typing import Final

from protocols.errors import Code, GatewayError

CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
CONNECTION_FORCED: Final = 320
INVALID_PATH: Final = 402
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

NAMES: Final = {
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

IS_HARD: Final = frozenset({320, 402, 501, 502, 503, 504, 505, 530, 540, 541})
"""Codes that end the connection; the others end the channel (AMQP 0-9-1, "hard-error")."""

FROM_CODE: Final = {
    Code.FORBIDDEN: ACCESS_REFUSED,
    Code.UNAUTHORIZED: ACCESS_REFUSED,
    Code.NOT_FOUND: NOT_FOUND,
    Code.TOPIC_NOT_FOUND: NOT_FOUND,
    Code.CONSUMER_GROUP_NOT_FOUND: NOT_FOUND,
    Code.ILLEGAL_MESSAGE_KEY: PRECONDITION_FAILED,
    Code.PAYLOAD_TOO_LARGE: PRECONDITION_FAILED,
    Code.MESSAGE_BODY_TOO_LARGE: PRECONDITION_FAILED,
    Code.MESSAGE_PROPERTIES_TOO_LARGE: PRECONDITION_FAILED,
    Code.PRECONDITION_FAILED: PRECONDITION_FAILED,
    Code.BAD_REQUEST: PRECONDITION_FAILED,
}
"""A refusal of the gateway, in AMQP's numbers; what is not here is 506 (try again later)."""


def reply_text(code: int, explanation: str) -> str:
    """``NAME - explanation``, cut to what a short string holds."""
    text = f"{NAMES[code]} - {explanation}"
    while len(text.encode()) > 255:
        text = text[:-8]
    return text


class AmqpFault(GatewayError):
    """
    A request that ends its channel or, by its code or *is_hard*, its connection.

    Raised by the handlers of one method, caught where methods are dispatched, answered with
    channel.close or connection.close; *method* is the id (class << 16 | method) it blames.
    """

    def __init__(
        self, code: int, explanation: str, *, method: int = 0, is_hard: bool | None = None
    ) -> None:
        super().__init__(reply_text(code, explanation))
        self.code = code
        self.method = method
        self.is_hard = code in IS_HARD if is_hard is None else is_hard
