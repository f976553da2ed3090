"""Our CRDs on a real API server: install them once, and build objects for it."""

from typing import Any

import msgspec

from controlplane.api import ApiError
from controlplane.cluster import Cluster
from gpu_orchestrator.api import crds
from gpu_orchestrator.api.wire import Resource
from tests.support.paths import ROOT

Json = dict[str, Any]


def install(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-k", str(ROOT / "config/crd"))
    names = [f"crd/{kind.resource.plural}.{kind.resource.group}" for kind in crds.KINDS]
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)


def manifest(resource: Resource[Any], name: str, spec: object) -> Json:
    body = msgspec.to_builtins(spec)
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
        "spec": body,
    }


def refusal(cluster: Cluster, method: str, path: str, body: Json) -> str:
    """Return the API server's error for an object, from a dry run: nothing is stored even if it is valid."""
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        cluster.api.request(method, f"{path}?dryRun=All", body, content_type=content_type)
    except ApiError as error:
        return str(error)
    return ""
