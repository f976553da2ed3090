"""Whether a scheduler's message blames the nodes or the pod itself."""

import pytest

from gpu_orchestrator.apps.operator.planning import refusals
from gpu_orchestrator.apps.scheduler.cycle import pending

NO_HELP = "preemption: 0/8 nodes are available: 8 Preemption is not helpful for scheduling."


@pytest.mark.parametrize(
    ("message", "blamed"),
    [
        pytest.param(
            f'0/8 nodes are available: persistentvolumeclaim "data.v1" not found. not found. {NO_HELP}',
            'persistentvolumeclaim "data.v1" not found',
            id="a missing volume claim",
        ),
        pytest.param(
            "0/8 nodes are available: pod has unbound immediate PersistentVolumeClaims. "
            f"no new claims to deallocate, {NO_HELP}",
            "pod has unbound immediate PersistentVolumeClaims",
            id="an unbound volume claim",
        ),
        pytest.param(f"0/8 nodes are available: 8 Insufficient nvidia.com/gpu. {NO_HELP}", "", id="no room"),
        pytest.param(
            "0/1 nodes are available: waiting for the ephemeral volume.",
            "waiting for the ephemeral volume",
            id="one sentence",
        ),
        pytest.param("no nodes available to schedule pods", "", id="no nodes"),
    ],
)
def test_kube_scheduler_blames(message: str, blamed: str) -> None:
    assert refusals.by_kube_scheduler(message) == blamed


@pytest.mark.parametrize(
    ("message", "blamed"),
    [
        pytest.param("0/2 nodes fit: 2 have fewer than 4 free GPUs", "", id="no room"),
        pytest.param("0/0 nodes fit: there are no nodes", "", id="no nodes"),
        pytest.param(pending._too_many_shapes("team", 64), "", id="others of its namespace go first"),
        pytest.param(
            "GpuClaim team/x does not exist; create it", "GpuClaim team/x does not exist; create it", id="pod"
        ),
    ],
)
def test_gpu_scheduler_blames(message: str, blamed: str) -> None:
    assert refusals.by_gpu_scheduler(message) == blamed
