"""Pods that real controllers make from templates: forged ones never appear, claimed ones do."""

from functools import partial
from typing import Any

from gpu_orchestrator.api import names
from tests.forgery.calls import Json
from tests.forgery.play import Play
from tests.forgery.pods import bare, plain
from tests.support.scheduler_stage import until

APPS = "/apis/apps/v1/namespaces/{}/{}"
KINDS = {
    "deployments": APPS,
    "replicasets": APPS,
    "statefulsets": APPS,
    "daemonsets": APPS,
    "jobs": "/apis/batch/v1/namespaces/{}/{}",
}


def controlled(kind: str, name: str, pod: Json, **spec: Any) -> Json:
    """Return an object of that kind with the pod as its template."""
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels, "annotations": pod["metadata"]["annotations"]},
        "spec": pod["spec"],
    }
    if kind == "jobs":
        template["spec"] = {**pod["spec"], "restartPolicy": "Never"}
        return {"metadata": {"name": name}, "spec": {"template": template, **spec}}
    more = {"serviceName": name} if kind == "statefulsets" else {}
    selector = {"matchLabels": labels}
    return {"metadata": {"name": name}, "spec": {"selector": selector, "template": template, **more, **spec}}


def create(play: Play, namespace: str, kind: str, body: Json) -> None:
    play.admin("POST", KINDS[kind].format(namespace, kind), body)


def forge(play: Play, namespace: str) -> None:
    """Let each kind of controller make pods with answers of their own, one with a deployment that grows."""
    pod = plain(annotations={names.ALLOCATED: "gpu-node-0:0"})
    for kind in KINDS:
        create(play, namespace, kind, controlled(kind, kind, pod))
    scale = APPS.format(namespace, "deployments/deployments/scale")
    grown = {"spec": {"replicas": 5}}
    play.cluster.api.request("PATCH", scale, grown, content_type="application/merge-patch+json")
    for kind in ("replicasets", "statefulsets", "daemonsets", "jobs"):
        until(partial(is_told, play, namespace, kind), f"{kind} are told why they have no pods", 60)
    assert play.admin("GET", f"/api/v1/namespaces/{namespace}/pods")["items"] == []


def is_told(play: Play, namespace: str, name: str) -> bool:
    path = (
        f"/api/v1/namespaces/{namespace}/events?fieldSelector=reason=FailedCreate,involvedObject.name={name}"
    )
    return any(
        "only the gpu-scheduler writes it" in each["message"] for each in play.admin("GET", path)["items"]
    )


def employ(play: Play, namespace: str) -> int:
    """Let each kind of controller make claimed pods as users write them; return how many there will be."""
    for kind in KINDS:
        create(play, namespace, kind, controlled(kind, kind, bare(annotations={names.GPUS: "1"})))
    return len(KINDS) - 1 + len(play.cluster.ready_nodes())
