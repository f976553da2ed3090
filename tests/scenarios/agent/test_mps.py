"""An agent that keeps MPS daemons, with the stand-in for NVIDIA's control program and a real API server."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controlplane.api import ApiError
from controlplane.audit import Entry
from controlplane.cluster import Cluster
from gpu_orchestrator.api import deviceleases, mps, names
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from tests.faults.proxy import Answer, Proxy
from tests.support import mps_program, rights
from tests.support.agent_fleet import REPORTS, AgentProcess, account
from tests.support.paths import ROOT
from tests.support.scheduler_stage import Stage, until
from tests.support.workers import is_alive

USER = f"system:serviceaccount:{names.NAMESPACE}:{names.AGENT}"
SINCE = "2026-01-01T00:00:00.000000Z"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
READY = {"ready": True}
FOLDER = mps.folder_of("team", [1], 1024, 250)


@dataclass
class Site:
    cluster: Cluster
    node: str
    folder: Path

    def agent(self, **settings: Any) -> AgentProcess:
        root = str(self.folder / "host")
        return AgentProcess(self.cluster, self.node, self.folder / "agent", root=root, **settings)

    @property
    def mps(self) -> Any:
        """What the report says of MPS; None if it says nothing."""
        try:
            return self.cluster.api.request("GET", f"{REPORTS}/{self.node}").get("status", {}).get("mps")
        except ApiError:
            return None

    def reports(self, expected: Any, what: str) -> None:
        until(lambda: self.mps == expected, what)

    def give(self, agent: AgentProcess) -> None:
        """Write the Lease of device 1 as a scheduler does before it binds a pod with a shared claim."""
        ref = DeviceRef(self.node, 1, agent.hardware.uuids[1])
        made = deviceleases.shared(
            ref, [Holder("uid-a", "a", "team", 250, 1024, SINCE)], names.NAMESPACE, SINCE
        )
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **msgspec.to_builtins(made)}
        self.cluster.api.request("POST", LEASES, lease)

    def pids(self) -> list[int]:
        """Return the daemon and its server; nothing if no daemon has listened yet."""
        pipe = self.folder / "host/run/gpu-mps/owned" / FOLDER / "pipe"
        try:
            return [int((pipe / each).read_text()) for each in ("control", "server.pid")]
        except FileNotFoundError:
            return []

    def are_alive(self) -> bool:
        pids = self.pids()
        return bool(pids) and all(map(is_alive, pids))


@pytest.fixture
def site(agent_stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("PATH", mps_program.path_with(tmp_path))
    mps_program.install(tmp_path)
    cluster = agent_stage.cluster
    cluster.kubectl("apply", "-f", str(ROOT / "config/agent-mps/role.yaml"))
    (node,) = agent_stage.gpu_nodes(1, gpus=2)
    yield Site(cluster, node, tmp_path)
    cluster.kubectl("delete", "-f", str(ROOT / "config/agent-mps/role.yaml"))


def test_daemon_comes_with_the_lease_and_ends_with_the_agent(site: Site) -> None:
    with site.agent(mps=True) as agent:
        site.reports(READY, "the node can keep daemons")
        site.give(agent)
        site.reports(READY | {"folders": [FOLDER]}, "the daemon of the lease listens")
        first = site.pids()
        agent.process.kill()
        until(lambda: not any(map(is_alive, first)), "the daemon has ended with the killed agent")
    with site.agent(mps=True):
        until(site.are_alive, "a new agent has a new daemon there")
        second = site.pids()
        site.reports(READY | {"folders": [FOLDER]}, "and reports it")
        site.cluster.api.request("DELETE", f"{LEASES}/{names.device_lease(site.node, 1)}")
        site.reports(READY, "nobody needs it any more")
        assert not set(first) & set(second)
    assert not any(map(is_alive, second)), "an agent that stops ends its daemons"
    assert site.mps is None, "and has said so before"


def test_agent_that_was_displaced_ends_its_daemons_and_leaves_the_report(site: Site) -> None:
    """What the report says of daemons is about those of the other agent now."""
    with site.agent(mps=True, heartbeatSeconds=1) as agent:
        site.reports(READY, "the node can keep daemons")
        taken = {"spec": {"holderIdentity": "other"}}
        path = f"{LEASES}/gpu-agent-{site.node}"
        site.cluster.api.request("PATCH", path, taken, content_type="application/merge-patch+json")
        until(lambda: not agent.process.is_running, "it ends")
        agent.process.log.write_text("")  # how it ended
    assert site.mps == READY


def test_agent_keeps_no_daemons_unless_it_is_told_to(site: Site) -> None:
    with site.agent() as agent:
        until(lambda: agent.metric("gpu_agent_writes_total") > 0, "a report is written")
        site.give(agent)
        assert site.mps is None
        assert not (site.folder / "host/run").exists()


def test_role_of_the_overlay_grants_exactly_the_rights_that_are_used(site: Site) -> None:
    """Beside those that every agent has."""
    more = rights.granted("agent-mps/role.yaml")
    began = sum(1 for _ in site.cluster.audit.entries())
    with Proxy(account(site.cluster, site.node)) as proxy:
        proxy.on("watch", "leases", do=Answer(422, reason="Invalid"))  # a server that does not stream lists
        with site.agent(kubeconfig=proxy.kubeconfig, mps=True):
            site.reports(READY, "the node can keep daemons")
            until(lambda: watches_what_it_listed(proxy), "leases are listed and watched")

    def ours() -> list[Entry]:
        return [each for each in list(site.cluster.audit.entries())[began:] if each.user == USER]

    with suppress(AssertionError):
        until(lambda: not rights.unused(more, ours()), "every right was used")
    assert rights.unused(more, ours()) == []
    assert rights.beyond(more | rights.granted("agent/role.yaml"), ours()) == []


def watches_what_it_listed(proxy: Proxy) -> bool:
    verbs = [one.verb for one in proxy.requests if one.resource == "leases"]
    return "list" in verbs and "watch" in verbs[verbs.index("list") :]


def test_overlay_adds_what_the_daemons_take_and_nothing_else(agent_stage: Stage) -> None:
    made = agent_stage.cluster.kubectl("kustomize", str(ROOT / "config/agent-mps"))
    (daemon_set,) = [each for each in yaml.safe_load_all(made) if each["kind"] == "DaemonSet"]
    spec = daemon_set["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["args"][-1] == "--mps"
    assert {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility,compute"} in container["env"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert container["securityContext"]["capabilities"]["add"] == [
        "SETUID",
        "SETGID",
        "DAC_OVERRIDE",
        "FOWNER",
    ]
    paths = {each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    assert paths == {"/var/lib/kubelet/pod-resources", "/run/gpu-mps"}
    assert "hostIPC" not in spec
