"""
TLS of a listener: certificates that are read again when their files change, and who a client is.

A reload makes a new context, never changes one: connections that are open keep theirs, and a
session ticket of the old one is worth nothing at the new one, so that a certificate revoked
meanwhile is looked at again.
"""

import logging
import os
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self, cast

from pydantic import ConfigDict, model_validator

from protocols.checking import CheckedModel

logger = logging.getLogger("tidegate.tls")

Names = tuple[tuple[tuple[str, str], ...], ...]
"""A distinguished name as ``ssl`` gives it."""

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsSettings(CheckedModel):
    """TLS of one listener; the files are read again when they change, and at a reload."""

    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)

    cert: Path
    """Certificate chain, PEM."""

    key: Path
    """Private key, PEM."""

    client_ca: Path | None = None
    """Authorities whose client certificates are asked for, PEM."""

    client_cert: Literal["required", "optional"] = "required"
    """With ``client_ca``: whether a client may come without a certificate."""

    crl: Path | None = None
    """Revocation lists of those authorities, PEM; a client certificate in them is refused."""

    identity: Literal["cn", "san_dns", "san_email", "san_uri"] = "cn"
    """Which name of a client certificate is the identity: its common name, or its first
    alternative name of that kind (it has no identity without one)."""

    min_version: Literal["1.2", "1.3"] = "1.2"
    """Oldest TLS version spoken."""

    @model_validator(mode="after")
    def _has_authority(self) -> Self:
        if self.crl is not None and self.client_ca is None:
            raise ValueError("crl wants client_ca, whose certificates it revokes")
        return self


class ClientCertificate(NamedTuple):
    """Names in a verified client certificate; all empty without one."""

    common_name: str = ""
    organisation: str = ""
    unit: str = ""
    alternatives: tuple[tuple[str, str], ...] = ()
    """(``DNS`` | ``email`` | ``URI`` …, value), in order."""

    def identity(self, source: str) -> str:
        """The name that ``tls.identity`` asks for."""
        if source == "cn":
            return self.common_name
        kind = {"san_dns": "DNS", "san_email": "email", "san_uri": "URI"}[source]
        return next((value for name, value in self.alternatives if name == kind), "")

    def tenant(self, source: str) -> str:
        """*source* is ``from_cert_o``, ``from_cert_ou``, or the tenant itself."""
        if source == "from_cert_o":
            return self.organisation
        if source == "from_cert_ou":
            return self.unit
        return source


NO_CERTIFICATE: Final = ClientCertificate()


def certificate_of(tls: object) -> ClientCertificate:
    """Of a transport's ``ssl_object``; *tls* None: the connection is in plain text."""
    if not isinstance(tls, ssl.SSLObject):
        return NO_CERTIFICATE
    found = tls.getpeercert()
    if not found:
        return NO_CERTIFICATE
    subject = {n: v for part in cast(Names, found.get("subject", ())) for n, v in part}
    return ClientCertificate(
        subject.get("commonName", ""),
        subject.get("organizationName", ""),
        subject.get("organizationalUnitName", ""),
        cast("tuple[tuple[str, str], ...]", found.get("subjectAltName", ())),
    )


NO_RECORD: Final = frozenset(("HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER"))
"""OpenSSL's reasons for bytes that are no TLS: it has no alert for them."""


class TellingObject(ssl.SSLObject):
    """
    Lets the peer know why its handshake failed.

    asyncio closes at an error without writing the alert that OpenSSL has made of it. When told
    that there is more to read it writes first, and hears of the error with the next bytes, or
    never: the peer closes, or the time for handshakes ends.
    """

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if error.reason in NO_RECORD:
                raise
            self._failure = error
            raise ssl.SSLWantReadError from error


WRONG: Final = {
    "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "no PEM of certificates or revocation lists",
    None: "no PEM of a certificate and of a key without a password",
}
"""OpenSSL's reasons; it has none for what it cannot read."""


def _load(load: Callable[..., object], *files: Path) -> None:
    """Raises OSError, with the names of the files and what is wrong with them."""
    for file in files:
        file.open("rb").close()
    try:
        load(*files)
    except ssl.SSLError as error:
        names = " and ".join(map(str, files))
        raise OSError(f"{names}: {WRONG.get(error.reason, error)}") from error


def make_context(settings: TlsSettings, alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Server side. Raises OSError if a file is missing or wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = TellingObject
    context.minimum_version = VERSIONS[settings.min_version]
    # "" instead of OpenSSL's question at the terminal
    _load(partial(context.load_cert_chain, password=""), settings.cert, settings.key)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if settings.client_ca is not None:
        _load(context.load_verify_locations, settings.client_ca)
        is_required = settings.client_cert == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        if settings.crl is not None:
            _load(context.load_verify_locations, settings.crl)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


class Certificates:
    """The context in force for new connections; follows its files."""

    def __init__(self, settings: TlsSettings, alpn: tuple[str, ...] = ()) -> None:
        self.reload_count = 0
        self.failure_count = 0
        self._settings = settings
        self._alpn = alpn
        self._stamp = self._read_stamp()
        self.context = make_context(settings, alpn)

    def refresh(self) -> bool:
        """
        Read the files again if one changed; True: new connections get what they say now.

        Files that do not fit together leave the old context in force, and are said once.
        """
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.context = make_context(self._settings, self._alpn)
        except OSError as error:
            self.failure_count += 1
            logger.error("certificate not taken, the old one stays: %s", error)
            return False
        self.reload_count += 1
        logger.info("certificate %s read again", self._settings.cert)
        return True

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes with each of the files, also when a link to them is moved."""
        settings = self._settings
        stamps: list[tuple[int, int, int]] = []
        for path in (settings.cert, settings.key, settings.client_ca, settings.crl):
            if path is None:
                continue
            try:
                found = os.stat(path)
            except OSError:
                stamps.append((0, 0, 0))
            else:
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return tuple(stamps)
