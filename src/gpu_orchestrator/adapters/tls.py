"""TLS for the cluster manager, its clients and the webhook: contexts, and clear errors for bad files."""

import contextlib
import os
import ssl
from pathlib import Path

from gpu_orchestrator.adapters.settings import why_unreadable

SETTINGS = ("SSL_CERT_PATH", "SSL_KEY_PATH")
"""What errors call the two files of a server, if it does not call them otherwise."""


class BadCertificate(ValueError):
    """The files cannot be used; the message is for the operator."""


def server(cert: str, key: str, *, named: tuple[str, str] = SETTINGS) -> ssl.SSLContext:
    """Return a context from PEM files; TLS 1.2 or newer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for name, path in zip(named, (cert, key), strict=True):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise BadCertificate(f"{name}={path} {why_unreadable(error)}; give a PEM file") from error
    try:
        context.load_cert_chain(cert, key, password=no_passphrase)
    except (OSError, ValueError) as error:  # `ssl.SSLError`, or a file that vanished since it was read
        raise BadCertificate(f"{named[0]}={cert} and {named[1]}={key}: {words(error)}") from error
    return context


def server_from_pem(pem: bytes) -> ssl.SSLContext:
    """Return a context from a certificate and its key. Python reads them from a file only; this one is in
    memory, so that a key reaches no disk and the root file system may be read-only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    handle = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}", password=no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        raise BadCertificate(words(error)) from error
    finally:
        os.close(handle)
    return context


class ServingContext:
    """A context for a server whose certificate is exchanged while it serves: give `ssl` to the server. New
    connections get the new certificate, open ones go on. Until the first `use`, handshakes fail.

    Each certificate has a context of its own, chosen as a handshake begins. One context would keep a
    certificate with an elliptic curve beside a newer one with an RSA key, and go on serving the old one."""

    def __init__(self) -> None:
        self.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        self.ssl.sni_callback = self._choose  # also called for clients that send no name
        self._current: ssl.SSLContext | None = None

    def use(self, context: ssl.SSLContext) -> None:
        self._current = context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _own: ssl.SSLContext) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def client(ca: str = "") -> ssl.SSLContext:
    """Return a context that trusts what the system trusts or, with `ca`, only what that file holds, which may
    be a server's own certificate."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        is_read = isinstance(error, ssl.SSLError)
        why = "cannot be used: it holds no certificate" if is_read else why_unreadable(error)
        raise BadCertificate(f"--ca {ca} {why}; give a PEM file") from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def complaint(serving: ssl.SSLContext, ca: str, host: str) -> str:
    """Return why a client that trusts `ca` would refuse this server under the name `host`; empty if it would
    not. The handshake runs in memory, so the reason is that of a real client."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client(ca).wrap_bio(to_client, to_server, server_hostname=host)
    theirs = serving.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        try:
            ours.do_handshake()
            return ""
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        with contextlib.suppress(ssl.SSLWantReadError):
            theirs.do_handshake()
    return "no handshake"


def no_passphrase() -> str:
    """Refuse a key that has a passphrase, instead of asking for it on the terminal."""
    raise ValueError("the key has a passphrase")


def words(error: Exception) -> str:
    """Return what is wrong with a certificate and its key that could not be loaded, and what to give."""
    reason = getattr(error, "reason", "") or ""
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate; give those that go together"
    if isinstance(error, ssl.SSLError):
        return f"the files hold no PEM certificate with its key ({reason or error}); give PEM files"
    if isinstance(error, OSError):
        return f"one of them {why_unreadable(error)}; give PEM files"
    return f"{error}; give one without"
