"""A certificate authority in a folder: real certificates for the server, its parts and any user."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    cert: Path
    key: Path


class Authority:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-orchestrator local authority")])
        own = sign(self._builder(self._name), self._key.public_key(), by=self._key, is_authority=True)
        self.cert = self._write("ca.crt", own.public_bytes(_PEM))

    def server(self, name: str, *, hosts: Sequence[str]) -> Pair:
        names = [_general_name(host) for host in hosts]
        return self._issue(name, x509.SubjectAlternativeName(names), ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, user: str, groups: Sequence[str] = (), *, valid_s: float = 86_400) -> Pair:
        """Issue a certificate that the API server accepts as `user` in `groups`. `valid_s` below 0:
        expired."""
        return self._issue(user, None, ExtendedKeyUsageOID.CLIENT_AUTH, groups=groups, valid_s=valid_s)

    @cached_property
    def service_account_key(self) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        return Pair(
            self._write("service-accounts.pub", public), self._write("service-accounts.key", _private(key))
        )

    def _issue(
        self,
        common_name: str,
        san: x509.SubjectAlternativeName | None,
        usage: x509.ObjectIdentifier,
        *,
        groups: Sequence[str] = (),
        valid_s: float = 86_400,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = self._builder(subject, valid_s).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if san:
            builder = builder.add_extension(san, critical=False)
        stem = f"{common_name.replace(':', '-').replace('/', '-')}-{x509.random_serial_number():x}"[:80]
        cert = sign(builder, key.public_key(), by=self._key)
        return Pair(
            self._write(f"{stem}.crt", cert.public_bytes(_PEM)), self._write(f"{stem}.key", _private(key))
        )

    def _builder(self, subject: x509.Name, valid_s: float = 86_400 * 365) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(seconds=valid_s))
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


def sign(
    builder: x509.CertificateBuilder,
    public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    *,
    by: ec.EllipticCurvePrivateKey,
    is_authority: bool = False,
) -> x509.Certificate:
    """Sign with the extensions that RFC 5280 requires. Python 3.13 and newer refuse a certificate without
    them (`ssl.VERIFY_X509_STRICT` is on by default)."""
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key())
    return (
        builder.public_key(public_key)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(issuer, critical=False)
        .sign(by, hashes.SHA256())
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


_PEM = serialization.Encoding.PEM


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
