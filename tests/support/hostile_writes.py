"""Writes of a hostile tenant and a careless administrator, by chance from a seed.

Every write stays on the nodes that it was given, so that users of other nodes must not notice any of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.support.hostile_text import (
    CLAIM_FIELDS,
    COUNTS,
    DEVICE_FIELDS,
    DOCUMENTS,
    GBPS,
    LABELS,
    NODE_LABELS,
    NUMBERS,
    POD_ANNOTATIONS,
    POD_FIELDS,
    POD_LABELS,
    PORTS,
    QUANTITIES,
    RESOURCES,
    SHARED_FIELDS,
    text,
)

Json = dict[str, Any]
Fields = Mapping[str, tuple[Sequence[Any], Sequence[Any]]]

NODES = "/api/v1/nodes"
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
class Hostile:
    """Writes of one seed. `nodes` are the nodes that they may use and change; `others` they only name."""

    rng: Random
    namespace: str
    system: str
    nodes: Sequence[str]
    others: Sequence[str] = ()
    number: int = 0
    alive: dict[str, list[str]] = field(default_factory=dict)

    def __next__(self) -> Write:
        self.number += 1
        kinds: list[Callable[[], Write]] = [
            *[self._pod_annotations] * 6,
            *[self._node_annotations] * 3,
            *[self._node_labels] * 3,
            *[self._lease] * 4,
            *[self._report] * 3,
            *[self._claim_metadata] * 2,
            self._pod_labels,
            self._pod,
            self._node_status,
            self._node_taints,
            self._claim,
            self._claim_status,
            self._workload,
            self._workload_metadata,
            self._job,
        ]
        return self.rng.choice(kinds)()

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

    # --- leases, reports, nodes: what an administrator may write -----------------------------------------

    def _lease(self) -> Write:
        rng = self.rng
        name = f"gpu-{rng.choice(self.nodes)}-{rng.choice(['0', '1', '7', '01', '1023', '1024', '9' * 30])}"
        known = self.alive.setdefault("leases", [])
        if name in known and rng.random() < 0.1:
            known.remove(name)
            return Write("leases deleted", "DELETE", f"{self._leases}/{name}", {}, PLAIN)
        annotations = {
            "gpu.scheduling/holders": self.text(),
            "gpu.scheduling/node": rng.choice([*self.nodes, *self.others, "", self.text()]),
            "gpu.scheduling/pod": self.text(),
            "gpu.scheduling/namespace": rng.choice([self.namespace, self.text()]),
            "gpu.scheduling/uuid": self.text(),
        }
        chosen = {key: annotations[key] for key in rng.sample(sorted(annotations), rng.randrange(1, 4))}
        meta: Json = {"name": name, "annotations": chosen}
        meta["labels"] = {"gpu.scheduling/managed": rng.choice(["true", "true", "false", "", None])}
        spec: Json = {"holderIdentity": rng.choice(["shared", "u", "x" * 300, "\u0663"])}
        if rng.random() < 0.2:
            spec["renewTime"] = rng.choice(
                ["0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z", None]
            )
        if name not in known:
            known.append(name)
            return Write("leases", "POST", self._leases, {"metadata": meta, "spec": spec}, PLAIN)
        return Write("leases", "PATCH", f"{self._leases}/{name}", {"metadata": meta, "spec": spec}, MERGE)

    def _report(self) -> Write:
        rng = self.rng
        name, known = rng.choice(self.nodes), self.alive.setdefault("reports", [])
        if name not in known:
            known.append(name)
            node = rng.choice([name, name, *self.others])
            body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuNodeStatus", "spec": {"nodeName": node}}
            return Write("reports", "POST", self._reports, {**body, "metadata": {"name": name}}, PLAIN)
        if rng.random() < 0.05:
            known.remove(name)
            return Write("reports deleted", "DELETE", f"{self._reports}/{name}", {}, PLAIN)
        ids = rng.sample([*range(64), 1023], rng.choice([0, 1, 4, 8, 64]))
        pairs = [sorted(rng.sample(range(70), 2)) for _ in range(rng.choice([0, 0, 3, 200]))]
        status: Json = {
            "devices": [self._device(each) for each in ids],
            "links": [
                {"pair": pair, "type": "NVLink", "bandwidthGBps": rng.choice(GBPS[0])} for pair in pairs
            ],
            "fabric": {"ports": self.pick(PORTS), "gpuDirectRDMA": rng.choice([True, False])},
            "total": self.pick(((0, 8, 1024), (1025, -1))),
        }
        body = {"status": {key: status[key] for key in rng.sample(sorted(status), 2)}}
        return Write("reports", "PATCH", f"{self._reports}/{name}/status", body, MERGE)

    def _device(self, number: int) -> Json:
        health = self.rng.choice(["Healthy", "Healthy", "Unhealthy", "Unknown"])
        return {"id": number, "health": health, **self.some(DEVICE_FIELDS)}

    def _node_annotations(self) -> Write:
        rng = self.rng
        texts = [self.text(), rng.choice(DOCUMENTS), '{"count": 8}', None]
        body = {"metadata": {"annotations": {"gpu.scheduling/devices": rng.choice(texts)}}}
        return Write("nodes annotations", "PATCH", f"{NODES}/{rng.choice(self.nodes)}", body, MERGE)

    def _node_labels(self) -> Write:
        body = {"metadata": {"labels": self.labels(NODE_LABELS)}}
        return Write("nodes labels", "PATCH", f"{NODES}/{self.rng.choice(self.nodes)}", body, MERGE)

    def _node_status(self) -> Write:
        rng = self.rng
        amounts = {rng.choice(RESOURCES): rng.choice((*QUANTITIES, "8", None)) for _ in range(2)}
        body = {"status": {rng.choice(["allocatable", "capacity"]): amounts}}
        return Write("nodes status", "PATCH", f"{NODES}/{rng.choice(self.nodes)}/status", body, MERGE)

    def _node_taints(self) -> Write:
        rng = self.rng
        taint = {"key": rng.choice(["nvidia.com/gpu", "x"]), "value": rng.choice(LABELS)}
        taints = rng.choice(
            [[], [], None, [{**taint, "effect": rng.choice(["NoSchedule", "PreferNoSchedule"])}]]
        )
        body = {"spec": {"taints": taints, "unschedulable": rng.choice([True, False, None])}}
        return Write("nodes", "PATCH", f"{NODES}/{rng.choice(self.nodes)}", body, MERGE)

    # --- workloads and Jobs ------------------------------------------------------------------------------

    def _workload(self) -> Write:
        rng = self.rng
        if gone := self._oldest("workloads"):
            return Write("workloads deleted", "DELETE", f"{self._workloads}/{gone}", {}, PLAIN)
        pod: Json = {"nodeSelector": {"crowd": "hostile"}}
        for key, values in POD_FIELDS.items():
            if rng.random() < 0.2:
                pod[key] = rng.choice(values)
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

    @property
    def _leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.system}/leases"

    @property
    def _reports(self) -> str:
        return "/apis/gpu.scheduling/v1/gpunodestatuses"
