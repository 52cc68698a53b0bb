"""A small authority for tests: certificates with any names, revocation lists."""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """Files of one certificate."""

    cert: str
    key: str
    serial: int


class Authority:
    """Signs; ``path`` is its own certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        self._name = _name(("CN", name))
        self.path = str(folder / f"{name}.pem")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        own = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        Path(self.path).write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file_name: str,
        *names: tuple[str, str],
        alternatives: Sequence[x509.GeneralName] = (x509.DNSName("localhost"),),
        days: int = 1,
    ) -> Pair:
        """*names*: ("CN", "dev-7"), ("O", "acme") …; *days*: how long from now, 0: it is over."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(*names), key, days)
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        made = builder.sign(self._key, hashes.SHA256())
        cert, key_path = self._folder / f"{file_name}.pem", self._folder / f"{file_name}.key"
        cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return Pair(str(cert), str(key_path), made.serial_number)

    def revoke(self, path: Path, *serials: int) -> None:
        """Write the list of what is revoked."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - _DAY)
            .next_update(now + _DAY)
            .add_extension(self._key_id, critical=False)
        )
        for serial in serials:
            revoked = (
                x509.RevokedCertificateBuilder()
                .serial_number(serial)
                .revocation_date(now - _DAY)
                .build()
            )
            builder = builder.add_revoked_certificate(revoked)
        made = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 1
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        public_key = key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(self._key_id, critical=False)  # Python 3.13's contexts insist on it
        )


_OIDS = {
    "CN": NameOID.COMMON_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
}


def _name(*parts: tuple[str, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(_OIDS[kind], value) for kind, value in parts])
