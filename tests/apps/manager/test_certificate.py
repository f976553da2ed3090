"""The certificate of a server at work is exchanged: new connections get the new one, open ones go on."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509

from gpu_orchestrator.adapters import certificate_files, settings, tls
from gpu_orchestrator.apps.manager import server
from gpu_orchestrator.apps.manager.access.keys import Keys, key_of
from tests.apps.manager.conftest import KEY
from tests.support.kube_certificates import Authority, Pair
from tests.support.patience import PATIENCE_S


def write(folder: Path, pair: Pair) -> None:
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.key_pem)


def serial(connection: Any) -> int:
    """Return the number of the certificate that the server showed on this connection."""
    return int(connection.get_extra_info("peercert")["serialNumber"], 16)


async def until_served(port: int, trusted: ssl.SSLContext, expected: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
            writer.close()
            if serial(writer) == expected:
                return
            await asyncio.sleep(0.01)


async def test_kind_of_key_changes_under_open_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL keeps one certificate for each kind of key in a context, and prefers the elliptic curve: a
    server that loads a new RSA certificate into the context in use goes on serving the old one."""
    monkeypatch.setattr(certificate_files, "LOOK_S", 0.01)
    authority = Authority()
    first, *others = (authority.pair("server", kind=kind) for kind in ("ec", "rsa", "ec"))
    write(tmp_path, first)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    trusted = tls.client(str(tmp_path / "ca.crt"))
    files = {"ssl_cert_path": str(tmp_path / "tls.crt"), "ssl_key_path": str(tmp_path / "tls.key")}
    chosen = settings.load({}, tmp_path / "none", api_port=0, data_dir=str(tmp_path / "data"), **files)
    async with (
        server.running(chosen, Keys([key_of(KEY, "admin")])) as running,
        aiohttp.ClientSession(running.url, connector=aiohttp.TCPConnector(ssl=trusted)) as http,
        http.ws_connect("/ws", headers={"Authorization": f"Bearer {KEY}"}) as events,
    ):
        port = int(running.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
        for pair in others:
            write(tmp_path, pair)
            await until_served(
                port, trusted, x509.load_pem_x509_certificate(pair.certificate_pem).serial_number
            )
            writer.write(b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            await events.ping()
            assert not events.closed
        assert serial(writer) == x509.load_pem_x509_certificate(first.certificate_pem).serial_number
        writer.close()
