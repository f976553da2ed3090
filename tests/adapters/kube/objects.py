"""Small objects for tests of the kube adapter, with defaults for all but the point of the test."""

from gpu_orchestrator.api.kubernetes import CONFIG_MAPS, ConfigMap
from gpu_orchestrator.api.wire import ObjectMeta, Resource

__all__ = ["CONFIG_MAPS", "MISSING", "ConfigMap", "config_map"]


MISSING = Resource(ConfigMap, "Missing", "missings", "no.such.group", "v1")


def config_map(
    name: str = "x", *, version: int = 1, uid: str = "", namespace: str = "default", **data: str
) -> ConfigMap:
    meta = ObjectMeta(name=name, namespace=namespace, uid=uid or f"uid-{name}", resource_version=str(version))
    return ConfigMap(meta, data)
