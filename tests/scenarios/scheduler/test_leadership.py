"""The leader keeps its lease, and goes on binding, whatever waits and however much there is to take over."""

import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from controlplane.api import Json
from controlplane.process import Process
from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from tests.support.half_speed import half_speed
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, pod, until

pytestmark = pytest.mark.open  # the pods that hold devices are made by hand

Figure = Callable[[str], None]
GPUS = 8


def test_many_different_waiting_pods_do_not_end_leadership(
    bare_stage: Stage, scale: Scale, figure: Figure
) -> None:
    """Each pod asks for something else, and one namespace has more of them than are considered at once. A pod
    of another namespace that fits is bound as if they were not there, while nodes change and reasons are
    refreshed."""
    limit, crowds, nodes = scale(test=80, accept=1000), scale(test=1, accept=8), scale(test=20, accept=5000)
    names = bare_stage.gpu_nodes(nodes, gpus=GPUS)
    scheduler = bare_stage.scheduler(maxWaitingShapes=limit, sweepSeconds=scale(test=1.0, accept=10.0))
    began = time.monotonic()
    fill = [crowd(bare_stage, number, limit) for number in range(crowds)]
    over = crowd(bare_stage, crowds, limit + scale(test=40, accept=1000))
    for each in (*fill, over):
        until(lambda each=each: all(reasons(each).values()), "each pod has its reason", 1200)  # type: ignore[misc]
    took_s = time.monotonic() - began
    held_back = [name for name, why in reasons(over).items() if "maxWaitingShapes" in why]
    assert len(held_back) == scale(test=40, accept=1000)
    waits = []
    for number in range(scale(test=3, accept=12)):
        relabel(bare_stage, names[number])
        waits.append(bind_one(bare_stage, f"fits-{number}"))
        time.sleep(scale(test=0.5, accept=10.0))
    figure(
        f"{limit * (crowds + 1)} shapes wait and {len(held_back)} pods beyond the limit on {nodes} nodes "
        f"(reasons after {took_s:.0f} s): a pod that fits is bound within {max(waits):.2f} s, "
        f"{scheduler.memory_mb:.0f} MB"
    )
    assert max(waits) <= scale(test=40.0, accept=1.0)
    assert_leads_all_along(scheduler)
    let_in(over, held_back)


def let_in(over: Stage, held_back: list[str]) -> None:
    """Delete pods that wait: as many of those held back are considered instead, the others go on waiting."""
    leaving = [name for name in over.pods() if name not in held_back][: len(held_back) // 2]
    over.delete(*leaving, force=True)

    def considered() -> bool:
        now = reasons(over)
        return sum("nodes fit" in now[name] for name in held_back) == len(leaving)

    until(considered, "others come in", 120)
    left = sum("maxWaitingShapes" in why for why in reasons(over).values())
    assert left == len(held_back) - len(leaving)


def crowd(stage: Stage, number: int, count: int) -> Stage:
    """Create pods of `count` different shapes that fit nowhere and that no other crowd has, in a namespace of
    their own."""
    name, first_mib = f"crowd-{number}", 10_000 * number + 1
    stage.cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    here = replace(stage, namespace=name, running=[], nodes=[])
    where = {"stage": stage.namespace}
    here.create(
        *(
            pod(
                f"unfit-{n}",
                gpus=GPUS,
                nodeSelector=where,
                resources=asking(cpu="997", memory=f"{first_mib + n}Mi"),
            )
            for n in range(count)
        )
    )
    return here


def asking(**requests: str) -> Json:
    return {"requests": requests}


def reasons(stage: Stage) -> dict[str, str]:
    """Return why each pod waits; empty if it was not told."""
    return {
        name: next((each.get("message", "") for each in found["status"].get("conditions", [])), "")
        for name, found in stage.pods().items()
    }


def relabel(stage: Stage, node: str) -> None:
    """Change a node, so that the scheduler looks at it for everything that waits."""
    body = {"metadata": {"labels": {"changed": str(time.monotonic_ns())}}}
    stage.cluster.api.request(
        "PATCH", f"/api/v1/nodes/{node}", body, content_type="application/merge-patch+json"
    )


def bind_one(stage: Stage, name: str, within_s: float = 60.0) -> float:
    """Create a pod that fits; return how long it waited."""
    began = time.monotonic()
    stage.create(pod(name, gpus=1))
    until(lambda: stage.pod(name)["spec"].get("nodeName"), f"{name} is bound", within_s)
    return time.monotonic() - began


def assert_leads_all_along(scheduler: Process) -> None:
    said = scheduler.log.read_text()
    assert scheduler.is_running, scheduler.last_words()
    assert said.count('"leading"') == 1, scheduler.last_words()
    assert "leadership lost" not in said, scheduler.last_words()


def test_takeover_of_a_full_cluster_on_half_a_core(bare_stage: Stage, scale: Scale, figure: Figure) -> None:
    """The standby has half a core, and every GPU but those of one node is leased."""
    nodes = scale(test=30, accept=5001)
    names = bare_stage.gpu_nodes(nodes, gpus=GPUS)
    fill_with_leased_pods(bare_stage, names[1:])
    first = bare_stage.scheduler()
    until(lambda: '"scheduling"' in first.log.read_text(), "the first leader decides", 300)
    standby = bare_stage.scheduler()
    with half_speed(standby):
        began, cpu_s = time.monotonic(), standby.cpu_s
        first.stop()
        bind_one(bare_stage, "first", within_s=300)
        waited_s, cpu_s = time.monotonic() - began, standby.cpu_s - cpu_s
        waits = [bind_one(bare_stage, f"later-{number}") for number in range(5)]
        time.sleep(scale(test=0.0, accept=40.0))  # renewals and a sweep
        waits.append(bind_one(bare_stage, "last"))
    figure(
        f"takeover of {nodes} nodes and {(nodes - 1) * GPUS} leased pods on half a core: first bind after "
        f"{waited_s:.1f} s ({cpu_s:.1f} s of CPU), later ones within {max(waits):.2f} s, "
        f"{standby.memory_mb:.0f} MB"
    )
    assert waited_s <= scale(test=60.0, accept=10.0)
    # So few leases cost next to nothing, on a busy machine, too.
    assert cpu_s <= scale(test=0.5, accept=10.0)
    assert_leads_all_along(standby)


def fill_with_leased_pods(stage: Stage, nodes: list[str]) -> None:
    """Create bound pods and their device leases, as earlier leaders left them."""
    made = stage.create(
        *(
            pod(
                f"runs-{node}-{device}",
                gpus=1,
                nodeName=node,
                annotations={"gpu.scheduling/allocated": f"{node}:{device}"},
                resources=asking(cpu="1", memory="1Gi"),
            )
            for node in nodes
            for device in range(GPUS)
        )
    )
    leases = [lease_of(each, stage.system) for each in made]
    stage.cluster.api.in_parallel(
        lambda body: stage.cluster.api.request("POST", stage.leases_path, body), leases, threads=8
    )


def lease_of(bound: Json, namespace: str) -> Json:
    meta = bound["metadata"]
    node, _, device = meta["annotations"]["gpu.scheduling/allocated"].rpartition(":")
    holder = Holder(meta["uid"], meta["name"], meta["namespace"], since="2026-01-01T00:00:00.000000Z")
    made: Json = msgspec.to_builtins(
        deviceleases.exclusive(DeviceRef(node, int(device)), holder, namespace), str_keys=True
    )
    return made
