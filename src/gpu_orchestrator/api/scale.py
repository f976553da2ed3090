"""The scale of a Deployment: how many replicas it shall have."""

from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire


class ScaleSpec(Wire, frozen=True, gc=False):
    replicas: int = 0


class Scale(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: ScaleSpec = ScaleSpec()


DEPLOYMENT_SCALES = Resource(Scale, "Scale", "deployments", "apps")
