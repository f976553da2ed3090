"""The gpu-scheduler on a real control plane: claims, devices, refusals and releases, one scenario each."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from controlplane.cluster import Cluster
from tests.scenarios import stage as stages
from tests.scenarios.stage import Stage, claim, pod, until


@pytest.fixture
def stage(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    stages.install(cluster)
    made = Stage(cluster, namespace, tmp_path, scheduler_name=f"sched-{uuid4().hex[:6]}")
    yield made
    made.close()


def test_one(stage: Stage) -> None:
    node = stage.cluster.gpu_nodes(1, prefix=stage.namespace, gpus=2)[0]
    stage.scheduler(leaderElect=False, releaseSeconds=2)
    stage.create(claim("c"), pod("p", claim="c", scheduler=stage.scheduler_name))
    given = stage.wait_bound("p")
    assert given == {"p": f"{node}:0"}
    print(stage.events("p"), stage.leases().keys())
    until(lambda: stage.claim("c").get("status", {}).get("phase") == "Bound", "Bound")
    print(stage.cluster.kubectl("get", "gclaim", "-n", stage.namespace))
    print(stage.claim("c"))
    stage.delete("p")
    until(lambda: not stage.leases(), "lease gone")
    until(lambda: stage.claim("c").get("status", {}).get("phase") == "Released", "Released")
    print(stage.claim("c"))
    print(stage.last_words())
