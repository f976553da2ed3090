"""Slices of GPUs (MIG), as an agent reports them, on the real control plane."""

from typing import Any

from tests.support.scheduler_stage import Stage, claim, devices, pod, until

Json = dict[str, Any]


def cut(stage: Stage, *profiles: str) -> tuple[str, list[Json]]:
    """Return a node and its report: GPU 0 is cut into these slices, with ids from 2 on, GPU 1 is whole."""
    (node,) = stage.gpu_nodes(1, gpus=2)
    whole, slices = devices(2), devices(2 + len(profiles))[2:]
    for each, profile in zip(slices, profiles, strict=True):
        each["uuid"] = each["uuid"].replace("GPU-", "MIG-")
        each["mig"] = {"profile": profile, "parent": whole[0]["uuid"]}
    found = [whole[1], *slices]
    stage.report(node, found)
    return node, found


def sliced(name: str, profile: str) -> tuple[Json, Json]:
    wanted = claim(name, exclusivity="MIG", migProfile=profile)
    return wanted, pod(name, claim=name)


def test_slices_are_given_to_who_asks_for_their_profile_and_to_nobody_else(stage: Stage) -> None:
    node, found = cut(stage, "1g.10gb", "1g.10gb", "3g.40gb")
    process = stage.scheduler(leaderElect=False, releaseSeconds=1)
    stage.create(*sliced("half", "3g.40gb"), *sliced("one", "1g.10gb"), pod("whole", gpus=1))
    bound = stage.wait_bound("half", "one", "whole")
    assert bound == {"half": f"{node}:4", "one": f"{node}:2", "whole": f"{node}:1"}
    annotations = stage.pod("half")["metadata"]["annotations"]
    assert annotations["gpu.scheduling/visible-devices"] == found[3]["uuid"]
    assert annotations["gpu.scheduling/local-devices"] == found[3]["uuid"]
    status = until(lambda: stage.claim("half").get("status"), "the claim says what its pod has")
    assert status["deviceUUIDs"] == [found[3]["uuid"]]
    lease = stage.leases()[f"gpu-{node}-4"]
    assert lease["metadata"]["annotations"]["gpu.scheduling/uuid"] == found[3]["uuid"]

    stage.create(*sliced("two", "1g.10gb"), *sliced("three", "1g.10gb"), *sliced("none", "7g.80gb"))
    until(lambda: len(stage.bound({"two", "three"})) == 1, "there is one more slice of the profile")
    (waiting,) = {"two", "three"} - set(stage.bound())
    stage.wait_event(waiting, "1 has no free 1g.10gb slice")
    stage.wait_event("none", "1 has no 7g.80gb slice")
    stage.create(pod("more", gpus=1))
    stage.wait_event("more", "1 has no wholly free GPU")
    process.kill()
    process.start()
    stage.delete("one", force=True)
    assert stage.wait_bound(waiting) == {waiting: f"{node}:2"}
    assert stage.holds_exactly()
