"""The live copies of everything the scheduler looks at. Warm on every replica, so that taking over costs no
list."""

from typing import Any

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.watch import Watch
from gpu_orchestrator.api import volumes
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES
from gpu_orchestrator.api.kubernetes import LEASES, NODES, PODS, VOLUME_CLAIMS
from gpu_orchestrator.api.volumes import VOLUMES
from gpu_orchestrator.apps.scheduler import wish
from gpu_orchestrator.apps.scheduler.stores import Stores, claims_of

# Pods that ended leave the copy: their end is told as a deletion.
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


class Watches:
    def __init__(self, client: Client, namespace: str) -> None:
        self.nodes = Watch(client, NODES)
        self.reports = Watch(client, GPU_NODE_STATUSES)
        self.claims = Watch(client, GPU_CLAIMS, indices={"pod": lambda claim: [wish.served(claim)]})
        self.leases = Watch(client, LEASES, namespace=namespace)
        self.volumes = Watch(client, VOLUMES)
        self.volume_claims = Watch(client, VOLUME_CLAIMS)
        indices = {"claim": claims_of, "volume": volumes.claims_of}
        self.pods = Watch(client, PODS, fields=NOT_ENDED, indices=indices)
        self.stores = Stores(
            pods=self.pods.store,
            nodes=self.nodes.store,
            claims=self.claims.store,
            reports=self.reports.store,
            leases=self.leases.store,
            volume_claims=self.volume_claims.store,
            volumes=self.volumes.store,
        )

    @property
    def all(self) -> tuple[Watch[Any], ...]:
        """In the order in which they must be known before anything is decided."""
        facts = (self.nodes, self.reports, self.claims, self.leases, self.volumes, self.volume_claims)
        return *facts, self.pods
