"""Make the CustomResourceDefinitions of our kinds from their wire types.

Returns text only; `make crds` writes the files.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from gpu_orchestrator.api import schema
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES
from gpu_orchestrator.api.gpuqueue import GPU_QUEUES
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS
from gpu_orchestrator.api.schema import Schema
from gpu_orchestrator.api.wire import Resource

HEADER = "# Made by `make crds` from src/gpu_orchestrator/api; changes belong there.\n"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; a wide one shows only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""

    def schema(self) -> Schema:
        wide = {"priority": 1} if self.wide else {}
        words = {"description": self.description} if self.description else {}
        return {"name": self.name, "type": self.type, "jsonPath": self.path, **words, **wide}


@dataclass(frozen=True, slots=True)
class Kind:
    resource: Resource[Any]
    short_name: str
    columns: tuple[Column, ...]


AGE = Column("Age", ".metadata.creationTimestamp", "date")

KINDS = (
    Kind(
        GPU_WORKLOADS,
        "gpuw",
        (
            Column("Model", ".spec.modelName"),
            Column("GPUs", ".spec.gpuCount", "integer"),
            Column("Phase", ".status.phase"),
            Column("Node", ".status.assignedNode"),
            AGE,
            Column("Devices", ".status.allocated", wide=True, description="node and device numbers"),
            Column("Strategy", ".spec.schedulingStrategy", wide=True),
            Column("Priority", ".spec.priority", wide=True),
            Column("Retries", ".status.retryCount", "integer", wide=True),
            Column("Message", ".status.message", wide=True),
        ),
    ),
    Kind(
        GPU_CLAIMS,
        "gclaim",
        (
            Column("Req", ".spec.devices.count", "integer", description="GPUs asked for"),
            Column("Policy", ".spec.devices.policy"),
            Column("Topology", ".spec.topology.mode"),
            Column("Allocated", ".status.allocated"),
            Column("Phase", ".status.phase"),
            Column("Message", ".status.message", wide=True),
            Column("Age", ".metadata.creationTimestamp", "date", wide=True),
        ),
    ),
    Kind(
        GPU_NODE_STATUSES,
        "gns",
        (
            Column("Node", ".spec.nodeName"),
            Column("Devices", ".status.total", "integer"),
            Column("Healthy", ".status.healthy", "integer", wide=True),
            Column("In use", ".status.inUse", "integer", wide=True),
            Column("Model", ".status.devices[0].model", wide=True),
            Column("Driver", ".status.driver", wide=True),
        ),
    ),
    Kind(
        GPU_QUEUES,
        "gq",
        (
            # Without the backslash a star is any model, the one that comes first by chance.
            Column("Parent", ".spec.parent"),
            Column("Guaranteed", r".spec.guaranteed.\*", "integer", description="thousandths of GPUs"),
            Column("Limit", r".spec.limit.\*", "integer", description="thousandths of GPUs"),
            Column("Used", r".status.used.\*", "integer", description="thousandths of GPUs"),
            Column("Pending", ".status.pending", "integer", description="pods that wait"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Borrowed", r".status.borrowed.\*", "integer", wide=True),
            Column("Lent", r".status.lent.\*", "integer", wide=True),
            Column("Weight", ".spec.weight", "integer", wide=True),
            Column("Share", ".status.share", "integer", wide=True, description="thousandths of all GPUs"),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', wide=True),
            Column("Age", ".metadata.creationTimestamp", "date", wide=True),
        ),
    ),
)


def files() -> dict[str, str]:
    """Return the text of each file by its name, including the kustomization."""
    made = {f"{kind.resource.plural}.yaml": _yaml(definition(kind)) for kind in KINDS}
    listing = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(made),
    }
    return {**made, "kustomization.yaml": _yaml(listing)}


def definition(kind: Kind) -> Schema:
    resource = kind.resource
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [kind.short_name],
            },
            "versions": [_version(kind)],
        },
    }


def _version(kind: Kind) -> Schema:
    return {
        "name": kind.resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [column.schema() for column in kind.columns],
        "schema": {"openAPIV3Schema": object_schema(kind.resource.type)},
    }


def object_schema(cls: type[msgspec.Struct]) -> Schema:
    """Return the schema of the whole object. The API server owns the metadata and allows no more about it."""
    made = schema.of(cls)
    head = {
        "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
    }
    return {**made, "required": ["spec"], "properties": {**made["properties"], **head}}


class _Dumper(yaml.SafeDumper):
    """Write a value that occurs twice in full both times, not as a reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(value: Schema) -> str:
    return HEADER + yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
