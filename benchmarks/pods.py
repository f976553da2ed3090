"""Pods as the API server of a busy cluster returns them, with every section that a running GPU pod has."""

import hashlib
import json
from typing import Any


def pod(number: int) -> dict[str, Any]:
    """Return a running training pod with one main and one sidecar container."""
    name, uid = f"train-{number // 8}-{number % 8}", str_uuid(number)
    node = f"gpu-node-{number % 500}"
    return {
        "metadata": {
            "name": name,
            "generateName": f"train-{number // 8}-",
            "namespace": f"team-{number % 20}",
            "uid": uid,
            "resourceVersion": str(1_000_000 + number),
            "creationTimestamp": "2026-05-04T03:02:01Z",
            "labels": {
                "app": f"train-{number // 8}",
                "batch.kubernetes.io/job-name": f"train-{number // 8}",
                "batch.kubernetes.io/controller-uid": str_uuid(number // 8),
                "gpu.warp.dev/workload": f"train-{number // 8}",
            },
            "annotations": {
                "gpu.scheduling/gpus": "2",
                "gpu.scheduling/allocated": f"{node}:0,1",
                "gpu.scheduling/visible-devices": f"GPU-{str_uuid(number)},GPU-{str_uuid(number + 1)}",
            },
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": f"train-{number // 8}",
                    "uid": str_uuid(number // 8),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [managed("kube-controller-manager"), managed("kubelet", status=True)],
        },
        "spec": spec(node),
        "status": status(number),
    }


def page(first: int, count: int, more: bool) -> bytes:
    meta = {"resourceVersion": "2000000", "continue": "next" if more else ""}
    items = [pod(number) for number in range(first, first + count)]
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items}).encode()


def str_uuid(number: int) -> str:
    text = digest(str(number))
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def managed(manager: str, *, status: bool = False) -> dict[str, Any]:
    fields: dict[str, Any] = {
        f"f:{section}": {
            f"f:{name}": {} for name in ("name", "image", "resources", "env", "terminationPolicy")
        }
        for section in ("metadata", "spec", "containers", "tolerations", "securityContext")
    }
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-05-04T03:02:01Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": fields} if status else fields,
        **({"subresource": "status"} if status else {}),
    }


def spec(node: str) -> dict[str, Any]:
    return {
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "dataset"}},
            {
                "name": "kube-api-access",
                "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
            },
        ],
        "containers": [container("main", gpus=2), container("metrics")],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "nodeName": node,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "schedulerName": "gpu-scheduler",
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "nvidia.com/gpu")
        ],
        "priorityClassName": "gpu-normal",
        "priority": 1000,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def container(name: str, gpus: int = 0) -> dict[str, Any]:
    limits = {"cpu": "16", "memory": "128Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "name": name,
        "image": f"registry.example.com/ml/{name}:2026.05.1",
        "command": ["python", "-m", "train", "--config", "/data/config.yaml"],
        "env": [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(8)],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def status(number: int) -> dict[str, Any]:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-05-04T03:02:05Z"} for kind in kinds
        ],
        "hostIP": "10.0.0.1",
        "podIP": f"10.1.{number % 250}.{number % 200}",
        "podIPs": [{"ip": f"10.1.{number % 250}.{number % 200}"}],
        "startTime": "2026-05-04T03:02:02Z",
        "qosClass": "Guaranteed",
        "containerStatuses": [
            {
                "name": name,
                "state": {"running": {"startedAt": "2026-05-04T03:02:04Z"}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": f"registry.example.com/ml/{name}:2026.05.1",
                "imageID": f"registry.example.com/ml/{name}@sha256:{digest(name)}",
                "containerID": f"containerd://{digest(str(number))}",
                "started": True,
            }
            for name in ("main", "metrics")
        ],
    }
