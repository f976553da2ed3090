"""Make a certificate authority with one serving certificate, and read both back from PEM text."""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpu_orchestrator.api import names
from gpu_orchestrator.apps.webhook.certificates.content import Authority, Leaf
from gpu_orchestrator.apps.webhook.certificates.rotation import Issued

# Certificates are valid from before their making: clocks of API servers may be behind ours.
BACKDATE = timedelta(days=1)


class BadPem(ValueError):
    """The text cannot be used; the message says why."""


def issue(wanted: Iterable[str], *, now_s: float, life_s: float) -> Issued:
    """Make an authority, let it sign one leaf for these names, and forget the authority's key."""
    starts = datetime.fromtimestamp(now_s, UTC) - BACKDATE
    ends = datetime.fromtimestamp(now_s + life_s, UTC)
    serial = x509.random_serial_number()
    signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # A name of its own for each: with equal names a client has to guess which of them signed a leaf.
    issuer = _name(f"{names.WEBHOOK}-ca-{serial % 2**32:08x}")
    authority = _builder(issuer, issuer, starts, ends)
    leaf = _builder(_name(names.WEBHOOK), issuer, starts, ends).add_extension(
        x509.SubjectAlternativeName([_general_name(each) for each in sorted(wanted)]), critical=False
    )
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    made = _pem(_sign(authority, signer, by=signer, is_authority=True))
    return Issued(read_leaf(_pem(_sign(leaf, key, by=signer)), _private(key), read_authorities(made)))


def read_authorities(pem: str) -> tuple[Authority, ...]:
    """Return the certificates of a bundle, each as a PEM text of its own."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError as error:
        raise BadPem(f"holds no PEM certificates ({error})") from error
    return tuple(Authority(_pem(each), each.not_valid_after_utc.timestamp()) for each in found)


def read_leaf(pem: str, key_pem: str, authorities: Iterable[Authority]) -> Leaf:
    """Return the leaf. Raise `BadPem` unless the key is its own and one of the authorities signed it."""
    try:
        found = x509.load_pem_x509_certificate(pem.encode())
        key = serialization.load_pem_private_key(key_pem.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise BadPem(f"holds no PEM certificate with its key ({error})") from error
    if key.public_key() != found.public_key():
        raise BadPem("holds a key that does not belong to its certificate")
    signer = next((each for each in authorities if _signed(each, found)), None)
    if signer is None:
        raise BadPem("holds a certificate that no certificate of its bundle has signed")
    return Leaf(
        pem=pem,
        key_pem=key_pem,
        authority=signer,
        names=_names_of(found),
        starts_s=found.not_valid_before_utc.timestamp(),
        ends_s=found.not_valid_after_utc.timestamp(),
    )


def _signed(authority: Authority, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.pem.encode()))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names_of(leaf: x509.Certificate) -> frozenset[str]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(each.value) for each in found)


def _builder(
    subject: x509.Name, issuer: x509.Name, starts: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
    )


def _sign(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    *,
    by: ec.EllipticCurvePrivateKey,
    is_authority: bool = False,
) -> x509.Certificate:
    """Sign with the extensions of RFC 5280; Python 3.13 refuses certificates without key identifiers."""
    public = key.public_key()
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key())
    path_length = 0 if is_authority else None
    return (
        builder.public_key(public)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=path_length), critical=True)
        .add_extension(_usage(is_authority=is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(signer, critical=False)
        .sign(by, hashes.SHA256())
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain).decode()
