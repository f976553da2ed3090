"""The certificate of a server in two PEM files, loaded again when they change: the cluster manager's, and the
webhook's if it does not make its own. New connections get the new one, open ones go on."""

import asyncio
import ssl
from pathlib import Path

import structlog

from gpu_orchestrator.adapters import tls

LOOK_S = 5.0

log = structlog.get_logger()


class CertificateFiles:
    """A certificate and its key. Give `ssl` to the server, and run `keep` beside it."""

    def __init__(self, cert: str, key: str, *, named: tuple[str, str] = tls.SETTINGS) -> None:
        self._cert, self._key, self._named = cert, key, named
        self._seen = self._stamp()
        self._serving = tls.ServingContext()
        self._serving.use(tls.server(cert, key, named=named))

    @property
    def ssl(self) -> ssl.SSLContext:
        return self._serving.ssl

    async def keep(self) -> None:
        """Look at the files until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:
                log.exception("the files of the certificate could not be looked at; the old one is kept")

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
            self._serving.use(tls.server(cert, key, named=self._named))
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
