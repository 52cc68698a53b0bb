"""
What is kept of a SCRAM user: enough to check a proof, not enough to make one (RFC 5802, 2.2).

::

    SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>        (base64; RFC 5803, PostgreSQL)
"""

import base64
import hashlib
import hmac
from typing import Final, NamedTuple, Self

from gateway.authenticators.saslprep import saslprep

DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Methods and their hashes. SCRAM-SHA-1 is left out: RFC 7677 was written to replace it."""

ITERATIONS_MIN: Final = 4096
"""RFC 7677, 4: at least."""

ITERATIONS_MAX: Final = 1_000_000
"""Each of a client's logins costs it so many hashes: some seconds on a phone."""

ITERATIONS: Final = 15_000
"""RFC 7677, 4: a tenth of a second on a machine of 2015, half of one on a small device."""

SALT_BYTES: Final = 16
SALT_BYTES_MAX: Final = 64


class Verifier(NamedTuple):
    method: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        try:
            method, first, second = text.split("$")
            iterations_text, salt_text = first.split(":")
            keys = [base64.b64decode(key, validate=True) for key in second.split(":")]
            stored_key, server_key = keys
            iterations, salt = int(iterations_text), base64.b64decode(salt_text, validate=True)
        except ValueError:
            raise ValueError(
                "a verifier is SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>: "
                "see tidegate user add --scram"
            ) from None
        if method not in DIGESTS:
            raise ValueError(f"'{method}' is none of {', '.join(DIGESTS)}")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"{ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, not {iterations}")
        if not 8 <= len(salt) <= SALT_BYTES_MAX:  # NIST SP 800-132 wants 16; others made 8
            raise ValueError(f"a salt has 8 to {SALT_BYTES_MAX} bytes, not {len(salt)}")
        size = hashlib.new(DIGESTS[method]).digest_size
        if {len(stored_key), len(server_key)} != {size}:
            raise ValueError(f"keys of {method} have {size} bytes")
        return cls(method, iterations, salt, stored_key, server_key)

    @classmethod
    def make(cls, method: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Self:
        """Raises ValueError for a password that nobody could type."""
        digest = DIGESTS[method]
        secret = saslprep(password, is_stored=True).encode()
        salted = hashlib.pbkdf2_hmac(digest, secret, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        server_key = hmac.digest(salted, b"Server Key", digest)
        return cls(method, iterations, salt, stored_key, server_key)

    def __str__(self) -> str:
        salt, stored_key, server_key = (
            base64.b64encode(part).decode()
            for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{self.method}${self.iterations}:{salt}${stored_key}:{server_key}"
