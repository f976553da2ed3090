"""One agent as a process: its rights, its ends and its costs."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from controlplane.api import Json
from controlplane.audit import Entry
from controlplane.cluster import Cluster
from gpu_orchestrator.api import names
from tests.faults.proxy import Answer, Proxy
from tests.support import rights
from tests.support.agent_fleet import REPORTS, AgentProcess, account, holding
from tests.support.scheduler_stage import Stage, pod, until

USER = f"system:serviceaccount:{names.NAMESPACE}:{names.AGENT}"
GRANTED = rights.granted("agent/role.yaml")
Right = tuple[str, str]
"""Verb and resource."""


def test_role_grants_exactly_the_rights_that_are_used(
    agent_stage: Stage, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """While a pod that was given nothing uses a device: twice, so that its event is counted."""
    cluster = agent_stage.cluster
    (node,) = agent_stage.gpu_nodes(1, gpus=8)
    body = pod("thief", nodeName=node)
    uid = cluster.api.request("POST", agent_stage.pods_path, body)["metadata"]["uid"]
    began = sum(1 for _ in cluster.audit.entries())
    with Proxy(account(cluster, node)) as proxy:
        for resource in ("nodes", "pods"):  # as a server that does not support streaming lists
            proxy.on("watch", resource, do=Answer(422, reason="Invalid"))
        with AgentProcess(
            cluster, node, tmp_path / "agent", proxy.kubeconfig, root=str(tmp_path), scanSeconds=1
        ) as agent:
            started = time.monotonic()
            with holding(agent.hardware, 3, tmp_path, uid):
                note = agent_stage.wait_event("thief", "DeviceMismatch", within_s=10)
                figure(f"mismatch → event after {time.monotonic() - started:.1f} s")
                until(lambda: devices(cluster, node)[3].get("inUseBy") == [uid], "it is reported")
            assert "GPU 3" in note
            until(lambda: agent.metric("gpu_agent_processes") == 0, "the process is gone")
            with holding(agent.hardware, 3, tmp_path, uid):
                until(lambda: agent.metric("gpu_agent_mismatch_total") == 2, "a second alarm")
                until(lambda: ("patch", "events") in sent(proxy), "the event is counted")

    def ours() -> list[Entry]:
        return [each for each in list(cluster.audit.entries())[began:] if each.user == USER]

    # The audit log records a watch when it ends.
    with suppress(AssertionError):
        until(lambda: not rights.unused(GRANTED, ours()), "every right was used")
    assert rights.unused(GRANTED, ours()) == []
    assert rights.beyond(GRANTED, ours()) == []
    assert [each for each in ours() if each.code == 403] == []


def sent(proxy: Proxy) -> set[Right]:
    return {(each.verb, each.resource) for each in proxy.requests}


def test_killed_agent_goes_on_where_it_was(agent_stage: Stage, tmp_path: Path) -> None:
    """Also while the API server is away, and after SIGTERM."""
    cluster = agent_stage.cluster
    (node,) = agent_stage.gpu_nodes(1, gpus=8)
    with AgentProcess(cluster, node, tmp_path / "agent", heartbeatSeconds=1, scanSeconds=0.5) as agent:
        agent.hardware.harm(2, temperature_c=99)
        until(lambda: device(cluster, node, 2) == "Unhealthy", "it is hot")
        agent.process.kill()
        agent.hardware.mend(2)
        agent.process.start()
        until(lambda: renewed(cluster, node), "it lives")
        assert device(cluster, node, 2) == "Unhealthy", "until its checks have passed for a while"
        server = cluster.parts["kube-apiserver"]
        server.stop()
        agent.hardware.harm(5, xid=79)
        until(lambda: agent.metric("gpu_agent_healthy") == 6, "metrics stay true")
        server.start()
        until(lambda: device(cluster, node, 5) == "Unhealthy", "the newest state is written")
        until(lambda: renewed(cluster, node), "it lives")
        agent.process.stop()
        assert lease(cluster, node)["holderIdentity"] == ""
        agent.process.start()
        until(lambda: lease(cluster, node)["holderIdentity"] != "", "the next takes it")


def devices(cluster: Cluster, node: str) -> list[Json]:
    found: list[Json] = cluster.api.request("GET", f"{REPORTS}/{node}")["status"]["devices"]
    return found


def device(cluster: Cluster, node: str, number: int) -> str:
    return str(devices(cluster, node)[number]["health"])


def lease(cluster: Cluster, node: str) -> dict[str, str]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/gpu-agent-{node}"
    spec: dict[str, str] = cluster.api.request("GET", path)["spec"]
    return {"holderIdentity": "", **spec}


def renewed(cluster: Cluster, node: str) -> bool:
    """Wait until the heartbeat has been renewed since now."""
    before = lease(cluster, node)["renewTime"]
    until(lambda: lease(cluster, node)["renewTime"] != before, "renewed")
    return True


def test_agent_without_devices_says_so_and_writes_nothing(agent_stage: Stage, tmp_path: Path) -> None:
    cluster = agent_stage.cluster
    (node,) = agent_stage.gpu_nodes(1, gpus=8)
    with AgentProcess(cluster, node, tmp_path / "agent", simulate="", root=str(tmp_path)) as agent:
        until(lambda: "no GPU here" in agent.process.log.read_text(), "it says so")
        assert agent.metric("gpu_agent_devices") == 0
    reports = cluster.api.request("GET", REPORTS)["items"]
    assert node not in [each["metadata"]["name"] for each in reports]


def test_agent_is_small(agent_stage: Stage, tmp_path: Path, figure: Callable[[str], None]) -> None:
    (node,) = agent_stage.gpu_nodes(1, gpus=8)
    with AgentProcess(agent_stage.cluster, node, tmp_path / "agent", scanSeconds=0.1) as agent:
        until(lambda: agent.metric("gpu_agent_scan_duration_seconds_count") >= 20, "it has looked")
        figure(f"agent with 8 GPUs: {agent.process.memory_mb:.0f} MB (60 MB allowed)")
        assert agent.process.memory_mb <= 60
