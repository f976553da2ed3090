"""The certificate that the webhook serves with. New connections get the new one as soon as it is loaded.

`webhook` asks for a `Certificate`; this one comes from two files, such as a mounted Secret.
"""

import asyncio
import ssl
from pathlib import Path
from typing import Protocol

import structlog

from gpu_orchestrator.adapters import tls

LOOK_S = 5.0
FLAGS = ("--tls-cert-file", "--tls-key-file")

log = structlog.get_logger()


class Certificate(Protocol):
    async def ready(self) -> ssl.SSLContext:
        """Return the context to serve with, once it has a certificate. It may be reloaded in place."""

    async def keep(self) -> None:
        """Renew it until cancelled. Must not raise."""


class FileCertificate:
    """A certificate and its key in PEM files, loaded again when they change."""

    def __init__(self, cert: str, key: str, *, look_s: float = LOOK_S) -> None:
        self._cert, self._key, self._look_s = cert, key, look_s
        self._loaded = self._stamp()
        self._context = tls.server(cert, key, named=FLAGS)

    async def ready(self) -> ssl.SSLContext:
        return self._context

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            self.look()

    def look(self) -> None:
        """Load the files again if they have changed. Files that do not fit together change nothing: OpenSSL
        would keep the new certificate without a key, and every handshake would fail."""
        stamp = self._stamp()
        if stamp == self._loaded:
            return
        try:
            # A Secret is exchanged by one link: after resolving it, both files are of the same version.
            cert, key = str(Path(self._cert).resolve()), str(Path(self._key).resolve())
            tls.server(cert, key, named=FLAGS)
            tls.load(self._context, cert, key, named=FLAGS)
        except tls.BadCertificate as error:
            log.error("the certificate cannot be renewed; the old one is kept", error=str(error))
            return
        self._loaded = stamp
        log.info("certificate loaded", file=self._cert)

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return what differs when a file was changed or exchanged; empty if one is missing."""
        try:
            seen = [Path(each).stat() for each in (self._cert, self._key)]
        except OSError:
            return ()
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in seen)
