"""`gpu-orchestrator defrag` on a real control plane: it names the moves that make room, and makes them, with
the rights of the role in the examples."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from controlplane.api import Json
from gpu_orchestrator.api import admission, names
from tests.support import installation
from tests.support.command_line import COMMAND, in_this_process
from tests.support.scheduler_stage import SYSTEM, Stage, example, pod, until
from tests.support.workers import compiled

MOVABLE = {"gpu.scheduling/movable": "true"}
Defrag = Callable[..., CompletedProcess[str]]


@pytest.fixture
def user(stage: Stage) -> Path:
    """A kubeconfig of somebody with the rights in the example, the Role in the namespace of these leases."""
    name = f"{stage.namespace}-user"
    whole, leases = example("defrag/role.yaml")
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}]
    group = "rbac.authorization.k8s.io"
    whole["metadata"] = {"name": name}
    leases["metadata"] = {"name": name, "namespace": stage.namespace}
    made = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": subjects[0]},
        whole,
        leases,
        *(
            {
                "apiVersion": f"{group}/v1",
                "kind": f"{role['kind']}Binding",
                "metadata": role["metadata"],
                "roleRef": {"apiGroup": group, "kind": role["kind"], "name": name},
                "subjects": subjects,
            }
            for role in (whole, leases)
        ),
    ]
    for each in made:
        installation.create(stage.cluster, each)
    installation.await_rights(stage.cluster, made)
    return stage.cluster.service_account_kubeconfig(SYSTEM, name)


@pytest.fixture
def words(stage: Stage, user: Path) -> list[str]:
    where = ["--scheduler-name", stage.scheduler_name, "--lease-namespace", stage.namespace]
    return ["defrag", "--kubeconfig", str(user), "--selector", f"stage={stage.namespace}", *where]


@pytest.fixture
def defrag(words: list[str], tmp_path: Path) -> Iterator[Defrag]:
    def run(*more: str) -> CompletedProcess[str]:
        done = in_this_process([*words, *more], tmp_path, os.environ)
        assert "Traceback" not in done.stderr
        return done

    return run  # type: ignore[return-value]


def replica_set(stage: Stage, name: str, count: int, gpus: int, **annotations: str) -> None:
    """Create pods that a controller makes again, as the webhook would have filled them in."""
    made = pod(name, gpus=gpus, annotations=annotations, schedulerName=stage.scheduler_name)
    made["metadata"] = {"labels": {"app": name}, "annotations": made["metadata"]["annotations"]}
    made["spec"] |= {"nodeSelector": {"stage": stage.namespace}, "terminationGracePeriodSeconds": 1}
    template = admission.filled({key: made[key] for key in ("metadata", "spec")}, 1000 * gpus)
    body: Json = {
        "metadata": {"name": name},
        "spec": {"replicas": count, "selector": {"matchLabels": {"app": name}}, "template": template},
    }
    stage.cluster.api.request("POST", f"/apis/apps/v1/namespaces/{stage.namespace}/replicasets", body)
    until(lambda: len(stage.pods()) >= count, "the pods are there")


def scattered(stage: Stage, **annotations: str) -> tuple[str, str]:
    """Return two nodes with four GPUs: one GPU of the first is held by a pod of a controller, two of the
    second by a pod without one."""
    (first,) = stage.gpu_nodes(1, gpus=4, prefix=f"{stage.namespace}-a")
    stage.scheduler(releaseSeconds=0)
    replica_set(stage, "service", 1, 1, **annotations)
    until(lambda: len(stage.bound()) == 1, "it is bound")
    (second,) = stage.gpu_nodes(1, gpus=4, prefix=f"{stage.namespace}-b")
    stage.create(pod("kept", gpus=2))
    stage.wait_bound("kept")
    return first, second


def is_cordoned(stage: Stage, node: str) -> bool:
    found = stage.cluster.api.request("GET", f"/api/v1/nodes/{node}")
    assert (names.CLOSED_UNTIL in found["metadata"].get("annotations", {})) == bool(
        found["spec"].get("unschedulable")
    )
    return bool(found["spec"].get("unschedulable"))


def test_pod_is_moved_and_the_one_that_waits_gets_its_room(stage: Stage, defrag: Defrag) -> None:
    first, second = scattered(stage, **MOVABLE)
    stage.create(pod("large", gpus=4))
    stage.wait_event("large", "FailedScheduling")
    before = {name: each["metadata"]["uid"] for name, each in stage.pods().items()}
    (service,) = before.keys() - {"kept", "large"}

    planned = defrag("--gpus", "4", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert f"room for 1 pod with 4 GPUs on {first} if 1 pod moves:" in planned.stdout
    assert f"{stage.namespace}/{service}  {first}  {second}" in " ".join(planned.stdout.split(" "))
    asked = defrag("--pod", f"{stage.namespace}/large", "--json")
    [move] = json.loads(asked.stdout)["moves"]
    assert (move["pod"], move["from"], move["to"]) == (f"{stage.namespace}/{service}", first, second)
    assert {name: each["metadata"]["uid"] for name, each in stage.pods().items()} == before

    done = defrag("--pod", f"{stage.namespace}/large", "--apply")
    assert done.returncode == 0, done.stderr
    assert f"there is room on {first}" in done.stderr
    bound = stage.wait_bound("large", "kept")
    assert bound["large"].startswith(f"{first}:")
    again = until(lambda: stage.bound().keys() - {"kept", "large"}, "it runs again")
    assert stage.bound()[again.pop()].startswith(f"{second}:")
    assert not is_cordoned(stage, first)
    assert stage.holds_exactly()


def test_pod_whose_owner_does_not_allow_it_stays(stage: Stage, defrag: Defrag) -> None:
    scattered(stage)
    answer = defrag("--gpus", "4", "--apply")
    assert answer.returncode == 1
    assert "no moves make room: on 2 nodes what is in the way may not be moved" in answer.stdout
    assert 'their owners do not allow it (annotation gpu.scheduling/movable: "true")' in answer.stdout
    assert len(stage.bound()) == 2


def test_budget_stops_a_move_before_anything_is_changed(stage: Stage, defrag: Defrag) -> None:
    first, _ = scattered(stage, **MOVABLE)
    budgets = f"/apis/policy/v1/namespaces/{stage.namespace}/poddisruptionbudgets"
    spec: Json = {"minAvailable": 1, "selector": {"matchLabels": {"app": "service"}}}
    stage.cluster.api.request("POST", budgets, {"metadata": {"name": "keep"}, "spec": spec})
    until(lambda: stage.cluster.api.request("GET", f"{budgets}/keep").get("status"), "the budget counts")
    answer = defrag("--gpus", "4", "--apply")
    assert answer.returncode == 1
    assert f"disruption budget {stage.namespace}/keep forbids it" in answer.stdout
    assert not is_cordoned(stage, first)
    assert len(stage.bound()) == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_nodes_are_opened_when_it_is_ended(
    stage: Stage, words: list[str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """The pod that is evicted takes its time, and meanwhile the user changes their mind."""
    first = stuck(stage)
    running = start(words, tmp_path)
    until(lambda: is_cordoned(stage, first), "the node is cordoned")
    until(lambda: any("deletionTimestamp" in each["metadata"] for each in stage.pods().values()), "evicted")
    running.send_signal(number)
    assert running.wait(30) == code
    assert not is_cordoned(stage, first)


def test_node_left_by_a_run_that_was_killed_is_opened_by_the_next(
    stage: Stage, words: list[str], defrag: Defrag, tmp_path: Path
) -> None:
    first = stuck(stage)
    running = start(words, tmp_path)
    until(lambda: is_cordoned(stage, first), "the node is cordoned")
    running.kill()
    running.wait()
    assert is_cordoned(stage, first)
    past = {"metadata": {"annotations": {names.CLOSED_UNTIL: "2026-01-01T00:00:00Z"}}}
    path, merge = f"/api/v1/nodes/{first}", "application/merge-patch+json"
    stage.cluster.api.request("PATCH", path, past, content_type=merge)
    assert f"kubectl uncordon {first}" in defrag("--gpus", "1").stderr
    assert f"{first}: open again" in defrag("--gpus", "1", "--apply").stderr
    assert not is_cordoned(stage, first)


def stuck(stage: Stage) -> str:
    """Return a node that is to be cleared of a pod that a finalizer keeps."""
    first, _ = scattered(stage, **MOVABLE)
    (service,) = stage.bound().keys() - {"kept"}
    kept: Any = {"metadata": {"finalizers": ["example.com/slow"]}}
    merge = "application/merge-patch+json"
    stage.cluster.api.request("PATCH", f"{stage.pods_path}/{service}", kept, content_type=merge)
    return first


def start(words: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "defrag.log").open("wb") as log:
        return subprocess.Popen(
            [COMMAND, *words, "--gpus", "4", "--apply"], env=compiled(), stdout=log, stderr=log
        )
