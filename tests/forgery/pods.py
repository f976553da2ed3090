"""Pods as JSON for the tables: plain, claimed, and claimed with all that the policies ask for."""

from copy import deepcopy
from typing import Any

from gpu_orchestrator.api import admission, names
from tests.forgery.calls import Json

CLAIM, TEMPLATE, MIG, SHARE = "whole-pair", "pair-template", "mig-slice", "quarter"
"""Claims in the tenant's namespace, and what a pod with each counts for."""
COUNTS = {CLAIM: 2000, TEMPLATE: 2000, MIG: 428, SHARE: 250}
CLAIMS: dict[str, Json] = {
    CLAIM: {"devices": {"count": 2}},
    TEMPLATE: {"devices": {"count": 2}},
    MIG: {"devices": {"count": 1, "exclusivity": "MIG", "migProfile": "3g.20gb"}},
    SHARE: {"devices": {"count": 1, "exclusivity": "Shared", "share": 250}},
}
ASKS: dict[str, dict[str, str]] = {
    "gpus": {names.GPUS: "2"},
    "claim": {names.CLAIM: CLAIM},
    "template": {names.CLAIM_TEMPLATE: TEMPLATE},
}


def plain(name: str = "p", **spec: Any) -> Json:
    """Return a pod that asks for nothing. `annotations`, `labels` and `meta` go into its metadata."""
    meta = {"name": name, **spec.pop("meta", {})}
    meta |= {key: spec.pop(key) for key in ("annotations", "labels") if key in spec}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": [container()], **spec},
    }


def container(name: str = "main", **more: Any) -> Json:
    return {"name": name, "image": "train", **more}


def bare(ask: str = "gpus", name: str = "p", **spec: Any) -> Json:
    """Return a claimed pod as a user writes it, with nothing filled in."""
    annotations = {**ASKS[ask], **spec.pop("annotations", {})}
    return plain(name, annotations=annotations, **spec)


def ready(ask: str = "gpus", name: str = "p", **spec: Any) -> Json:
    """Return a claimed pod with all that it needs."""
    return filled(bare(ask, name, **spec))


def filled(pod: Json) -> Json:
    """Return a claimed pod as the webhook makes it; a bad one as it is."""
    match admission.asked(pod):
        case admission.WholeGpus(count):
            return admission.filled(pod, 1000 * count)
        case admission.NamedClaim(name) if name in COUNTS:
            return admission.filled(pod, COUNTS[name])
        case _:
            return pod


def several(ask: str = "gpus", name: str = "p") -> Json:
    """Return a ready pod with two containers, an init container and a sidecar."""
    return ready(
        ask,
        name,
        containers=[container("main"), container("side")],
        initContainers=[container("init"), container("proxy", restartPolicy="Always")],
    )


def changed(pod: Json, path: str, value: Any) -> Json:
    """Return the pod with the value at this path (`spec.containers.0.env`); without it if the value is
    None."""
    made = deepcopy(pod)
    *way, last = path.split(".")
    at: Any = made
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    if value is None:
        at.pop(last, None)
    else:
        at[last] = value
    return made


PLACES = {
    "main": "spec.containers.0",
    "side": "spec.containers.1",
    "init": "spec.initContainers.0",
    "sidecar": "spec.initContainers.1",
}
"""Where the containers of `several` are."""


def found(pod: Json, path: str) -> Any:
    at: Any = pod
    for step in path.split("."):
        at = at[int(step)] if isinstance(at, list) else at[step]
    return at
