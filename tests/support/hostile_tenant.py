"""Writes of a hostile tenant, by chance from a seed: pods, claims, workloads and Jobs.

All their pods stay on the nodes that the writer was given, so that users of other nodes must not notice them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.support.hostile_text import (
    ARGUMENTS,
    CLAIM_FIELDS,
    COUNTS,
    LABELS,
    LONG_NOTES,
    NUMBERS,
    POD_ANNOTATIONS,
    POD_FIELDS,
    POD_LABELS,
    QUANTITIES,
    RESOURCES,
    SHARED_FIELDS,
    text,
)

Json = dict[str, Any]
Fields = Mapping[str, tuple[Sequence[Any], Sequence[Any]]]

MERGE = "application/merge-patch+json"
PLAIN = "application/json"
MOST_ALIVE = 40


class Write(NamedTuple):
    """One request. `kind` says what it changes."""

    kind: str
    method: str
    path: str
    body: Json
    content_type: str


@dataclass
class Tenant:
    """`nodes` are those that its pods may use; `others` it only names."""

    rng: Random
    namespace: str
    nodes: Sequence[str]
    others: Sequence[str] = ()
    number: int = 0
    alive: dict[str, list[str]] = field(default_factory=dict)

    # --- texts -------------------------------------------------------------------------------------------

    def text(self) -> str:
        return text(self.rng)

    def allocated(self) -> str:
        node = self.rng.choice([*self.nodes, *self.others, "no-such-node", self.text()])
        ids = ",".join(self.rng.choice(NUMBERS) for _ in range(self.rng.randrange(0, 12)))
        return self.rng.choice([f"{node}:{ids}", f"{node}:0,1,2,3,4,5,6,7", ids, self.text()])

    def about_pod(self) -> Json:
        """Return some annotations of a pod; None deletes one."""
        rng = self.rng
        annotations: Json = {}
        for word in rng.sample(POD_ANNOTATIONS, rng.randrange(1, 4)):
            value: str | None = self.text()
            if word == "allocated" or rng.random() < 0.1:
                value = self.allocated()
            elif word in ("claim", "claim-template") and rng.random() < 0.7:
                value = rng.choice(self.alive.get("claims") or ["none"])
            elif word == "gpus" and rng.random() < 0.5:
                value = str(rng.randrange(1, 9))
            annotations[f"gpu.scheduling/{word}"] = None if rng.random() < 0.05 else value
        return annotations

    def labels(self, keys: Sequence[str]) -> Json:
        rng = self.rng
        return {key: rng.choice((None, *LABELS)) for key in rng.sample(keys, rng.randrange(1, 4))}

    def pick(self, values: tuple[Sequence[Any], Sequence[Any]]) -> Any:
        """Return a value that the schema lets pass; seldom one that it does not."""
        return self.rng.choice(values[1] if self.rng.random() < 0.01 else values[0])

    def some(self, fields: Fields) -> Json:
        return {key: self.pick(values) for key, values in fields.items() if self.rng.random() < 0.25}

    # --- pods --------------------------------------------------------------------------------------------

    def _pod_annotations(self) -> Write:
        return self._patch("pods", self._pods, {"metadata": {"annotations": self.about_pod()}})

    def _pod_labels(self) -> Write:
        return self._patch("pods", self._pods, {"metadata": {"labels": self.labels(POD_LABELS)}}, "labels")

    def _pod(self) -> Write:
        rng = self.rng
        if gone := self._oldest("pods"):
            return Write("pods deleted", "DELETE", f"{self._pods}/{gone}", {"gracePeriodSeconds": 0}, PLAIN)
        name = self._new("pods")
        annotations = {key: value for key, value in self.about_pod().items() if value is not None}
        if rng.random() < 0.6:
            annotations = {"gpu.scheduling/gpus": str(rng.randrange(1, 4))}
        limits = {rng.choice(RESOURCES): rng.choice(QUANTITIES)} if rng.random() < 0.3 else {}
        spec: Json = {
            "schedulerName": "gpu-scheduler" if rng.random() < 0.8 else "default-scheduler",
            "nodeSelector": {"crowd": "hostile"},
            "containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits}}],
        }
        if rng.random() < 0.2:
            spec["nodeName"] = rng.choice(self.nodes)
        if rng.random() < 0.1:
            spec["resourceClaims"] = [{"name": "x", "resourceClaimName": "x"}]
        if rng.random() < 0.2:
            spec["tolerations"] = [{"operator": "Exists"}]
        if rng.random() < 0.1:
            about = rng.choice(["example.com/notes", *(f"gpu.scheduling/{each}" for each in POD_ANNOTATIONS)])
            annotations = {about: rng.choice(LONG_NOTES)}
        if rng.random() < 0.05:
            spec["containers"][0]["args"] = [ARGUMENTS[rng.randrange(4000) :]]
        meta = {"name": name, "annotations": annotations, "labels": {"made": "hostile"}}
        return Write("pods", "POST", self._pods, {"metadata": meta, "spec": spec}, PLAIN)

    # --- claims ------------------------------------------------------------------------------------------

    def _claim(self) -> Write:
        rng = self.rng
        if gone := self._oldest("claims"):
            return Write("claims deleted", "DELETE", f"{self._claims}/{gone}", {}, PLAIN)
        devices: Json = {"count": self.pick(COUNTS), **self.some(CLAIM_FIELDS)}
        if rng.random() < 0.3:
            devices |= {"exclusivity": "Shared", "share": 100, **self.some(SHARED_FIELDS)}
        if rng.random() < 0.1:
            devices |= {"policy": "preferIds", "preferIds": rng.choice([[0], [7, 6], [1023], [0, 0], [-1]])}
        spec: Json = {"devices": devices}
        if rng.random() < 0.3:
            wanted = {rng.choice(("crowd", "zone", "x" * 63)): rng.choice(LABELS)}
            spec["selector"] = {"matchLabels": wanted}
        if rng.random() < 0.3:
            spec["topology"] = {"mode": "Required", "minBandwidthGBps": rng.choice([0, 600, 1_000_000])}
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "spec": spec}
        return Write(
            "claims", "POST", self._claims, {**body, "metadata": {"name": self._new("claims")}}, PLAIN
        )

    def _claim_metadata(self) -> Write:
        meta: Json = {
            "annotations": {f"gpu.scheduling/{self.rng.choice(POD_ANNOTATIONS)}": self.text()},
            "labels": self.labels(POD_LABELS),
        }
        if self.rng.random() < 0.2:
            meta["finalizers"] = self.rng.choice([[], ["gpu.scheduling/in-use"], None])
        return self._patch("claims", self._claims, {"metadata": meta}, "metadata")

    def _claim_status(self) -> Write:
        rng = self.rng
        status = {
            "phase": rng.choice(["Pending", "Reserved", "Bound", "Failed", "Released"]),
            "nodeName": rng.choice([*self.nodes, *self.others, "", "x" * 253]),
            "allocated": self.allocated()[:253],
            "podUID": rng.choice(["", "u", "x" * 128]),
            "gpuIds": self.pick((([], [0], [1023]), ([0, 0], [-1], None))),
            "message": self.text()[:1000],
        }
        body = {"status": {key: status[key] for key in rng.sample(sorted(status), 3)}}
        return self._patch("claims", self._claims, body, "status")

    # --- workloads and Jobs ------------------------------------------------------------------------------

    def _workload(self) -> Write:
        rng = self.rng
        if gone := self._oldest("workloads"):
            return Write("workloads deleted", "DELETE", f"{self._workloads}/{gone}", {}, PLAIN)
        pod: Json = {"nodeSelector": {"crowd": "hostile"}}
        for key, values in POD_FIELDS.items():
            if rng.random() < 0.2:
                pod[key] = rng.choice(values)
        if rng.random() < 0.1:
            pod["containers"] = [{"name": "main", "image": "x", "args": [ARGUMENTS[rng.randrange(4000) :]]}]
        annotations = {key: value for key, value in self.about_pod().items() if value is not None}
        template: Json = {"spec": pod, "metadata": {"annotations": rng.choice([annotations, {}, None])}}
        spec: Json = {"modelName": self.text()[:255] or "m", "gpuCount": rng.choice([1, 1, 2, 8, 9, 0, "1"])}
        spec["template"] = rng.choice([template, template, {"spec": {"nodeSelector": {"crowd": "hostile"}}}])
        spec["retryPolicy"] = {"maxRetries": 1, "backoffSeconds": 1}
        if rng.random() < 0.3:
            spec["claim"] = rng.choice([{}, {"devices": {"policy": "packed"}}, {"devices": None}])
        body = {"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "spec": spec}
        meta = {"name": self._new("workloads")}
        return Write("workloads", "POST", self._workloads, {**body, "metadata": meta}, PLAIN)

    def _workload_metadata(self) -> Write:
        meta = {"annotations": {"gpu.warp.dev/made-from": self.text()}, "labels": self.labels(POD_LABELS)}
        return self._patch("workloads", self._workloads, {"metadata": meta}, "metadata")

    def _job(self) -> Write:
        rng = self.rng
        if gone := self._oldest("jobs"):
            body = {"propagationPolicy": "Background"}
            return Write("jobs deleted", "DELETE", f"{self._jobs}/{gone}", body, PLAIN)
        labels = {"gpu.warp.dev/controller": "gpu-orchestrator", "gpu.warp.dev/workload": rng.choice(LABELS)}
        container = {"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        here = {"key": "metadata.name", "operator": "In", "values": [rng.choice(self.nodes)]}
        terms = {"nodeSelectorTerms": [{"matchFields": [here]}]}
        pod: Json = {
            "restartPolicy": "Never",
            "containers": [container],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        }
        about = {"gpu.warp.dev/made-from": self.text(), "gpu.scheduling/allocated": self.allocated()}
        template = {"metadata": {"labels": labels, "annotations": about}, "spec": pod}
        meta = {"name": self._new("jobs"), "labels": labels, "annotations": about}
        job: Json = {"metadata": meta, "spec": {"suspend": rng.choice([True, False]), "template": template}}
        return Write("jobs", "POST", self._jobs, job, PLAIN)

    # --- names -------------------------------------------------------------------------------------------

    def _new(self, kind: str) -> str:
        name = f"h{self.number}"
        if kind in ("pods", "claims") and self.rng.random() < 0.2:
            name += "x" * self.rng.choice([1, 200, 245])
        name = name[:63] if kind in ("workloads", "jobs") else name[:253]
        self.alive.setdefault(kind, []).append(name)
        return name

    def _oldest(self, kind: str) -> str:
        """Return an object to delete, once enough are there; else nothing."""
        known = self.alive.setdefault(kind, [])
        return known.pop(0) if len(known) >= MOST_ALIVE and self.rng.random() < 0.55 else ""

    def _patch(self, kind: str, path: str, body: Json, part: str = "annotations") -> Write:
        name = self.rng.choice(self.alive.get(kind) or ["none"])
        tail = "/status" if part == "status" else ""
        return Write(f"{kind} {part}", "PATCH", f"{path}/{name}{tail}", body, MERGE)

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def _claims(self) -> str:
        return f"/apis/gpu.scheduling/v1/namespaces/{self.namespace}/gpuclaims"

    @property
    def _workloads(self) -> str:
        return f"/apis/gpu.warp.dev/v1alpha1/namespaces/{self.namespace}/gpuworkloads"

    @property
    def _jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
