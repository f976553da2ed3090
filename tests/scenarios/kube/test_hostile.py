"""Mutated annotations, labels, claims, leases, reports, nodes, workloads and Jobs on a real API server, while
a gpu-scheduler and an operator serve others there.

Both must go on, and start again from what was written. Pods and workloads on other nodes must not notice. No
device may be given twice. The seed is among the figures of the run; HOSTILE_SEED repeats it.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from controlplane.api import ApiError, Json
from controlplane.cluster import Cluster
from gpu_orchestrator.api import names
from tests.support import installation
from tests.support.hostile_tenant import MERGE, Write
from tests.support.hostile_writes import Hostile
from tests.support.object_history import Change, History
from tests.support.operator_process import SYSTEM, Operator, Site
from tests.support.scale import Scale
from tests.support.scheduler_stage import CLAIMS, REPORTS, Stage, claim, pod

THREADS = 6
PATIENCE_S = 300.0
"""For pods and workloads that should be served in seconds: a busy machine must not fail the test."""
WORKLOADS: dict[str, Json] = {"plain": {}, "claimed": {"claim": {"devices": {"policy": "packed"}}}}
ENDED = ("Succeeded", "Failed")
LONG_NAME = "n" * 235


class Crowd:
    """Pods and workloads that do nothing wrong, on nodes of their own. Each round uses them once."""

    def __init__(self, site: Site, stage: Stage) -> None:
        self.site, self.stage, self.round = site, stage, 0
        ours = {"stage": stage.namespace}
        self.claimed = site.nodes(2, prefix="claimed", gpus=4, labels={"crowd": "claimed", **ours})
        self.plain = site.nodes(1, prefix="plain", gpus=4, labels={"crowd": "plain"})

    def come(self) -> None:
        self.round += 1
        here = {"nodeSelector": {"crowd": "claimed"}}
        whole, part = self._name("whole"), self._name("part")
        self.stage.create(
            claim(whole),
            claim(part, exclusivity="Shared", share=400),
            pod(self._name("bare"), gpus=2, strategy="binPack", **here),
            pod(self._name("cheap"), gpus=1, strategy="costOptimized", **here),
            pod(whole, claim=whole, **here),
            *(pod(self._name(f"part-{n}"), claim_template=part, **here) for n in range(2)),
        )
        for path, spec in WORKLOADS.items():
            template = {"spec": {"nodeSelector": {"crowd": path}}}
            self.site.create(self._name(path), run_for="1s", template=template, **spec)

    def served(self, within_s: float) -> None:
        """Wait until all pods of the round were bound and its workloads are done."""
        self.stage.wait_bound(*self._pods(), within_s=within_s)
        for path in WORKLOADS:
            self.site.until(self._name(path), "Succeeded", timeout_s=within_s)

    def go(self) -> None:
        self.stage.delete(*self._pods(), force=True)
        for path in WORKLOADS:
            self.site.delete(self._name(path))

    def _pods(self) -> list[str]:
        return [self._name(each) for each in ("bare", "cheap", "whole", "part-0", "part-1")]

    def _name(self, word: str) -> str:
        return f"innocent-{self.round}-{word}"


@pytest.fixture
def stage(operator_cluster: Cluster, site: Site, tmp_path: Path) -> Iterator[Stage]:
    installation.open_up(operator_cluster, site.namespace)  # else the policies refuse most of it
    made = Stage(operator_cluster, site.namespace, tmp_path)
    yield made
    made.close()
    remove_leftovers(site)


def remove_leftovers(site: Site) -> None:
    """Remove what the end of the namespace does not, so that other tests find the cluster as it was."""
    for each in site.request("GET", CLAIMS.format(site.namespace))["items"]:
        path = f"{CLAIMS.format(site.namespace)}/{each['metadata']['name']}"
        with suppress(ApiError):
            site.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    for collection in (REPORTS, leases):
        for each in site.request("GET", collection)["items"]:
            if site.namespace in (name := each["metadata"]["name"]):
                site.request("DELETE", f"{collection}/{name}")


def test_hostile_writes_end_nobody_and_hold_up_nobody(
    deep_json: None,
    site: Site,
    stage: Stage,
    account: Path,
    scheduler_account: Path,
    scale: Scale,
    figure: Callable[[str], None],
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("HOSTILE_SEED", scale(test=1, accept=time.time_ns() % 10**9)))
    figure(f"HOSTILE_SEED={seed}")
    crowd = Crowd(site, stage)
    nodes = [
        *site.nodes(3, prefix="hostile", gpus=8, labels={"crowd": "hostile"}),
        *site.nodes(1, prefix=LONG_NAME, labels={"crowd": "hostile", "kubernetes.io/hostname": "long"}),
    ]
    hostile = Hostile(Random(seed), site.namespace, nodes, [*crowd.claimed, *crowd.plain])
    scheduler = stage.scheduler(
        kubeconfig=scheduler_account, leaderElect=False, releaseSeconds=1, sweepSeconds=1
    )
    accepted, wanted = Counter[str](), scale(test=110, accept=20_000)
    with History(site.cluster, site.namespace) as history:
        with Operator(account, "--no-leader-elect", log=tmp_path / "operator.log") as operator:
            while accepted.total() < wanted:
                crowd.come()
                accepted += write(site.cluster, [next(hostile) for _ in range(scale(test=200, accept=600))])
                crowd.served(within_s=PATIENCE_S)
                assert scheduler.is_running, stage.last_words()
                assert operator.process is not None
                assert operator.process.poll() is None, operator.log.read_text()[-3000:]
                crowd.go()
        # What was written stays: a process that starts now must live with all of it.
        scheduler.kill()
        scheduler.start()
        with Operator(account, "--no-leader-elect", log=tmp_path / "operator.log"):
            crowd.come()  # it takes longer than a sweep
            crowd.served(within_s=PATIENCE_S)
            assert scheduler.is_running, stage.last_words()
    figure(f"{accepted.total()} of {hostile.number} writes accepted by the API server: {dict(accepted)}")
    assert given_twice(history) == []


def write(cluster: Cluster, writes: Iterable[Write]) -> Counter[str]:
    """Send these writes, some at a time; count by kind those that the API server accepted."""

    def send(each: Write) -> str:
        try:
            cluster.api.request(each.method, each.path, each.body, content_type=each.content_type)
        except ApiError:
            return ""
        return each.kind

    with ThreadPoolExecutor(THREADS) as pool:
        return Counter(filter(None, pool.map(send, writes)))


def given_twice(history: History) -> list[str]:
    """Return the devices that two live pods got from the scheduler, unless both asked for a share."""
    found: list[str] = []
    waiting: set[str] = set()
    holders: dict[str, dict[str, bool]] = {}
    shared = {
        change.object["metadata"]["name"]
        for change in history.changes
        if change.kind == "claims" and change.object["spec"]["devices"].get("exclusivity") == "Shared"
    }
    for change in history.changes:
        if change.kind != "pods":
            continue
        uid, where = change.object["metadata"]["uid"], change.object["spec"].get("nodeName")
        if change.gone or change.object["status"].get("phase") in ENDED:
            for held in holders.values():
                held.pop(uid, None)
        elif not where:
            waiting.add(uid)
        elif uid in waiting:  # it was bound by this very change, which also set its annotations
            waiting.discard(uid)
            for device in devices_of(change):
                held = holders.setdefault(device, {})
                held[uid] = is_shared = claim_of(change) in shared
                if len(held) > 1 and not (is_shared and all(held.values())):
                    found.append(f"revision {change.revision}: {device} is held by {sorted(held)}")
    return found


def devices_of(change: Change) -> list[str]:
    """Return the devices that the gpu-scheduler gave a pod; none for pods of others."""
    if change.object["spec"]["schedulerName"] != names.SCHEDULER:
        return []
    node, _, ids = change.object["metadata"]["annotations"][names.ALLOCATED].rpartition(":")
    assert node == change.object["spec"]["nodeName"]
    return [f"{node}:{each}" for each in ids.split(",")]


def claim_of(change: Change) -> str:
    about = change.object["metadata"]["annotations"]
    named: str = about.get(names.CLAIM) or about.get(names.CLAIM_TEMPLATE, "")
    return named
