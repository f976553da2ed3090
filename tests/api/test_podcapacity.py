"""Whether a pod requests the capacity that its GPUs count for, and what it is told if it does not."""

from typing import Any

import pytest

from gpu_orchestrator.api import names, pod_amounts, podcapacity
from gpu_orchestrator.api.gpuclaim import GpuClaim
from tests.support.scheduler_objects import claim, pod

LARGEST = {("", ""): 81_920, ("nvidia", "A100"): 40_960}
WHOLE = claim("two", count=2)
SHARE = claim("share", count=2, exclusivity="Shared", share=300)
SHARE_WITH_MEMORY = claim("all", count=2, exclusivity="Shared", share=1, memoryMiB=81_920)
MEMORY = claim("memory", exclusivity="Shared", memoryMiB=10_240)
MEMORY_OF_A100 = claim("a100", exclusivity="Shared", memoryMiB=10_240, vendor="nvidia", model="A100")
MEMORY_OF_UNKNOWN = claim("new", exclusivity="Shared", memoryMiB=10_240, model="B200")


def uncounted(milligpu: int, asked: GpuClaim | None, **more: Any) -> str:
    requests = {names.MILLIGPU: str(milligpu)} if milligpu else {}
    way = {"claim": asked.metadata.name} if asked else {"gpus": 2}
    made = pod("p", containers=[{"name": "main", "resources": {"requests": requests}}], **way)
    resources = pod_amounts.taken(made.spec).resources
    return podcapacity.uncounted(made, asked, resources, lambda *kind: LARGEST.get(kind, 0))


@pytest.mark.parametrize(
    ("asked", "needed"),
    [
        pytest.param(None, 2000, id="bare GPUs"),
        pytest.param(WHOLE, 2000, id="whole devices"),
        pytest.param(SHARE, 600, id="shares"),
        pytest.param(SHARE_WITH_MEMORY, 2000, id="a small share with all of the memory"),
        pytest.param(MEMORY, 125, id="memory of the largest device"),
        pytest.param(MEMORY_OF_A100, 250, id="memory of the largest device of its model"),
        pytest.param(MEMORY_OF_UNKNOWN, 1000, id="memory of a model that no node has"),
    ],
)
def test_pod_must_request_what_its_gpus_count_for(asked: GpuClaim | None, needed: int) -> None:
    assert uncounted(needed, asked) == ""
    assert uncounted(needed + 1, asked) == "", "more is its owner's choice"
    named = f"GpuClaim {asked.metadata.name}" if asked else "its annotation gpu.scheduling/gpus"
    assert uncounted(needed - 1, asked) == (
        f"the pod requests {needed - 1} gpu.scheduling/milligpu, and {named} counts for {needed}: create the "
        f"pod again, so that the webhook fills in its request, or request {needed} in its first container"
    )
    assert uncounted(0, asked).startswith("the pod requests 0 gpu.scheduling/milligpu")


def test_only_memory_depends_on_the_nodes() -> None:
    assert all(map(podcapacity.depends_on_nodes, (MEMORY, SHARE_WITH_MEMORY)))
    assert not any(map(podcapacity.depends_on_nodes, (None, WHOLE, SHARE)))
