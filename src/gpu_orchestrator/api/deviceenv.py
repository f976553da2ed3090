"""How a container learns its devices: environment variables filled from annotations that the scheduler writes
as it binds the pod. A pod's environment cannot change after creation, but its annotations can."""

from gpu_orchestrator.api import names
from gpu_orchestrator.api.wire import Json


def confined(container: Json) -> Json:
    """Return the container with our device variables and no others of these names. They go first, so that the
    user's own variables can refer to them."""
    kept = [each for each in container.get("env") or [] if each.get("name") not in names.DEVICE_ENV]
    return {**container, "env": [*(_variable(*each) for each in names.DEVICE_ENV.items()), *kept]}


def _variable(name: str, annotation: str) -> Json:
    return {
        "name": name,
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}},
    }
