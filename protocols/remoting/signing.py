"""
Signed requests: HMAC-SHA1 over the values of the header fields and the body.

Source: ``AclUtils.combineRequestContent`` and ``AclSigner`` (4.x ACL and 5.x ACL 2.0 alike).
The signature covers neither the code nor the names of the fields.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from protocols.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
VERSION_SIGNS_QUERY_FLAG: Final = 400
"""Ordinal of 4.9.4-SNAPSHOT: clients up to 4.9.3 leave ``_UNIQUE_KEY_QUERY`` unsigned."""


def signed_content(
    fields: Mapping[str, str], body: bytes | memoryview = b"", *, version: int = 493
) -> bytes:
    """The bytes that the signature covers: values by order of their names (UTF-16), the body."""
    left_out = {SIGNATURE}
    if version < VERSION_SIGNS_QUERY_FLAG:
        left_out.add(_UNIQUE_KEY_QUERY)
    names = sorted((name for name in fields if name not in left_out), key=_utf16_order)
    return "".join([fields[name] for name in names]).encode() + body


def _utf16_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def signature_of(secret: str, content: bytes) -> str:
    """base64(HMAC-SHA1(secret, content))."""
    digest = hmac.new(secret.encode(), content, hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


def sign(command: RemotingCommand, access_key: str, secret: str) -> None:
    """Add ``AccessKey`` and ``Signature`` to the command's fields."""
    fields = dict(command.fields)
    fields.pop(SIGNATURE, None)
    fields[ACCESS_KEY] = access_key
    fields[SIGNATURE] = signature_of(secret, signed_content(fields, command.body))
    command.fields = fields


def is_signed_by(command: RemotingCommand, secret: str) -> bool:
    """Whether the command's signature is that of *secret*; False without one."""
    given = command.fields.get(SIGNATURE, "")
    content = signed_content(command.fields, command.body, version=command.version)
    return hmac.compare_digest(given.encode(), signature_of(secret, content).encode())
