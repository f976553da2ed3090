"""The agent on a node with a real kubelet and containers: who really uses a device."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.api import ApiError
from controlplane.cluster import Cluster
from controlplane.realnode.node import RealNode
from gpu_orchestrator.adapters.gpus import simulated
from gpu_orchestrator.api import names
from tests.support.agent_fleet import REPORTS, AgentProcess
from tests.support.real_pods import python_spec
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, until

Json = dict[str, Any]
HOLD = (
    "import time; from gpu_orchestrator.adapters.gpus import memory; "
    "block = memory.visible().allocate(0, 100); block.fill(7); print('held', flush=True); time.sleep(3600)"
)
GIVEN = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpu.scheduling/visible-devices']"}}}
TWO = "2xH100:80GiB"


@pytest.fixture(scope="module")
def cluster(agent_cluster: Cluster) -> Cluster:
    """The one that the real node joins."""
    return agent_cluster


@pytest.fixture(scope="module")
def shared_agent(
    real_node: RealNode, tmp_path_factory: pytest.TempPathFactory, scale: Scale
) -> Iterator[AgentProcess]:
    with AgentProcess(
        real_node.cluster,
        real_node.name,
        tmp_path_factory.mktemp("agent"),
        simulate=TWO,
        podResourcesSocket=str(real_node.pod_resources),
        scanSeconds=scale(test=1, accept=5),
    ) as made:
        yield made


@pytest.fixture
def agent(shared_agent: AgentProcess, real_node: RealNode) -> AgentProcess:
    """The agent, when it has reported that nobody uses the devices."""
    until(lambda: users(real_node) == {0: [], 1: []}, "all devices are free")
    return shared_agent


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


def users(node: RealNode) -> dict[int, list[str]]:
    try:
        report = node.cluster.api.request("GET", f"{REPORTS}/{node.name}")
    except ApiError:
        return {}
    return {each["id"]: each.get("inUseBy", []) for each in report.get("status", {}).get("devices", [])}


def test_device_stays_with_the_process_of_a_pod_that_was_deleted_by_force(
    agent_stage: Stage, real_node: RealNode, agent: AgentProcess, figure: Callable[[str], None]
) -> None:
    agent_stage.scheduler(releaseSeconds=1, agentSeconds=1)
    uid = create(agent_stage, holding("train", real_node, agent))["metadata"]["uid"]
    where = agent_stage.wait_bound("train")["train"]
    device = int(where.rpartition(":")[2])
    uuid = agent.hardware.uuids[device]
    until(lambda: held(agent, uuid), "the container holds the device")
    started = time.monotonic()
    until(lambda: users(real_node) == {device: [uid], 1 - device: []}, "joined by its cgroup")
    figure(f"a container's process is reported as its pod's after {time.monotonic() - started:.1f} s")

    real_node.kubelet.pause()  # so that nobody ends the container
    try:
        agent_stage.delete("train", force=True)
        until(lambda: "train" not in agent_stage.pods(), "the pod is gone")
        create(agent_stage, holding("next", real_node, agent, gpus=2))
        agent_stage.wait_event("next", "FailedScheduling")
        agent.wait_for_looks(4)  # without the agent's word, the scheduler would have freed it after a second
        assert held(agent, uuid)
        assert users(real_node)[device] == [uid]
        assert "next" not in agent_stage.bound()
    finally:
        real_node.kubelet.resume()
    assert agent_stage.wait_bound("next") == {"next": f"{real_node.name}:0,1"}
    assert agent.metric("gpu_agent_mismatch_total") == 0
    agent_stage.delete("next")
    first, second = (names.device_lease(real_node.name, at) for at in range(2))
    until(lambda: not {first, second} & agent_stage.leases().keys(), "its devices are free")


def test_process_on_a_device_that_its_pod_was_not_given(
    agent_stage: Stage, real_node: RealNode, agent: AgentProcess, figure: Callable[[str], None]
) -> None:
    wrong = agent.hardware.uuids[1]
    before = agent.metric("gpu_agent_mismatch_total")
    made = holding("thief", real_node, agent, uuid=wrong)
    made["metadata"]["annotations"] = {}
    del made["spec"]["schedulerName"]
    uid = create(agent_stage, made)["metadata"]["uid"]
    until(lambda: held(agent, wrong), "the container holds the device")
    started = time.monotonic()
    note = agent_stage.wait_event("thief", "DeviceMismatch", within_s=10)
    figure(f"mismatch → event after {time.monotonic() - started:.1f} s")
    assert f"GPU 1 ({wrong}) of {real_node.name}, which it was not given" in note
    assert agent.metric("gpu_agent_mismatch_total") == before + 1
    until(lambda: users(real_node) == {0: [], 1: [uid]}, "it is reported")
    create(agent_stage, holding("two", real_node, agent, gpus=2))
    agent_stage.scheduler(releaseSeconds=1)  # now: a running one may see the pod before the report
    agent_stage.wait_event("two", "FailedScheduling")
    agent_stage.delete("thief", force=True)
    agent_stage.wait_bound("two")
