"""The certificate that the webhook serves with. New connections get the new one as soon as it is loaded.

`webhook` asks for a `Certificate`. This one comes from two files, such as a mounted Secret of cert-manager;
`certificates/` has the one that the webhook makes itself.
"""

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import structlog

from gpu_orchestrator.adapters import tls
from gpu_orchestrator.adapters.kube.informer.watch import Watch

LOOK_S = 5.0
FLAGS = ("--tls-cert-file", "--tls-key-file")

log = structlog.get_logger()


class Certificate(Protocol):
    @property
    def watches(self) -> Sequence[Watch[Any]]:
        """The watches that must be synced before `keep` is called."""

    @property
    def unready(self) -> str:
        """Why there is no certificate yet; empty if there is one."""

    async def ready(self) -> ssl.SSLContext:
        """Return the context to serve with, once it has a certificate, which `keep` may exchange."""

    async def keep(self) -> None:
        """Keep the certificate right until cancelled. Must not raise."""


class FileCertificate:
    """A certificate and its key in PEM files, loaded again when they change."""

    watches: Sequence[Watch[Any]] = ()
    unready = ""

    def __init__(self, cert: str, key: str, *, look_s: float = LOOK_S) -> None:
        self._cert, self._key, self._look_s = cert, key, look_s
        self._seen = self._stamp()
        self._serving = tls.ServingContext()
        self._serving.use(tls.server(cert, key, named=FLAGS))

    async def ready(self) -> ssl.SSLContext:
        return self._serving.ssl

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            self.look()

    def look(self) -> None:
        """Load the files again if they have changed. Files that cannot be used are told once, and the old
        certificate is kept."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            # A Secret is exchanged by one link: after resolving it, both files are of the same version.
            cert, key = str(Path(self._cert).resolve()), str(Path(self._key).resolve())
            self._serving.use(tls.server(cert, key, named=FLAGS))
        except tls.BadCertificate as error:
            log.error("the certificate cannot be renewed; the old one is kept", error=str(error))
            return
        log.info("certificate loaded", file=self._cert)

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return what differs when a file was changed or exchanged; empty if one is missing."""
        try:
            seen = [Path(each).stat() for each in (self._cert, self._key)]
        except OSError:
            return ()
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in seen)
