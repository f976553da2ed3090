"""values.schema.json: which values there are, and what may be written into each.

Helm refuses values by it before it makes anything, so a misspelt name is an error. The settings of the
processes are described by what reads them.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import json
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpu_orchestrator.api import names
from gpu_orchestrator.apps.agent.settings import Settings as AgentSettings
from gpu_orchestrator.apps.scheduler.settings import Settings as SchedulerSettings
from gpu_orchestrator.apps.webhook.settings import Settings as WebhookSettings

Json = dict[str, Any]

MAP: Json = {"type": "object"}
STRINGS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
LIST_OF_MAPS: Json = {"type": "array", "items": {"type": "object"}}
COUNT: Json = {"type": "integer", "minimum": 1, "maximum": 100}
NAME = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
OBJECT_NAME: Json = {"type": "string", "pattern": f"^{NAME}$"}
NAMESPACE_NAME: Json = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}

# Flags and other values decide these, so that what belongs together is said once.
GIVEN = {
    *("kubeconfig", "namespace", "leaseNamespace", "nodeName", "podName", "root"),
    *("metricsBindAddress", "healthProbeBindAddress", "bindAddress"),
    *("certificates", "tlsCertFile", "tlsKeyFile"),
    *("mps", "simulate", "devicesFile", "devicesFolder"),
}


def _settings(kind: type[msgspec.Struct], *given: str, **rules: Json) -> Json:
    """Return the schema of a process's settings, without those that the chart gives itself."""
    whole = msgspec.json.schema(kind)["$defs"]["Settings"]["properties"]
    left = {
        name: {key: value for key, value in each.items() if key != "default"}
        for name, each in whole.items()
        if name not in GIVEN | set(given)
    }
    return {"type": "object", "properties": left | rules, "additionalProperties": False}


OUR_NAME: Json = {"type": "string", "pattern": f"^({NAME}-)?{names.SCHEDULER}$", "maxLength": 200}
"""Of a scheduler, and of its ServiceAccount: the policies know both by it."""

# What the default of a value does not say about it; `*` is any component.
RULES: dict[str, Json] = {
    "image.repository": {"type": "string", "minLength": 1, "pattern": r"^[^\s@]+$"},
    "image.tag": {"type": "string", "pattern": r"^(\w[\w.-]{0,127})?$"},
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "imagePullSecrets": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": OBJECT_NAME},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
    "serviceAccountName": OUR_NAME,
    "operator.defaultPath": {"enum": ["plain", "claimed"]},
    "operator.onNoCapacity": {"enum": ["Retry", "Wait"]},
    "scheduler.settings": _settings(SchedulerSettings, schedulerName=OUR_NAME),
    "webhook.settings": _settings(WebhookSettings),
    "webhook.certificates": {"enum": ["self-made", "cert-manager", "secret"]},
    "webhook.certificateSecret": OBJECT_NAME,
    "webhook.excludeNamespaces": {"type": "array", "items": NAMESPACE_NAME},
    "webhook.autoscaling.minReplicas": COUNT,
    "webhook.autoscaling.maxReplicas": COUNT,
    "webhook.autoscaling.targetCPUUtilizationPercentage": COUNT,
    "agent.settings": _settings(AgentSettings, "lock"),
    "agent.maxUnavailable": {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^([1-9][0-9]?|100)%$"}]
    },
    "clusterManager.secretName": OBJECT_NAME,
    "clusterManager.store.urlSecret": {"type": "string", "pattern": f"^({NAME})?$"},
    "clusterManager.persistence.storageClass": {"type": "string", "pattern": f"^({NAME})?$"},
    "clusterManager.persistence.size": {"type": "string", "pattern": "^[1-9][0-9]*([KMGTPE]i?)?$"},
    "clusterManager.env": {
        "type": "object",
        "propertyNames": {"pattern": "^[A-Z][A-Z0-9_]*$"},
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "monitoring.labels": STRINGS,
    "monitoring.serviceMonitor.interval": {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"},
    "monitoring.dashboards.labels": STRINGS,
    "*.replicas": COUNT,
    "*.verbosity": {"type": "integer", "minimum": 0, "maximum": 9},
    "*.resources": {
        "type": "object",
        "properties": {"requests": MAP, "limits": MAP, "claims": LIST_OF_MAPS},
        "additionalProperties": False,
    },
    "*.nodeSelector": STRINGS,
    "*.podAnnotations": STRINGS,
    "*.tolerations": LIST_OF_MAPS,
    "*.affinity": {
        "type": "object",
        "properties": {"nodeAffinity": MAP, "podAffinity": MAP, "podAntiAffinity": MAP},
        "additionalProperties": False,
    },
}


class Undecided(Exception):
    """A value whose default does not tell what may be written there needs a rule."""


def text(chart: Path) -> str:
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "gpu-scheduler",
        **_of(defaults, ""),
    }
    schema["properties"]["global"] = MAP  # Helm hands this on to charts that are part of another
    return json.dumps(schema, indent=2) + "\n"


def _of(value: Any, path: str) -> Json:
    if rule := RULES.get(path) or RULES.get(f"*.{path.rpartition('.')[2]}" if "." in path else ""):
        return rule
    match value:
        case bool():
            return {"type": "boolean"}
        case str():
            return {"type": "string"}
        case dict() if value:
            below = {name: _of(each, f"{path}.{name}".lstrip(".")) for name, each in value.items()}
            return {"type": "object", "properties": below, "additionalProperties": False}
    raise Undecided(f"value {path} = {value!r} needs a rule in scripts/chart/schema.py")
