"""The TLS context that the webhook's server uses, whose certificate can be replaced while it serves.

New connections get the new certificate; open ones go on. Each certificate has a context of its own, chosen as
a handshake begins. Loading a second certificate into one context would keep an RSA certificate beside a
newer one with an elliptic curve, and serve the expired one to some clients.
"""

import os
import ssl

from gpu_orchestrator.adapters import tls


class ServingContext:
    """Pass `ssl` to the server. Handshakes fail until `use` was called."""

    def __init__(self) -> None:
        self.ssl = _context()
        self.ssl.sni_callback = self._choose  # also called for clients that send no name
        self._current: ssl.SSLContext | None = None

    @property
    def is_ready(self) -> bool:
        return self._current is not None

    def use(self, cert_pem: str, key_pem: str) -> None:
        """Serve new connections with this certificate. Raise `BadCertificate` and keep the old one if it
        cannot be used."""
        context = _context()
        try:
            _load(context, f"{cert_pem}\n{key_pem}\n".encode())
        except (ssl.SSLError, ValueError) as error:
            raise tls.BadCertificate(tls.words(error)) from error
        self._current = context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load certificate and key. Python takes them from a file only; this one is in memory, so that the key
    reaches no disk and the root file system may be read-only."""
    handle = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}", password=tls.no_passphrase)
    finally:
        os.close(handle)
