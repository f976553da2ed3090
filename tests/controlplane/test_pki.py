"""Every certificate made here passes strict verification (RFC 5280), which Python 3.13 has on by default."""

import ssl
from pathlib import Path

import pytest

from controlplane.pki import Authority, Pair
from tests.faults import certificates as proxy_certificates
from tests.support import kube_certificates
from tests.support.handshake import shake, strict


def server(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    return context


def client(ca: Path) -> ssl.SSLContext:
    return strict(ssl.create_default_context(cafile=str(ca)))


def test_strict_client_accepts_the_api_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server("kube-apiserver", hosts=["127.0.0.1", "localhost"])
    for host in ("127.0.0.1", "localhost"):
        shake(client(authority.cert), server(pair), host)


def test_strict_server_accepts_a_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    serving = strict(server(authority.server("kube-apiserver", hosts=["127.0.0.1"])))
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_verify_locations(authority.cert)
    user, expired = authority.client("ann", ["dev"]), authority.client("ann", valid_s=-60)
    calling = client(authority.cert)
    calling.load_cert_chain(user.cert, user.key)
    shake(calling, serving, "127.0.0.1")
    calling.load_cert_chain(expired.cert, expired.key)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(calling, serving, "127.0.0.1")


def test_strict_client_refuses_another_authority(tmp_path: Path) -> None:
    pair = Authority(tmp_path / "ours").server("kube-apiserver", hosts=["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        shake(client(Authority(tmp_path / "other").cert), server(pair), "127.0.0.1")


def test_strict_client_accepts_the_certificates_of_the_tests(tmp_path: Path) -> None:
    proxy_certificates.write(tmp_path)
    proxy = Pair(tmp_path / "proxy.crt", tmp_path / "proxy.key")
    shake(client(tmp_path / "ca.crt"), server(proxy), "127.0.0.1")

    authority = kube_certificates.Authority()
    made = authority.pair("server")
    files = {"kube-ca.crt": authority.pem, "kube.crt": made.certificate_pem, "kube.key": made.key_pem}
    ca, cert, key = (tmp_path / name for name in files)
    for path in (ca, cert, key):
        path.write_bytes(files[path.name])
    shake(client(ca), server(Pair(cert, key)), "127.0.0.1")
