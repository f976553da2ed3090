"""Certificates for tests: a CA, and the valid or expired pairs that it signs."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from controlplane import pki

Kind = Literal["ec", "rsa"]


@dataclass(frozen=True)
class Pair:
    certificate_pem: bytes
    key_pem: bytes


class Authority:
    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        return _curve_key()

    @cached_property
    def pem(self) -> bytes:
        name = _name("test authority")
        builder = _builder(name, name, datetime.now(UTC) + timedelta(days=1))
        own = pki.sign(builder, self._key.public_key(), by=self._key, is_authority=True)
        return own.public_bytes(serialization.Encoding.PEM)

    def pair(
        self, name: str, *, ends: datetime | None = None, is_bare: bool = False, kind: Kind = "ec"
    ) -> Pair:
        """Sign a pair. `is_bare`: without the extensions that RFC 5280 requires, as older tools do. `kind` is
        that of its key."""
        key = rsa.generate_private_key(65_537, 2048) if kind == "rsa" else _curve_key()
        ends = ends or datetime.now(UTC) + timedelta(days=1)
        builder = _builder(_name(name), _name("test authority"), ends)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = builder.add_extension(names, critical=False)
        certificate = (
            builder.public_key(key.public_key()).sign(self._key, hashes.SHA256())
            if is_bare
            else pki.sign(builder, key.public_key(), by=self._key)
        )
        encoding = serialization.Encoding.PEM
        key_pem = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Pair(certificate.public_bytes(encoding), key_pem)


def _curve_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(name: x509.Name, issuer: x509.Name, ends: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - timedelta(days=30))
        .not_valid_after(ends)
    )
