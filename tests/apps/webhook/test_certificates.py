"""Certificates as they are made, stored, read back and served, with real handshakes in memory."""

import ssl
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from structlog.testing import capture_logs

from gpu_orchestrator.adapters import tls
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.api import names
from gpu_orchestrator.api.webhook_objects import Secret
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.apps.webhook.certificate import FileCertificate
from gpu_orchestrator.apps.webhook.certificates import authority, secret
from gpu_orchestrator.apps.webhook.certificates.content import Content, Leaf
from gpu_orchestrator.apps.webhook.certificates.secret import Unusable
from gpu_orchestrator.apps.webhook.settings import Settings
from tests.support.certificates import content
from tests.support.handshake import strict

HOST = "gpu-scheduler-webhook.system.svc"


def issue(*more: str) -> Leaf:
    return authority.issue([HOST, *more], now_s=time.time(), life_s=60).leaf


def served(context: ssl.SSLContext, trusted: str, host: str = HOST) -> str:
    """Return the certificate that a strict client accepts from this server."""
    client = strict(ssl.create_default_context(cadata=trusted))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        with suppress(ssl.SSLWantReadError):
            ours.do_handshake()
            return ssl.DER_cert_to_PEM_cert(ours.getpeercert(binary_form=True) or b"")
        with suppress(ssl.SSLWantReadError):
            theirs.do_handshake()
    raise AssertionError("no handshake")


def context_of(leaf: Leaf) -> ssl.SSLContext:
    return tls.server_from_pem(f"{leaf.pem}{leaf.key_pem}".encode())


@pytest.mark.parametrize("host", [HOST, "127.0.0.1"], ids=["name", "address, without SNI"])
def test_made_certificate_is_accepted_by_strict_clients(host: str) -> None:
    leaf = issue("127.0.0.1")
    serving = tls.ServingContext()
    serving.use(context_of(leaf))
    assert served(serving.ssl, leaf.authority.pem, host) == leaf.pem
    assert {HOST, "127.0.0.1"} == leaf.names
    with pytest.raises(ssl.SSLCertVerificationError):
        served(serving.ssl, issue().authority.pem, host)


def test_new_connections_get_the_new_certificate() -> None:
    old, new = issue(), issue()
    both = old.authority.pem + new.authority.pem
    serving = tls.ServingContext()
    with pytest.raises(ssl.SSLError):
        served(serving.ssl, both)
    for each in (old, new):
        serving.use(context_of(each))
        assert served(serving.ssl, both) == each.pem


