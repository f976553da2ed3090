"""Kill or freeze the scheduler at any point: after a restart every pod is bound once and nothing has leaked.

The tests check the whole history of pods, leases and claims, not only the final state.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import pytest

from controlplane.api import Json
from controlplane.process import Process
from gpu_orchestrator.api import names
from tests.faults.calls import Call as Request
from tests.faults.proxy import Call, Cut, DropAnswer, Fault, Proxy
from tests.support import invariants
from tests.support.object_history import History
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, claim, pod, until

ALONE: dict[str, Any] = {"leaderElect": False, "releaseSeconds": 1, "sweepSeconds": 2}
PATIENT: dict[str, Any] = {"leaseSeconds": 60, "renewSeconds": 50, "retrySeconds": 0.5, "releaseSeconds": 1}
LEADING: dict[str, Any] = {"leaseSeconds": 5, "renewSeconds": 4, "retrySeconds": 0.5, "releaseSeconds": 1}

Moment = Literal["request", "answer", "done"]
MOMENTS: dict[Moment, Fault | None] = {"request": Cut(), "answer": DropAnswer(), "done": None}

# Every kind of write, and what causes it: mostly a kind of pods.
WRITES = {
    ("create", "leases"): "gpus",
    ("create", "pods/binding"): "gpus",
    ("create", "events"): "gpus",
    ("patch", "gpuclaims"): "claim",
    ("patch", "gpuclaims/status"): "claim",
    ("create", "gpuclaims"): "claim_template",
    ("patch", "leases"): "shared",
    ("patch", "pods/status"): "unfit",
    ("delete", "leases"): "delete",
    ("patch", "nodes/status"): "node",
}

GIVING = {("create", "leases"), ("create", "pods/binding"), ("patch", "leases")}


@pytest.fixture
def proxy(bare_stage: Stage) -> Iterator[Proxy]:
    with Proxy(bare_stage.kubeconfig, remember=1000) as made:
        yield made


class Crowd:
    """Creates pods and nodes, and deletes pods, so that the scheduler makes a certain write."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.made = stage, 0
        stage.create(claim("template"), claim("shared", exclusivity="Shared", share=100))
        self.provoke("shared")

    def provoke(self, how: str) -> None:
        self.made += 1
        name = f"{how.replace('_', '-')}-{self.made}"
        match how:
            case "gpus":
                self.stage.create(*(pod(f"{name}-{n}", gpus=1) for n in range(3)))
            case "claim":
                self.stage.create(claim(name), pod(name, claim=name))
            case "claim_template":
                self.stage.create(pod(name, claim_template="template"))
            case "shared":
                packed = {"claim_template": "shared", "strategy": "binPack"}  # the second joins the first
                self.stage.create(*(pod(f"{name}-{n}", **packed) for n in range(2)))
            case "unfit":
                self.stage.create(pod(name, gpus=9))
            case "delete":
                self.stage.delete(next(iter(self.stage.bound())), force=True)
            case "node":
                self.stage.gpu_nodes(1, prefix=name, gpus=8)

    def fitting(self) -> list[str]:
        return [name for name in self.stage.pods() if not name.startswith("unfit")]


def settled(stage: Stage, crowd: list[str]) -> None:
    """Wait until every pod that fits is bound, and leases and claims agree."""
    stage.wait_bound(*crowd, within_s=60)
    until(stage.holds_exactly, f"leases match the bound pods\n{stage.last_words()}", 60)
    until(lambda: claims_match(stage), "claims match their pods", 60)


def claims_match(stage: Stage) -> bool:
    pods = {each["metadata"]["uid"]: each for each in stage.pods().values()}
    return all(claim_matches(each, pods) for each in stage.claims().values())


def claim_matches(found: Json, pods: dict[str, Json]) -> bool:
    """Return True if the claim is free, or Bound and on its pod's node."""
    meta, status = found["metadata"], found.get("status", {})
    uid = meta.get("labels", {}).get("gpu.scheduling/pod-uid")
    if uid is None:
        return "gpu.scheduling/in-use" not in meta.get("finalizers", [])
    node = pods[uid]["spec"].get("nodeName") if uid in pods else None
    return bool(node) and status.get("phase") == "Bound" and status.get("nodeName") == node


def test_kill_at_every_kind_of_write_leaks_nothing(
    bare_stage: Stage, proxy: Proxy, scale: Scale, figure: Callable[[str], None]
) -> None:
    """Kill before the request is forwarded, after it is applied but not answered, and after the answer. Small
    scale: at all three moments of the writes that give a device away, at the second one of the others."""
    kills = [(write, moment) for write in WRITES for moment in MOMENTS]
    chosen = scale(test=[each for each in kills if each[0] in GIVING or each[1] == "answer"], accept=kills)
    bare_stage.gpu_nodes(10, gpus=8)
    scheduler = bare_stage.scheduler(kubeconfig=proxy.kubeconfig, **ALONE)
    began = time.monotonic()
    with History(bare_stage.cluster) as history:
        crowd = Crowd(bare_stage)
        for write, moment in chosen:
            bare_stage.wait_bound(*crowd.fitting())
            kill_at(proxy, scheduler, write, moment, partial(crowd.provoke, WRITES[write]))
            scheduler.start()
        settled(bare_stage, crowd.fitting())
        until(lambda: all_counted(bare_stage), "every node shows its capacity")
        bare_stage.delete(*bare_stage.pods(), force=True)
        until(lambda: not bare_stage.leases(), f"every lease is gone\n{bare_stage.last_words()}", 60)
    figure(f"{len(chosen)} kills in {time.monotonic() - began:.0f} s")
    assert set(invariants.check(history).binds.values()) == {1}


