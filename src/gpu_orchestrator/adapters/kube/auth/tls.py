"""TLS to the API server: which CAs we trust, which client certificate we send, and when it expires."""

import base64
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_orchestrator.adapters.kube.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Trust:
    """How we verify the server. Without `ca_pem` we trust the system's CAs."""

    ca_pem: str = ""
    skip_verify: bool = False
    server_name: str = ""
    source: str = "the kubeconfig"


def context(trust: Trust, certificate_pem: bytes = b"", key_pem: bytes = b"") -> ssl.SSLContext:
    made = _context_for_ca(trust) if trust.ca_pem else ssl.create_default_context()
    # CAs made by older tools lack extensions that strict mode (default from Python 3.13) requires.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if trust.skip_verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if certificate_pem:
        _load_client_certificate(made, trust, certificate_pem, key_pem)
    return made


def _context_for_ca(trust: Trust) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=trust.ca_pem)
    except ssl.SSLError as error:
        raise ConfigError(
            f"the certificate authority in {trust.source} is not a PEM certificate: {error.reason or error}; "
            "copy it again from the cluster"
        ) from error


def _load_client_certificate(
    made: ssl.SSLContext, trust: Trust, certificate_pem: bytes, key_pem: bytes
) -> None:
    # The ssl module reads client certificates from files only.
    with tempfile.TemporaryDirectory(prefix="gpu-orchestrator-") as folder:
        pair = Path(folder) / "pair.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(certificate_pem + b"\n" + key_pem)
        try:
            made.load_cert_chain(pair, password="")
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", "") or error
            raise ConfigError(
                f"the client certificate and key in {trust.source} do not work together: {reason}; "
                "copy both again from where they were issued"
            ) from error


def ends_at(certificate_pem: bytes) -> datetime | None:
    """Return when a certificate expires, or None if it cannot be parsed."""
    try:
        body = certificate_pem.split(b"-----BEGIN CERTIFICATE-----")[1].split(b"-----END")[0]
        return _not_after(base64.b64decode(body))
    except (IndexError, ValueError):
        return None


def _not_after(der: bytes) -> datetime:
    """Certificate → to-be-signed → [version] serial algorithm issuer validity → second time."""
    tbs = _children(_children(der)[0][1])[0][1]
    fields = [value for tag, value in _children(tbs) if tag != 0xA0]
    tag, value = _children(fields[3])[1]
    # Two-digit years up to 49 are 20xx (RFC 5280).
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
    return datetime.strptime(value.decode(), form).replace(tzinfo=UTC)


def _children(der: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            more = size & 0x7F
            size, at = int.from_bytes(der[at : at + more], "big"), at + more
        found.append((tag, der[at : at + size]))
        at += size
    return found
