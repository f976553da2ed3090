"""Small objects for tests of the kube adapter, with defaults for all but the point of the test."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire


class ConfigMap(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    data: dict[str, str] = {}


CONFIG_MAPS = Resource(ConfigMap, "ConfigMap", "configmaps")
MISSING = Resource(ConfigMap, "Missing", "missings", "no.such.group", "v1")


def config_map(
    name: str = "x", *, version: int = 1, uid: str = "", namespace: str = "default", **data: str
) -> ConfigMap:
    meta = ObjectMeta(name=name, namespace=namespace, uid=uid or f"uid-{name}", resource_version=str(version))
    return ConfigMap(meta, data)
