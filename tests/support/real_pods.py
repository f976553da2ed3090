"""Pods for the real node (fixture `real_node`): they run for real, so each needs an image and a command.

Merge `real_node.pin` into the spec, or bind the pod: otherwise no scheduler places it there.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from controlplane.api import Json
from controlplane.realnode import images
from controlplane.realnode.node import RealNode
from gpu_orchestrator.adapters import cgroups
from tests.support.paths import ROOT


def container(name: str, *lines: str, **fields: Any) -> Json:
    """Return a container that runs these lines in a shell, or without any, does nothing until it ends."""
    command = {"command": ["sh", "-c", "\n".join(lines)]} if lines else {}
    return {"name": name, "image": images.TOOLS, "imagePullPolicy": "IfNotPresent", **command, **fields}


def pod(name: str, *containers: Json, **spec: Any) -> Json:
    """Return a pod that is not started again when it ends."""
    content = {"restartPolicy": "Never", "containers": list(containers), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": content}


def python_spec(
    node: RealNode, *words: str, env: Sequence[Json] = (), mounts: Iterable[Path] = ()
) -> dict[str, Any]:
    """Return the containers and volumes of a pod that runs `python WORDS` in this environment.

    Folders in `mounts` are mounted at the path that they have on the host, writable.
    """
    environment = Path(sys.prefix)
    read_only = {ROOT} if environment.is_relative_to(ROOT) else {ROOT, environment}
    folders = sorted(read_only | set(mounts))
    volumes = [{"name": f"v{i}", "hostPath": {"path": str(path)}} for i, path in enumerate(folders)]
    mounted = [
        {"name": f"v{i}", "mountPath": str(path), "readOnly": path in read_only}
        for i, path in enumerate(folders)
    ]
    main = {
        "name": "main",
        "image": node.python_image,
        "imagePullPolicy": "IfNotPresent",
        "command": [sys.executable, *words],
        "env": list(env),
        "volumeMounts": mounted,
    }
    return {"containers": [main], "volumes": volumes}


def processes(uid: str) -> list[int]:
    """Return the processes of the pod with this UID, as this machine numbers them."""
    pids = [int(each) for each in os.listdir("/proc") if each.isdecimal()]
    return [pid for pid in pids if cgroups.read(pid) == uid]