def all_counted(stage: Stage) -> bool:
    nodes = stage.cluster.api.request("GET", "/api/v1/nodes")["items"]
    return all(each["status"]["allocatable"].get(names.MILLIGPU) == "8k" for each in nodes)


def kill_at(
    proxy: Proxy,
    scheduler: Process,
    write: tuple[str, str],
    moment: Moment,
    provoke: Callable[[], None],
) -> None:
    then = MOMENTS[moment]
    proxy.on(*write, do=Call(lambda _: scheduler.kill(), at=moment, then=then))
    provoke()
    until(lambda: not scheduler.is_running, f"killed at {write}, {moment}")
    proxy.heal()


def test_kill_at_random_moments_leaks_nothing(bare_stage: Stage, scale: Scale) -> None:
    """Bind a thousand pods while the scheduler is killed again and again."""
    count, kills = scale(test=120, accept=1000), scale(test=3, accept=50)
    bare_stage.gpu_nodes(count // 8 + 1, gpus=8)
    bare_stage.create(claim("template"), claim("shared", exclusivity="Shared", share=500))
    scheduler = bare_stage.scheduler(**LEADING)
    rng, kinds = random.Random(7), ({"gpus": 1}, {"claim_template": "template"}, {"claim_template": "shared"})
    with History(bare_stage.cluster) as history:
        for turn in range(kills):
            batch = range(turn * count // kills, (turn + 1) * count // kills)
            bare_stage.create(*(pod(f"p{n}", **kinds[n % 3]) for n in batch), threads=4)
            time.sleep(rng.uniform(0, 0.5))
            scheduler.kill()
            scheduler.start()
        settled(bare_stage, [f"p{n}" for n in range(count)])
    assert list(invariants.check(history).binds.values()) == [1] * count


def test_late_bind_of_a_frozen_leader_is_refused(bare_stage: Stage, proxy: Proxy) -> None:
    """The leader holds the lease and freezes while its bind is in flight; the next leader gives the device to
    another pod."""
    (node,) = bare_stage.gpu_nodes(1, gpus=1)
    high = {"metadata": {"name": "high"}, "value": 1000}
    bare_stage.cluster.api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", high)
    old = bare_stage.scheduler(kubeconfig=proxy.kubeconfig, **LEADING)
    release = threading.Event()

    def freeze(_: Request) -> None:
        old.pause()
        release.wait(120)

    proxy.on("create", "pods/binding", do=Call(freeze))
    with History(bare_stage.cluster) as history:
        bare_stage.create(pod("first", gpus=1))
        until(lambda: f"gpu-{node}-0" in bare_stage.leases(), "the device is reserved for the first pod")
        bare_stage.create(pod("urgent", gpus=1, priorityClassName="high"))
        bare_stage.scheduler(**LEADING)
        assert bare_stage.wait_bound("urgent", within_s=60) == {"urgent": f"{node}:0"}
        release.set()
        until(lambda: binds(proxy), "the late bind was answered")
        assert binds(proxy) == [409]
        before = len(proxy.requests)
        old.resume()
        until(lambda: not old.is_running, "the old leader has ended")
    changed = {(sent.verb, sent.resource) for sent in proxy.requests[before:] if (sent.status or 999) < 300}
    assert not changed & {("create", "leases"), ("delete", "leases"), ("create", "pods/binding")}
    assert set(bare_stage.bound()) == {"urgent"}
    assert bare_stage.holds_exactly()
    invariants.check(history, spare_s=40)


def binds(proxy: Proxy) -> list[int | None]:
    return [sent.status for sent in proxy.requests if sent.resource == "pods/binding"]


@pytest.mark.parametrize("clean_stop", [True, False], ids=["stopped", "killed"])
def test_another_replica_takes_over(
    bare_stage: Stage, scale: Scale, figure: Callable[[str], None], clean_stop: bool
) -> None:
    """Within 20 s after a leader is killed, with default times; at once after a clean stop, long before its
    lease would expire."""
    bare_stage.gpu_nodes(1, gpus=8)
    times: dict[str, Any] = scale(test=PATIENT if clean_stop else LEADING, accept={})
    limit_s = scale(test=50, accept=3 if clean_stop else 20)
    leader = bare_stage.scheduler(**times)
    bare_stage.create(pod("before", gpus=1))
    bare_stage.wait_bound("before")
    bare_stage.scheduler(**times)
    ended_at = time.monotonic()
    leader.stop() if clean_stop else leader.kill()
    bare_stage.create(pod("after", gpus=1))
    bare_stage.wait_bound("after", within_s=limit_s)
    figure(
        f"bound {time.monotonic() - ended_at:.1f} s after the leader {'stopped' if clean_stop else 'died'}"
    )
    assert time.monotonic() - ended_at < limit_s
