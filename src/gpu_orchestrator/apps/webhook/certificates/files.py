"""Serve with certificates that someone else keeps in files, and take changed files into use.

Kubernetes replaces the files of a mounted Secret when it changes, so this serves a Secret of cert-manager too.
Who renews the files also sees to the `caBundle` of the webhook configurations.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.adapters.settings import why_unreadable
from gpu_orchestrator.adapters.tls import BadCertificate
from gpu_orchestrator.apps.webhook.certificates.serving_context import ServingContext

EVERY_S = 5.0

log = structlog.get_logger()


class Files:
    """Looks at the files every `every_s`. Files that cannot be used are told once; the certificate that was
    read before stays in use."""

    watches: Sequence[Watch[Any]] = ()

    def __init__(self, serving: ServingContext, cert: str, key: str, *, every_s: float = EVERY_S) -> None:
        self._serving, self._cert, self._key, self._every_s = serving, Path(cert), Path(key), every_s
        self._seen: object = None
        self.unready = "the certificate files have not been read yet"

    async def work(self) -> None:
        """Keep the server's certificate equal to the files until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(self._every_s)

    def look(self) -> None:
        """Take the files into use if they have changed."""
        wrong = ""
        try:
            found: object = (self._cert.read_text(), self._key.read_text())
        except (OSError, UnicodeDecodeError) as error:
            found = wrong = f"cert {self._cert}, key {self._key}: one {why_unreadable(error)}"
        if found == self._seen:
            return
        self._seen = found
        if not wrong:
            wrong = self._use(*found)
        if wrong:
            kept = "the old certificate is kept" if self._serving.is_ready else "there is no other"
            log.error("the certificate files cannot be used", error=f"{wrong}; {kept}")
            self.unready = "" if self._serving.is_ready else wrong

    def _use(self, cert: str, key: str) -> str:
        """Return what is wrong with the files; empty if they are in use now."""
        try:
            self._serving.use(cert, key)
        except BadCertificate as error:
            return f"{self._cert} and {self._key}: {error}"
        self.unready = ""
        log.info("serving with another certificate", file=str(self._cert))
        return ""
