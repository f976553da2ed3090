"""The certificate that the webhook serves with. New connections get the new one as soon as it is loaded.

`webhook` asks for a `Certificate`. This one comes from two files, such as a mounted Secret of cert-manager;
`certificates/` has the one that the webhook makes itself.
"""

import ssl
from collections.abc import Sequence
from typing import Any, Protocol

from gpu_orchestrator.adapters.certificate_files import CertificateFiles
from gpu_orchestrator.adapters.kube.informer.watch import Watch

FLAGS = ("--tls-cert-file", "--tls-key-file")


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


class FileCertificate(CertificateFiles):
    """A certificate and its key in PEM files, loaded again when they change."""

    watches: Sequence[Watch[Any]] = ()
    unready = ""

    def __init__(self, cert: str, key: str) -> None:
        super().__init__(cert, key, named=FLAGS)

    async def ready(self) -> ssl.SSLContext:
        return self.ssl
