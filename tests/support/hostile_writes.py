"""Writes of a hostile tenant and of a careless administrator, by chance from a seed.

The administrator changes leases, reports and nodes, but only those of the nodes that were given.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.hostile_tenant import MERGE, PLAIN, Json, Tenant, Write
from tests.support.hostile_text import (
    DEVICE_FIELDS,
    DOCUMENTS,
    GBPS,
    LABELS,
    NODE_LABELS,
    PORTS,
    QUANTITIES,
    RESOURCES,
)

NODES = "/api/v1/nodes"


@dataclass
class Hostile(Tenant):
    """`system` is the namespace of the device leases."""

    system: str = "gpu-orchestrator-system"

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

    @property
    def _leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.system}/leases"

    @property
    def _reports(self) -> str:
        return "/apis/gpu.scheduling/v1/gpunodestatuses"
