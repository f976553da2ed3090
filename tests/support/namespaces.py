"""Namespaces of single tests in a shared cluster."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from controlplane.api import ApiError
from controlplane.cluster import Cluster

# What makes other objects or uses nodes, makers first. Everything else that a test leaves is inert.
ALIVE = (
    "/apis/gpu.warp.dev/v1alpha1/namespaces/{}/gpuworkloads",
    "/apis/apps/v1/namespaces/{}/deployments",
    "/apis/apps/v1/namespaces/{}/statefulsets",
    "/apis/apps/v1/namespaces/{}/daemonsets",
    "/apis/apps/v1/namespaces/{}/replicasets",
    "/apis/batch/v1/namespaces/{}/cronjobs",
    "/apis/batch/v1/namespaces/{}/jobs",
    "/api/v1/namespaces/{}/pods",
    "/apis/gpu.scheduling/v1/namespaces/{}/gpuclaims",
    "/api/v1/namespaces/{}/persistentvolumeclaims",
)
AT_ONCE = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}


@contextmanager
def fresh(cluster: Cluster, prefix: str = "test") -> Iterator[str]:
    """Make a namespace, and clear it at the end."""
    name = f"{prefix}-{uuid4().hex[:8]}"
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    clear(cluster, name)


def clear(cluster: Cluster, name: str) -> None:
    """Delete what goes on living in a namespace. The namespace stays: to end one, the controller manager
    looks for objects of each of seventy kinds, which takes a fifth of a second of CPU."""
    for path in ALIVE:
        with suppress(ApiError):  # our kinds may not be installed
            cluster.api.request("DELETE", path.format(name), AT_ONCE)