def test_new_kind_of_key_replaces_the_old_one_for_every_client(tmp_path: Path) -> None:
    """A context with certificates of two kinds of keys would go on serving the old one to most clients."""
    old, new = issue(), with_rsa_key()
    write(tmp_path, old)
    files = FileCertificate(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    both = old.authority.pem + new.authority.pem
    assert served(files._serving.ssl, both) == old.pem
    write(tmp_path, new)
    files.look()
    assert served(files._serving.ssl, both) == new.pem


def with_rsa_key() -> Leaf:
    """Return a leaf that signs itself, with an RSA key."""
    key = rsa.generate_private_key(65_537, 2048)
    template = x509.load_pem_x509_certificate(issue().authority.pem.encode())
    public = key.public_key()
    own = (
        x509.CertificateBuilder(template.subject, template.subject, public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(template.not_valid_before_utc)
        .not_valid_after(template.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    kind = serialization.PrivateFormat.PKCS8
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key_pem, pem = key.private_bytes(encoding, kind, plain), own.public_bytes(encoding).decode()
    (self_signed,) = authority.read_authorities(pem)
    return replace(issue(), pem=pem, key_pem=key_pem.decode(), authority=self_signed)


def write(folder: Path, leaf: Leaf) -> None:
    """Replace the files by new ones, as tools do."""
    for name, text in (("tls.crt", leaf.pem), ("tls.key", leaf.key_pem)):
        (folder / f"{name}.new").write_text(text)
        (folder / f"{name}.new").replace(folder / name)


def test_bad_files_are_told_once_and_the_old_certificate_is_kept(tmp_path: Path) -> None:
    leaf = issue()
    write(tmp_path, leaf)
    files = FileCertificate(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    (tmp_path / "tls.key").write_text(issue().key_pem)
    with capture_logs() as logged:
        files.look()
        files.look()
    assert len(logged) == 1
    assert "the key does not belong to the certificate" in logged[0]["error"]
    assert served(files._serving.ssl, leaf.authority.pem) == leaf.pem


def as_secret(made: Content, *, is_ours: bool = True, **changed: str) -> Secret:
    data = secret.manifest(made)["data"] | {
        name.replace("_", "."): b64encode(text.encode()).decode() for name, text in changed.items()
    }
    return Secret(ObjectMeta(labels=secret.LABELS if is_ours else {}), secret.TYPE, data)


def test_secret_holds_what_was_written() -> None:
    one, two = issue(), issue()
    for each in (content(one), content(one, to_come=two), content(two, one)):
        assert secret.read(as_secret(each)) == each


def test_patch_is_guarded_and_removes_what_is_done_with() -> None:
    found = Secret(ObjectMeta(uid="u", resource_version="7"))
    patch = secret.patch(content(issue()), found)
    assert patch["metadata"]["resourceVersion"] == "7"
    assert patch["metadata"]["uid"] == "u"
    assert patch["data"]["next.crt"] is patch["data"]["next.key"] is None


ONE, TWO = issue(), issue()
PAIR, NOTHING = content(ONE), Unusable("has no tls.crt, tls.key, ca.crt")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(Secret(), NOTHING, id="empty"),
        pytest.param(
            as_secret(PAIR, tls_key=TWO.key_pem),
            Unusable("holds a key that does not belong to its certificate"),
            id="another key",
        ),
        pytest.param(
            as_secret(PAIR, ca_crt=TWO.authority.pem),
            Unusable("holds a certificate that no certificate of its bundle has signed"),
            id="another bundle",
        ),
        pytest.param(
            as_secret(PAIR, is_ours=False),
            Unusable("was not made by the webhook", True),
            id="somebody else's",
        ),
        pytest.param(
            as_secret(PAIR, is_ours=False, ca_crt=TWO.authority.pem),
            Unusable("holds a certificate that no certificate of its bundle has signed", True),
            id="somebody else's, without its authority",
        ),
        pytest.param(
            Secret(data={"tls.crt": "%"}), Unusable("has no tls.crt, tls.key, ca.crt"), id="no base64"
        ),
        pytest.param(Secret(data={"tls.crt": "/w=="}), Unusable("holds no text in tls.crt"), id="no text"),
    ],
)
def test_unusable_secret_is_explained(found: Secret, why: Unusable) -> None:
    assert secret.read(found) == why


def test_unreadable_pem_is_explained() -> None:
    for each in (as_secret(PAIR, tls_crt="x"), as_secret(PAIR, tls_key="x"), as_secret(PAIR, ca_crt="x")):
        found = secret.read(each)
        assert isinstance(found, Unusable)
        assert found.why.startswith("holds no PEM certificate")
        assert not found.is_foreign


@pytest.mark.parametrize(
    ("given", "is_files"),
    [
        ({}, False),
        ({"certificates": "self-made"}, False),
        ({"tls_cert_file": "c", "tls_key_file": "k"}, True),
        ({"certificates": "files", "tls_cert_file": "c", "tls_key_file": "k"}, True),
    ],
)
def test_certificates_are_self_made_unless_files_are_given(given: dict[str, str], is_files: bool) -> None:
    assert Settings(**given).serves_files is is_files  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"certificates": "files"}, "give both, or set certificates: self-made"),
        ({"tls_cert_file": "c"}, "give both, or set certificates: self-made"),
        ({"certificates": "self-made", "tls_cert_file": "c"}, "or set certificates: files"),
    ],
)
def test_contradictory_settings_are_refused_with_advice(given: dict[str, str], advice: str) -> None:
    with pytest.raises(BadSettings, match=advice):
        assert Settings(**given).serves_files  # type: ignore[arg-type]


def test_authority_of_a_certificate_signs_no_other() -> None:
    made = secret.manifest(content(ONE))["data"]
    assert set(made) == {"tls.crt", "tls.key", "ca.crt"}, "the key of the authority is not kept"
    assert secret.manifest(content(ONE))["metadata"]["name"] == names.WEBHOOK_SECRET
