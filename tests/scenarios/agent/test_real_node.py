"""The agent on a node with a real kubelet and containers: who really uses a device."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from controlplane.cluster import Cluster
from controlplane.realnode import machine
from controlplane.realnode.node import RealNode
from gpu_orchestrator.adapters.gpus import simulated
from tests.support.agent_fleet import REPORTS, AgentProcess
from tests.support.real_pods import python_spec
from tests.support.scheduler_stage import Stage, until

Json = dict[str, Any]
HOLD = (
    "import time; from gpu_orchestrator.adapters.gpus import memory; "
    "block = memory.visible().allocate(0, 100); block.fill(7); print('held', flush=True); time.sleep(3600)"
)
GIVEN = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpu.scheduling/visible-devices']"}}}
TWO = "2xH100:80GiB"


@pytest.fixture
def node(agent_cluster: Cluster) -> Iterator[RealNode]:
    """A node of this test's own: another set of devices on the same node would get the ids that are free."""
    if reason := machine.obstacle():
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no real node can run on this machine: {reason}")
    with agent_cluster.real_node(f"real-{uuid4().hex[:6]}") as made:
        yield made


@pytest.fixture
def agent(agent_cluster: Cluster, node: RealNode, tmp_path: Path) -> Iterator[AgentProcess]:
    socket = str(node.pod_resources)
    with AgentProcess(
        agent_cluster, node.name, tmp_path / "agent", simulate=TWO, podResourcesSocket=socket
    ) as made:
        yield made


def holding(name: str, node: RealNode, agent: AgentProcess, uuid: str = "", gpus: int = 1) -> Json:
    """Return a pod that takes memory of the device it was given, or of another.

    It sees the host's processes, so that it writes down its number as the host knows it: a real driver knows
    that number, simulated devices only what the process says."""
    env: list[Json] = [
        {"name": simulated.FOLDER_VARIABLE, "value": str(agent.hardware.folder)},
        {"name": simulated.VISIBLE_VARIABLE, **({"value": uuid} if uuid else GIVEN)},
    ]
    spec = python_spec(node, "-c", HOLD, env=env, mounts=[agent.hardware.folder])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"gpu.scheduling/gpus": str(gpus)}},
        "spec": {
            **spec,
            **node.pin,
            "schedulerName": "gpu-scheduler",
            "hostPID": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
        },
    }


def create(stage: Stage, made: Json) -> Json:
    return stage.cluster.api.request("POST", stage.pods_path, made)


def held(agent: AgentProcess, uuid: str) -> bool:
    """Return True if a process has taken memory of the device."""
    return any(each.name.count("-") == 2 for each in (agent.hardware.folder / uuid).iterdir())


def users(cluster: Cluster, node: str) -> dict[int, list[str]]:
    devices = cluster.api.request("GET", f"{REPORTS}/{node}")["status"]["devices"]
    return {each["id"]: each.get("inUseBy", []) for each in devices}


def test_device_stays_with_the_process_of_a_pod_that_was_deleted_by_force(
    agent_stage: Stage, node: RealNode, agent: AgentProcess, figure: Callable[[str], None]
) -> None:
    cluster = agent_stage.cluster
    agent_stage.scheduler(releaseSeconds=1, agentSeconds=1)
    uid = create(agent_stage, holding("train", node, agent))["metadata"]["uid"]
    where = agent_stage.wait_bound("train")["train"]
    device = int(where.rpartition(":")[2])
    uuid = agent.hardware.uuids[device]
    until(lambda: held(agent, uuid), "the container holds the device")
    started = time.monotonic()
    until(lambda: users(cluster, node.name) == {device: [uid], 1 - device: []}, "joined by its cgroup")
    figure(f"a container's process is reported as its pod's after {time.monotonic() - started:.1f} s")

    node.kubelet.pause()  # so that nobody ends the container
    try:
        agent_stage.delete("train", force=True)
        until(lambda: "train" not in agent_stage.pods(), "the pod is gone")
        create(agent_stage, holding("next", node, agent, gpus=2))
        agent_stage.wait_event("next", "FailedScheduling")
        time.sleep(8)  # without the agent's word, the scheduler would have freed it after a second
        assert held(agent, uuid)
        assert users(cluster, node.name)[device] == [uid]
        assert "next" not in agent_stage.bound()
    finally:
        node.kubelet.resume()
    assert agent_stage.wait_bound("next") == {"next": f"{node.name}:0,1"}
    assert agent.metric("gpu_agent_mismatch_total") == 0


def test_process_on_a_device_that_its_pod_was_not_given(
    agent_stage: Stage, node: RealNode, agent: AgentProcess, figure: Callable[[str], None]
) -> None:
    wrong = agent.hardware.uuids[1]
    made = holding("thief", node, agent, uuid=wrong)
    made["metadata"]["annotations"] = {}
    del made["spec"]["schedulerName"]
    uid = create(agent_stage, made)["metadata"]["uid"]
    until(lambda: held(agent, wrong), "the container holds the device")
    started = time.monotonic()
    note = agent_stage.wait_event("thief", "DeviceMismatch", within_s=10)
    figure(f"mismatch → event after {time.monotonic() - started:.1f} s")
    assert f"GPU 1 ({wrong}) of {node.name}, which it was not given" in note
    assert agent.metric("gpu_agent_mismatch_total") == 1
    until(lambda: users(agent_stage.cluster, node.name) == {0: [], 1: [uid]}, "it is reported")
    create(agent_stage, holding("two", node, agent, gpus=2))
    agent_stage.scheduler(releaseSeconds=1)  # now: a running one may see the pod before the report
    agent_stage.wait_event("two", "FailedScheduling")
    agent_stage.delete("thief", force=True)
    agent_stage.wait_bound("two")
