"""Places kept for large pods on a real control plane: small ones do not starve them, and run in between if
they end before."""

import time
from typing import Any

from controlplane.api import Json
from tests.support.scheduler_stage import Stage, pod, until

HOUR_S = 3600
ALONE: dict[str, Any] = {"leaderElect": False, "releaseSeconds": 0, "sweepSeconds": 2}


def timed(name: str, gpus: int, run_s: int) -> Json:
    return pod(name, gpus=gpus, annotations={"gpu.scheduling/max-runtime-seconds": str(run_s)})


def test_pods_that_end_before_run_in_between_also_after_a_restart(stage: Stage) -> None:
    (node,) = stage.gpu_nodes(1, gpus=8)
    scheduler = stage.scheduler(**ALONE)
    stage.create(timed("first", 5, HOUR_S))
    stage.wait_bound("first")
    stage.create(pod("big", gpus=8))
    stage.wait_event("big", f"waits: its place on {node} is kept from")
    created = time.time()
    until(lambda: int(time.time()) > int(created), "what comes now is younger: creation times have seconds")
    stage.create(timed("short", 1, 600), timed("long", 1, 2 * HOUR_S))
    stage.wait_bound("short")
    told = stage.wait_event("long", "would end after")
    assert f"when {stage.namespace}/big's place on {node} begins" in told

    scheduler.kill()
    stage.scheduler(**ALONE)
    stage.create(timed("short-too", 1, 600), timed("long-too", 1, 2 * HOUR_S))
    stage.wait_bound("short-too")
    stage.wait_event("long-too", "would end after")
    assert set(stage.bound()) == {"first", "short", "short-too"}

    stage.delete("first", "short", "short-too")
    stage.wait_bound("big")
    assert set(stage.bound()) == {"big"}
    until(stage.holds_exactly, "the leases are those of the large pod")


def test_small_pods_that_declare_nothing_do_not_starve_a_large_one(stage: Stage) -> None:
    """For each that ends another one is there at once, and is older than what becomes free."""
    stage.gpu_nodes(1, gpus=4)
    stage.scheduler(**ALONE, reserveAfterSeconds=1)
    stage.create(*(pod(f"old-{at}", gpus=1) for at in range(4)))
    stage.wait_bound()
    stage.create(pod("big", gpus=4))
    stage.wait_event("big", "is kept until")
    stage.create(*(pod(f"new-{at}", gpus=1) for at in range(4)))
    stage.wait_event("new-3", "nodes fit")
    for at in range(4):
        stage.delete(f"old-{at}")
    stage.wait_bound("big")
    assert set(stage.bound()) == {"big"}
    stage.delete("big")
    stage.wait_bound(*(f"new-{at}" for at in range(4)))


def test_run_time_that_cannot_be_read_refuses_that_pod_alone(stage: Stage) -> None:
    stage.gpu_nodes(1, gpus=2)
    stage.scheduler(**ALONE)
    bad = pod("bad", gpus=1, annotations={"gpu.scheduling/max-runtime-seconds": "9" * 5000})
    stage.create(bad, timed("good", 1, 60))
    stage.wait_bound("good")
    stage.wait_event("bad", "write a number of seconds from 1 to")
