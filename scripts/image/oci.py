"""An OCI image in one tar file, as `ctr images import`, `skopeo copy oci-archive:…` and `podman load` want.

Layers are not compressed: what pushes them does that, and the digest depends on no version of zlib.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.image.dockerfile import Settings
from scripts.image.layer import EPOCH_S, Layer

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CREATED = datetime.fromtimestamp(EPOCH_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"

Json = dict[str, Any]


def write(path: Path, names: Sequence[str], layers: Sequence[Layer], settings: Settings) -> str:
    """Write the image under these names, and return the digest of its manifest."""
    config = _encoded(_config(layers, settings))
    layer_list = [_descriptor(LAYER, each.digest, each.size) for each in layers]
    manifest = _encoded(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": _of(CONFIG, config), "layers": layer_list}
    )
    platformed = {**_of(MANIFEST, manifest), "platform": _platform()}
    named = [{**platformed, "annotations": _annotations(each)} for each in names]
    index = _encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": named or [platformed]})
    unfinished = path.with_name(f".{path.name}")
    with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "oci-layout", _encoded({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", index)
        for blob in (config, manifest):
            _add(tar, f"blobs/sha256/{_digest(blob)}", blob)
        for each in {layer.digest: layer for layer in layers}.values():
            with each.path.open("rb") as content:
                tar.addfile(_entry(f"blobs/sha256/{each.digest}", each.size), content)
    unfinished.replace(path)
    return f"sha256:{_digest(manifest)}"


def full_name(name: str) -> str:
    """Return the name as containerd keeps it: a short one means Docker's registry."""
    first, slash, _ = name.partition("/")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    return tagged if has_host else f"docker.io/{tagged}" if slash else f"docker.io/library/{tagged}"


def _annotations(name: str) -> Mapping[str, str]:
    # containerd reads the first one, podman and skopeo the second.
    full = full_name(name)
    return {"io.containerd.image.name": full, "org.opencontainers.image.ref.name": full}


def _config(layers: Sequence[Layer], settings: Settings) -> Json:
    said = {
        "User": settings.user,
        "Env": [f"{name}={value}" for name, value in settings.env.items()],
        "Entrypoint": list(settings.entrypoint),
        "Cmd": list(settings.command),
        "WorkingDir": settings.folder,
        "Labels": dict(settings.labels),
    }
    return {
        **_platform(),
        "created": CREATED,
        "config": {name: value for name, value in said.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each.digest}" for each in layers]},
        "history": [{"created": CREATED, "created_by": "scripts/image"} for _ in layers],
    }


def _platform() -> Json:
    return {"architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}


def _of(kind: str, content: bytes) -> Json:
    return _descriptor(kind, _digest(content), len(content))


def _descriptor(kind: str, digest: str, size: int) -> Json:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def _encoded(made: Json) -> bytes:
    return json.dumps(made, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    tar.addfile(_entry(name, len(content)), io.BytesIO(content))


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, EPOCH_S
    return entry
