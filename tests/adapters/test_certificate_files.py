"""Files of a certificate that are looked at while they change, vanish and come back."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpu_orchestrator.adapters import certificate_files, tls
from gpu_orchestrator.adapters.certificate_files import CertificateFiles
from tests.support.kube_certificates import Authority
from tests.support.patience import PATIENCE_S


class Folder:
    """A certificate of an authority of its own, in files."""

    def __init__(self, path: Path) -> None:
        self.cert, self.key, self.ca = path / "tls.crt", path / "tls.key", path / "ca.crt"
        self.renew()

    def renew(self) -> None:
        authority = Authority()
        pair = authority.pair("server")
        self.ca.write_bytes(authority.pem)
        self.cert.write_bytes(pair.certificate_pem)
        self.key.write_bytes(pair.key_pem)

    def complaint(self, files: CertificateFiles) -> str:
        return tls.complaint(files.ssl, str(self.ca), "127.0.0.1")


def test_missing_file_is_told_once_and_taken_up_when_it_is_back(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    files = CertificateFiles(str(folder.cert), str(folder.key))
    folder.key.unlink()
    with capture_logs() as logged:
        files.look()
        files.look()
    assert [each["log_level"] for each in logged] == ["error"]
    assert f"SSL_KEY_PATH={folder.key} cannot be read: no such file" in logged[0]["error"]
    assert folder.complaint(files) == ""
    folder.renew()
    assert folder.complaint(files) != ""
    files.look()
    assert folder.complaint(files) == ""


async def test_links_that_form_a_loop_do_not_end_the_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.resolve` raises RuntimeError for them on Python 3.11 and 3.12. The loop would end without a
    message, and no later certificate would be taken up."""
    monkeypatch.setattr(certificate_files, "LOOK_S", 0.001)
    folder = Folder(tmp_path)
    files = CertificateFiles(str(folder.cert), str(folder.key))
    keeping = asyncio.create_task(files.keep())
    folder.key.unlink()
    folder.key.symlink_to(folder.key)
    with capture_logs() as logged:
        async with asyncio.timeout(PATIENCE_S):
            while not logged:  # noqa: ASYNC110 - the log offers no event
                await asyncio.sleep(0.001)
        folder.key.unlink()
        folder.renew()
        async with asyncio.timeout(PATIENCE_S):
            while folder.complaint(files):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    keeping.cancel()


def test_file_that_vanishes_while_it_is_loaded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal may remove a file between our reading it and OpenSSL's."""
    folder = Folder(tmp_path)
    read = Path.read_bytes

    def read_and_remove(path: Path) -> bytes:
        content = read(path)
        path.unlink()
        return content

    monkeypatch.setattr(Path, "read_bytes", read_and_remove)
    with pytest.raises(
        tls.BadCertificate, match="one of them cannot be read: no such file or directory; give PEM files"
    ):
        tls.server(str(folder.cert), str(folder.key))
