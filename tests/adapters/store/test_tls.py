"""TLS with the store: the authority, the client's certificate and the server's name come from the address."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controlplane import pki
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.valkey.database import Database
from tests.faults import certificates


async def pong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while received := await reader.read(1000):
        writer.write(b"+PONG\r\n" * received.count(b"*"))
    writer.close()


def _own_certificate(folder: Path) -> Path:
    """Write own.crt and own.key of a client, and return the certificate."""
    key, name = ec.generate_private_key(ec.SECP256R1()), certificates._name("client")
    made = pki.sign(certificates._builder(name, name), key.public_key(), by=key)
    (folder / "own.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "own.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "own.crt"


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    """A server for 127.0.0.1 and localhost that asks its clients for a certificate."""
    certificates.write(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "proxy.crt", tmp_path / "proxy.key")
    context.load_verify_locations(_own_certificate(tmp_path))
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    server = await asyncio.start_server(pong, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize(
    ("options", "works"),
    [
        ("ca={0}/ca.crt&cert={0}/own.crt&key={0}/own.key", True),
        ("ca={0}/ca.crt&cert={0}/own.crt&key={0}/own.key&server_name=localhost", True),
        ("ca={0}/ca.crt&cert={0}/own.crt&key={0}/own.key&server_name=other.example", False),
        ("ca={0}/ca.crt", False),
        ("cert={0}/own.crt&key={0}/own.key", False),
    ],
)
async def test_both_sides_are_checked(port: int, tmp_path: Path, options: str, works: bool) -> None:
    url = f"rediss://127.0.0.1:{port}?{options.format(tmp_path)}"
    async with Database(url) as database:
        if works:
            await database.ping()
        else:
            with pytest.raises(Unreachable):
                await database.ping()
