"""The four watches that the operator decides by. Made by the controller, read by `snapshot_reader`."""

from dataclasses import dataclass
from typing import Any

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS, GPUWorkload
from gpu_orchestrator.api.job import JOBS, Job
from gpu_orchestrator.api.kubernetes import NODES, PODS, Node, Pod
from gpu_orchestrator.apps.operator.jobs import job as jobs

NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class Watches:
    nodes: Watch[Node]
    pods: Watch[Pod]
    jobs: Watch[Job]
    workloads: Watch[GPUWorkload]

    @property
    def in_order(self) -> tuple[Watch[Any], ...]:
        """In the order in which the process waits for them to be complete."""
        return self.nodes, self.pods, self.jobs, self.workloads


def watch(client: Client, namespace: str) -> Watches:
    """Watch workloads and Jobs in this namespace (all if empty), nodes and pods everywhere."""
    return Watches(
        nodes=Watch(client, NODES),
        pods=Watch(client, PODS, fields=NOT_ENDED, indices={"job": lambda pod: [jobs.job_key(pod)]}),
        jobs=Watch(
            client,
            JOBS,
            namespace=namespace,
            labels=jobs.SELECTOR,
            indices={"owner": lambda job: [jobs.owner_uid(job)]},
        ),
        workloads=Watch(client, GPU_WORKLOADS, namespace=namespace),
    )
