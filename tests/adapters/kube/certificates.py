"""Certificates for tests: an authority, and pairs it signs, valid or not."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    certificate_pem: bytes
    key_pem: bytes


class Authority:
    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    @cached_property
    def pem(self) -> bytes:
        name = _name("test authority")
        builder = _builder(name, name, self._key.public_key(), datetime.now(UTC) + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def pair(self, name: str, *, ends: datetime | None = None) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        ends = ends or datetime.now(UTC) + timedelta(days=1)
        builder = _builder(_name(name), _name("test authority"), key.public_key(), ends)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        encoding = serialization.Encoding.PEM
        key_pem = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Pair(certificate.public_bytes(encoding), key_pem)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - timedelta(days=30))
        .not_valid_after(ends)
    )
