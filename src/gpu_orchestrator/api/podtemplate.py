"""A pod template inside a GPUWorkload: kept as the user wrote it, and comparable by the API server.

CEL compares an object with unknown fields key by key and lets a key that the other side lacks pass as equal.
So every field of a pod is declared here, each as something to be kept and compared as a whole.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from gpu_orchestrator.api.schema import PRESERVE, Schema, about, text
from gpu_orchestrator.api.wire import Wire

POD_FIELDS = """
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
    enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname
    hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy
    priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName
    schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName
    setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
    topologySpreadConstraints volumes
"""


MAIN = "main"


def main_index(containers: Sequence[str | None]) -> int:
    """Return which of the containers with these names gets the GPUs: the one named `main`, else the first."""
    return containers.index(MAIN) if MAIN in containers else 0


def _whole(name: str) -> Schema:
    """A value without a type is compared as a whole."""
    return {"description": f"See kubectl explain pod.spec.{name}.", PRESERVE: True}


class TemplateMeta(Wire, frozen=True, gc=False):
    """Labels and annotations of the pods, beside those we set."""

    labels: Annotated[
        dict[str, Annotated[str, text("A label value.", 0, 63)]], about("Labels of the pods.", at_most=256)
    ] = {}
    annotations: Annotated[
        dict[str, Annotated[str, text("An annotation.", 0, 65_536)]],
        about("Annotations of the pods.", at_most=256),
    ] = {}


class PodTemplate(Wire, frozen=True, gc=False):
    """What runs: image, command, env, volumes and so on, beneath the fields that we set ourselves. Without a
    template a placeholder runs that prints its model, GPU count and host."""

    metadata: Annotated[TemplateMeta, about(TemplateMeta.__doc__ or "", preserve_unknown_fields=True)] = (
        TemplateMeta()
    )
    spec: Annotated[
        dict[str, Any],
        Meta(
            description="A pod's spec, as in kubectl explain pod.spec.",
            extra_json_schema={"properties": {name: _whole(name) for name in POD_FIELDS.split()}},
        ),
    ] = {}


class Variable(Wire, frozen=True, gc=False):
    name: str


class Environment(Wire, frozen=True, gc=False):
    """A container's environment. Only the operator reads it; for capacity `pod.Container` is enough."""

    env: list[Variable] = []
