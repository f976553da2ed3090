"""Container images made from files of this machine, in the format of `docker save`, which containerd imports.

One layer each. Pods need `imagePullPolicy: IfNotPresent`: there is no registry to ask for a newer one.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOOLS = "busybox"
"""A shell and the few programs of modules/node-tools. Without a command it runs until it is ended."""
PAUSE = "localhost/pause:local"
PYTHON = "python"
"""This interpreter with its standard library, at the same paths as here; see python_image.py."""

PROGRAMS = ("sh", "sleep", "cat", "echo", "env", "printenv", "ls", "hostname", "true", "false", "pause")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Content:
    files: Mapping[str, Path]  # by the path in the image
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Iterable[str] = ()


def tools(binary: Path) -> Content:
    return Content({"bin/node-tools": binary}, {f"bin/{name}": "node-tools" for name in PROGRAMS}, ["tmp"])


def write(path: Path, names: Iterable[str], content: Content, command: Iterable[str]) -> None:
    """Write an image under these names as a tar file."""
    layer = path.with_suffix(".layer")
    _write_layer(layer, content)
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps(_config(digest, command)).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [_full(name) for name in names], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        _add(tar, config_name, config)
        tar.add(layer, "layer.tar")
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()


def _full(name: str) -> str:
    """Return the name as the kubelet asks for it: a short one means Docker's registry."""
    return name if "/" in name else f"docker.io/library/{name}:latest"


def _write_layer(path: Path, content: Content) -> None:
    with tarfile.open(path, "w") as tar:
        for folder in content.folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(entry)
        for name, source in content.files.items():
            tar.add(source.resolve(), name, filter=_owned_by_root)
        for name, target in content.links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    return entry


def _config(digest: str, command: Iterable[str]) -> dict[str, Any]:
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin:/usr/bin:/usr/local/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
