"""Write kubeconfig files for one cluster and one identity."""

from pathlib import Path
from typing import Any

import yaml

from controlplane.pki import Pair


def with_certificate(path: Path, *, url: str, ca: Path, pair: Pair) -> Path:
    return _write(path, url, ca, {"client-certificate": str(pair.cert), "client-key": str(pair.key)})


def with_token(path: Path, *, url: str, ca: Path, token: str) -> Path:
    return _write(path, url, ca, {"token": token})


def _write(path: Path, url: str, ca: Path, user: dict[str, str]) -> Path:
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "clusters": [{"name": "local", "cluster": {"server": url, "certificate-authority": str(ca)}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "user"}}],
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path
