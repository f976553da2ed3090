"""TLS: errors name what is wrong with the files, and clients check what servers show."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from gpu_orchestrator.adapters import tls
from tests.support.handshake import shake, strict
from tests.support.kube_certificates import Authority


class Files:
    """PEM files for 127.0.0.1, and their issuer."""

    def __init__(self, folder: Path, *, ends: datetime | None = None, is_bare: bool = False) -> None:
        authority = Authority()
        self.pair = authority.pair("server", ends=ends, is_bare=is_bare)
        self.cert, self.key, self.ca = (str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem"))
        Path(self.cert).write_bytes(self.pair.certificate_pem)
        Path(self.key).write_bytes(self.pair.key_pem)
        Path(self.ca).write_bytes(authority.pem)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_good_files_serve_tls_1_2_or_newer(files: Files) -> None:
    assert tls.server(files.cert, files.key).minimum_version == ssl.TLSVersion.TLSv1_2


def test_missing_file_is_named(files: Files) -> None:
    with pytest.raises(tls.BadCertificate, match=r"SSL_CERT_PATH=/nowhere cannot be read: no such file"):
        tls.server("/nowhere", files.key)
    with pytest.raises(tls.BadCertificate, match=r"SSL_KEY_PATH=/nowhere cannot be read: no such file"):
        tls.server(files.cert, "/nowhere")


def test_key_of_another_certificate_is_reported(files: Files) -> None:
    Path(files.key).write_bytes(Authority().pair("other").key_pem)
    with pytest.raises(tls.BadCertificate, match="the key does not belong to the certificate"):
        tls.server(files.cert, files.key)


def test_file_without_pem_is_reported(files: Files) -> None:
    Path(files.cert).write_text("rubbish")
    with pytest.raises(tls.BadCertificate, match="the files hold no PEM certificate with its key"):
        tls.server(files.cert, files.key)


def test_key_with_passphrase_is_refused_without_a_prompt(files: Files) -> None:
    key = serialization.load_pem_private_key(files.pair.key_pem, None)
    locked = serialization.BestAvailableEncryption(b"x")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    Path(files.key).write_bytes(pem)
    with pytest.raises(tls.BadCertificate, match="the key has a passphrase; give one without"):
        tls.server(files.cert, files.key)


@pytest.mark.parametrize("content", [None, "", "rubbish"])
def test_bad_ca_file_is_reported(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(tls.BadCertificate, match=f"--ca {path} cannot be (used|read): "):
        tls.client(str(path))


def test_issuer_and_the_certificate_itself_are_trusted(files: Files) -> None:
    serving = tls.server(files.cert, files.key)
    assert tls.complaint(serving, files.ca, "127.0.0.1") == ""
    assert tls.complaint(serving, files.cert, "127.0.0.1") == ""


def test_wrong_name_issuer_or_date_is_reported(tmp_path: Path, files: Files) -> None:
    serving = tls.server(files.cert, files.key)
    assert "mismatch" in tls.complaint(serving, files.ca, "gpu.example")
    (tmp_path / "other").mkdir()
    assert "unable to get local issuer" in tls.complaint(serving, Files(tmp_path / "other").ca, "127.0.0.1")
    (tmp_path / "old").mkdir()
    old = Files(tmp_path / "old", ends=datetime.now(UTC) - timedelta(hours=1))
    assert "expired" in tls.complaint(tls.server(old.cert, old.key), old.ca, "127.0.0.1")


def test_strict_client_takes_a_certificate_of_older_tools_only_by_itself(tmp_path: Path) -> None:
    """What docs/security.md advises until such a certificate is renewed."""
    old = Files(tmp_path, is_bare=True)
    serving = tls.server(old.cert, old.key)
    with pytest.raises(ssl.SSLCertVerificationError, match="Missing Authority Key Identifier"):
        shake(strict(tls.client(old.ca)), serving, "127.0.0.1")
    shake(strict(tls.client(old.cert)), serving, "127.0.0.1")
