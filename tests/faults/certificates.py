"""The proxy's own CA and serving certificate for 127.0.0.1, new for each proxy."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane import pki

DAY = datetime.timedelta(days=1)


def write(folder: Path) -> None:
    """Write ca.crt, proxy.crt and proxy.key into the folder."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = _authority(ca_key)
    leaf = _serving(key, ca, ca_key)
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "proxy.crt").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (folder / "proxy.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _name("fault proxy authority")
    return pki.sign(_builder(name, name), key.public_key(), by=key, is_authority=True)


def _serving(
    key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    builder = (
        _builder(_name("fault proxy"), ca.subject)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    )
    return pki.sign(builder, key.public_key(), by=ca_key)


def _builder(subject: x509.Name, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + 30 * DAY)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
