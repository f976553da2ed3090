"""Load the API server's address and our credentials from a kubeconfig, or from the pod we run in.

`load()` looks at the given path, `KUBECONFIG`, the pod's own files and `~/.kube/config`, in this order.
Each error is one line that says what was asked, what was found and what to do.
"""

import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from gpu_orchestrator.adapters.kube.auth import kubeconfig
from gpu_orchestrator.adapters.kube.auth.credentials import Credentials, Fixed, Identity, TokenFile
from gpu_orchestrator.adapters.kube.auth.tls import Trust
from gpu_orchestrator.adapters.kube.errors import ConfigError

POD_FILES = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a transport needs. Errors name `source` as the place to fix."""

    server: str
    trust: Trust = field(default_factory=Trust)
    credentials: Credentials = field(default_factory=lambda: Fixed(Identity()))
    headers: tuple[tuple[str, str], ...] = ()
    proxy: str = ""
    namespace: str = "default"
    source: str = "this configuration"


def load(path: str | Path | None = None, context: str = "", *, env: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration of the cluster to use."""
    if path:
        return from_kubeconfig([Path(path)], context)
    if listed := [Path(part) for part in env.get("KUBECONFIG", "").split(os.pathsep) if part]:
        return from_kubeconfig(listed, context)
    if env.get("KUBERNETES_SERVICE_HOST") and not context:
        return in_cluster(env)
    usual = Path(env.get("HOME", "~")).expanduser() / ".kube" / "config"
    if usual.exists():
        return from_kubeconfig([usual], context)
    raise ConfigError(
        f"no cluster is configured: KUBECONFIG is not set, {usual} does not exist and this is not a pod; "
        "pass --kubeconfig or set KUBECONFIG"
    )


def in_cluster(env: Mapping[str, str] = os.environ, files: Path = POD_FILES) -> Config:
    """Return the API server as a pod reaches it, with the token of the pod's ServiceAccount."""
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("not in a pod: KUBERNETES_SERVICE_HOST is not set; pass --kubeconfig instead")
    if not (files / "token").exists():
        raise ConfigError(
            f"this pod has no ServiceAccount token at {files}/token; "
            "set automountServiceAccountToken: true or pass --kubeconfig"
        )
    return Config(
        server=_server(
            f"https://{f'[{host}]' if ':' in host else host}:{port}",
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
        ),
        trust=Trust(kubeconfig.read_text(files / "ca.crt", "the pod's ca.crt"), source=str(files)),
        credentials=TokenFile(files / "token"),
        namespace=_namespace(files),
        source="the pod's ServiceAccount",
    )


def _namespace(files: Path) -> str:
    found = files / "namespace"
    return kubeconfig.read_text(found, "the pod's namespace").strip() if found.exists() else "default"


def from_kubeconfig(paths: list[Path], context: str = "") -> Config:
    """Return one context of one or several kubeconfig files; earlier files win."""
    chosen = kubeconfig.choose(kubeconfig.read(paths), context)
    cluster = chosen.cluster
    server = _server(cluster.server, chosen.source)
    return Config(
        server=server,
        trust=Trust(
            ca_pem=cluster.ca_pem(chosen.source),
            skip_verify=cluster.insecure_skip_tls_verify,
            server_name=_tls_name(cluster.tls_server_name, chosen.source),
            source=chosen.source,
        ),
        credentials=chosen.user.credentials(chosen.source, cluster),
        headers=chosen.user.impersonation(),
        proxy=_proxy(cluster.proxy_url, server, chosen.source),
        namespace=chosen.namespace,
        source=chosen.source,
    )


def _server(url: str, source: str) -> str:
    if _parts(url) is None:
        raise ConfigError(
            f"the cluster's server in {source} is {url!r}; it must be a URL such as https://host:6443"
        )
    return url.rstrip("/")


def _tls_name(name: str, source: str) -> str:
    if name and not _is_host(name):
        raise ConfigError(f"tls-server-name in {source} is {name!r}; it must be the name of a host")
    return name


def _proxy(configured: str, server: str, source: str) -> str:
    proxy = configured or _proxy_of_environment(server)
    if proxy and _parts(proxy) is None:
        raise ConfigError(
            f"the proxy {proxy!r} of {source} is not supported; use an http:// or https:// proxy"
        )
    return proxy


def _parts(url: str) -> SplitResult | None:
    """Split a URL. Return None if we could not connect to it or write a request for it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    is_good = parts.scheme in ("https", "http") and port != 0 and _is_plain(url)
    return parts if is_good and parts.hostname and _is_host(parts.hostname) else None


def _is_host(name: str) -> bool:
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return _is_plain(name) and not name.startswith(".")


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _proxy_of_environment(server: str) -> str:
    parts = urlsplit(server)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    return urllib.request.getproxies().get(parts.scheme, "")
