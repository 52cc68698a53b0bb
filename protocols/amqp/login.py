"""What the server says of itself in connection.start, and how clients say who they are."""

from typing import Final

from protocols.amqp.fields import decode_bare_table, table_of, text_of
from protocols.errors import PeerError

MECHANISMS: Final = b"AMQPLAIN PLAIN"
EXTERNAL: Final = "EXTERNAL"
"""Who the client's certificate says it is; offered where one is asked for."""

SERVER_PROPERTIES: Final = table_of(
    {
        "capabilities": {
            "publisher_confirms": True,
            "exchange_exchange_bindings": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "consumer_priorities": True,
            "authentication_failure_close": True,
            "per_consumer_qos": True,
            "direct_reply_to": True,
        },
        "cluster_name": "tidegate",
        "copyright": "Apache License 2.0",
        "information": "RabbitMQ's AMQP 0-9-1, served by Tidegate",
        "platform": "Python",
        "product": "RabbitMQ",  # clients and their suites switch features by this name
        "version": "3.13.0",
        "gateway": "Tidegate",
    }
)


def _plain(response: bytes) -> tuple[str, bytes]:
    """``authzid NUL user NUL password`` (RFC 4616)."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise PeerError("a PLAIN response is NUL user NUL password")
    return parts[1].decode("utf-8", "replace"), parts[2]


def _amqplain(response: bytes) -> tuple[str, bytes]:
    """A field table without its length, with LOGIN and PASSWORD (RabbitMQ)."""
    table = decode_bare_table(response)
    password = table.get("PASSWORD")
    value = password.value if password is not None else ""
    secret = value.encode() if isinstance(value, str) else value
    return text_of(table, "LOGIN"), secret if isinstance(secret, bytes) else b""


def _external(response: bytes) -> tuple[str, bytes]:
    """An identity to act as (RFC 4422), which RabbitMQ does not look at either."""
    return "", b""


LOGINS: Final = {"PLAIN": _plain, "AMQPLAIN": _amqplain, EXTERNAL: _external}
