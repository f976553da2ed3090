"""Bind a pod to a node, and evict a pod: the two calls that only pods have."""

from collections.abc import Mapping
from typing import Any

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import NotFound, Operation
from gpu_orchestrator.adapters.kube.transport import codec
from gpu_orchestrator.adapters.kube.transport.base import Request
from gpu_orchestrator.adapters.kube.transport.urls import target
from gpu_orchestrator.api.wire import Object, ObjectMeta, Resource

_PODS: Resource[Any] = Resource(codec.MetadataOnly, "Pod", "pods")


async def bind(
    client: Client,
    pod: Object,
    node: str,
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    at_version: bool = False,
) -> None:
    """Bind the pod to the node and set annotations and labels, all in one write.

    Raise Conflict if the pod was replaced (other uid), already has a node or, with `at_version`, has changed
    since it was read. After a lost answer the request is not sent again: the watch will show the outcome.
    """
    meta = pod.metadata
    about: dict[str, Any] = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
    if at_version:
        about["resourceVersion"] = meta.resource_version
    if annotations:
        about["annotations"] = dict(annotations)
    if labels:
        about["labels"] = dict(labels)
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": about,
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    await client.send(_operation("binding", meta), _post("binding", meta, body), idempotent=False)


async def evict(client: Client, pod: Object, *, grace_s: int | None = None, dry_run: bool = False) -> None:
    """Evict the pod. Raise BlockedByBudget while a PodDisruptionBudget forbids it."""
    meta = pod.metadata
    options: dict[str, Any] = {"preconditions": {"uid": meta.uid}}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    if dry_run:
        options["dryRun"] = ["All"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta.name, "namespace": meta.namespace},
        "deleteOptions": options,
    }
    request = _post("eviction", meta, body)
    await client.send(_operation("eviction", meta), request, idempotent=True, done_if=NotFound)


def _operation(subresource: str, meta: ObjectMeta) -> Operation:
    return Operation("create", f"pods/{subresource}", "", meta.name, meta.namespace)


def _post(subresource: str, meta: ObjectMeta, body: Mapping[str, Any]) -> Request:
    return Request("POST", target(_PODS, meta.name, meta.namespace, subresource), codec.encode_plain(body))
