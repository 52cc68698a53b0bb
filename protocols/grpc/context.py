"""
One RPC as the logic sees it, whatever carries it: metadata, peer, deadline.

Source of the header names: rocketmq-clients ``Signature``, proxy ``GrpcConstants``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocols.errors import Code, Refused

CLIENT_ID: Final = "x-mq-client-id"
CLIENT_LANGUAGE: Final = "x-mq-language"
CLIENT_VERSION: Final = "x-mq-client-version"
NAMESPACE: Final = "x-mq-namespace"
DATE_TIME: Final = "x-mq-date-time"
AUTHORIZATION: Final = "authorization"
ALGORITHM: Final = "MQv2-HMAC-SHA1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """The envelope of one request."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case; of repeated names the last value."""

    peer: str = ""
    """``host:port`` of the client."""

    remaining_ms: int | None = None
    """What the client's ``grpc-timeout`` left when the request arrived; None: no deadline."""

    @property
    def client_id(self) -> str:
        return self.metadata.get(CLIENT_ID, "")


class StreamFailed(Exception):
    """Ends a Telemetry stream with a gRPC status, which is what clients expect there."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status  # name of a grpc.StatusCode
        self.message = message


@dataclass(frozen=True, slots=True)
class Signature:
    """What ``authorization`` says."""

    access_key: str
    digest: bytes
    """HMAC-SHA1 of the date-time header under the secret, 20 bytes."""

    signed: bytes
    """The bytes it covers. Nothing else is signed: only TLS protects against a replay."""


def signature_of(metadata: Mapping[str, str]) -> Signature | None:
    """
    Parse ``MQv2-HMAC-SHA1 Credential=<ak>[/…], SignedHeaders=x-mq-date-time, Signature=<hex>``.

    None without credentials (SDKs send an empty ``Credential`` then). The hex may be of either
    case. Raises Refused(UNAUTHORIZED) if the header is none of ours.
    """
    header = metadata.get(AUTHORIZATION, "")
    if not header:
        return None
    algorithm, _, rest = header.partition(" ")
    fields: dict[str, str] = {}
    for item in rest.split(","):
        name, _, value = item.strip().partition("=")
        fields[name] = value
    access_key = fields.get("Credential", "").split("/")[0]
    if not access_key:
        return None
    signed = metadata.get(DATE_TIME, "")
    if algorithm != ALGORITHM or not signed:
        raise Refused(Code.UNAUTHORIZED, access_key, f"sign {DATE_TIME} with {ALGORITHM}")
    try:
        digest = bytes.fromhex(fields.get("Signature", ""))
    except ValueError as error:
        raise Refused(Code.UNAUTHORIZED, access_key, "the signature is no hex text") from error
    return Signature(access_key, digest, signed.encode())
