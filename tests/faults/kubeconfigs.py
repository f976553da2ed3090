"""Read a kubeconfig for the proxy, and write the one that sends a component through the proxy."""

import base64
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

STAND_IN_TOKEN = "the-proxy-has-the-certificate"
CERTIFICATE_KEYS = {"client-certificate", "client-certificate-data", "client-key", "client-key-data"}


@dataclass(frozen=True, slots=True)
class Upstream:
    """The real server, and the TLS context that authenticates the proxy to it."""

    server: str
    tls: ssl.SSLContext


def read(path: Path, folder: Path) -> Upstream:
    cluster, user = _current(path)
    return Upstream(cluster["server"].rstrip("/"), _tls(cluster, user, path.parent, folder))


def write(source: Path, target: Path, *, server: str, ca_file: Path) -> None:
    """Write the component's kubeconfig. It keeps tokens, because the proxy passes them through, and drops
    client certificates, because the proxy uses them itself. A stand-in token keeps clients from asking for
    a password; the proxy removes it again.
    """
    _, user = _current(source)
    through = {key: value for key, value in user.items() if key not in CERTIFICATE_KEYS}
    if "tokenFile" in through:
        through["tokenFile"] = str((source.parent / through["tokenFile"]).resolve())
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "proxy", "cluster": {"server": server, "certificate-authority": str(ca_file)}},
        ],
        "users": [{"name": "user", "user": through or {"token": STAND_IN_TOKEN}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "user"}}],
        "current-context": "proxy",
    }
    target.write_text(json.dumps(config, indent=2))
    target.chmod(0o600)


def _current(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    config = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    return cluster, _named(config["users"], context["user"])["user"]


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _tls(cluster: dict[str, Any], user: dict[str, Any], home: Path, folder: Path) -> ssl.SSLContext:
    ca = _file(cluster, "certificate-authority", home, folder)
    context = ssl.create_default_context(cafile=ca)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := _file(user, "client-certificate", home, folder):
        context.load_cert_chain(certificate, _file(user, "client-key", home, folder))
    return context


def _file(section: dict[str, Any], key: str, home: Path, folder: Path) -> Path | None:
    """Return the file that a section names, or write one from its inline data."""
    if data := section.get(f"{key}-data"):
        path = folder / key
        path.write_bytes(base64.b64decode(data))
        return path
    return home / section[key] if section.get(key) else None
