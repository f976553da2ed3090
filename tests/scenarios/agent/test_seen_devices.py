"""On a node with a real kubelet, with webhook, scheduler and agent: what containers see is what was decided,
and what a device plugin gave to others is left alone."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from controlplane.cluster import Cluster
from controlplane.realnode.node import RealNode
from gpu_orchestrator.api import names
from tests.support import device_plugin, installation
from tests.support.agent_fleet import REPORTS, AgentProcess
from tests.support.real_pods import container, pod
from tests.support.scheduler_stage import CLAIMS, REFUSE, Stage, claim, example, until

Json = dict[str, Any]
THREE = "3xH100:80GiB"
RESOURCE = "nvidia.com/gpu"
SHOWN = "that is all"
SHOW = ("env", f"echo {SHOWN}")


@dataclass(frozen=True)
class Site:
    """A namespace, and the node that its pods run on."""

    stage: Stage
    node: RealNode
    agent: AgentProcess

    @property
    def cluster(self) -> Cluster:
        return self.stage.cluster

    def create(self, *objects: Json) -> Json:
        """Create claims and pods; return the last. The pods are led to the node, but keep what they say."""
        made: Json = {}
        for each in objects:
            is_pod = each["kind"] == "Pod"
            path = self.stage.pods_path if is_pod else CLAIMS.format(self.stage.namespace)
            made = self.cluster.api.request("POST", path, _pinned(each, self.node) if is_pod else each)
        return made

    def devices(self) -> list[Json]:
        """Return what the agent has reported."""
        report = self.cluster.api.request("GET", f"{REPORTS}/{self.node.name}")
        found: list[Json] = report.get("status", {}).get("devices", [])
        return found

    def leases(self) -> dict[int, Json]:
        """Return the leases of the node's devices, by device."""
        start = names.device_lease(self.node.name, 0)[:-1]
        found = self.stage.leases().items()
        return {int(name.removeprefix(start)): lease for name, lease in found if name.startswith(start)}

    def printed(self, name: str, *, by: str, ending: str = "\n") -> str:
        """Return what a container has printed, as soon as that ends so."""
        until(lambda: _have_started(self.stage.pod(name)), f"the containers of {name} have started")

        def whole() -> str | None:
            text = self.cluster.kubectl("logs", name, "-n", self.stage.namespace, "-c", by)
            return text if text.endswith(ending) else None

        return until(whole, f"{by} of {name} has printed all")

    def visible(self, name: str, by: str) -> dict[str, str]:
        """Return the variables that tell a container its devices, as it has printed them."""
        printed = self.printed(name, by=by, ending=f"{SHOWN}\n")
        pairs = (line.partition("=") for line in printed.splitlines())
        return {key: value for key, _, value in pairs if key.endswith("VISIBLE_DEVICES")}


def _pinned(made: Json, node: RealNode) -> Json:
    spec = made["spec"]
    tolerations = [*spec.get("tolerations", []), *node.pin["tolerations"]]
    return {**made, "spec": {**spec, **node.pin, "tolerations": tolerations}}


def _have_started(made: Json) -> bool:
    found = made["status"].get("containerStatuses", [])
    return bool(found) and all(each["state"].keys() & {"running", "terminated"} for each in found)


@pytest.fixture(scope="module")
def cluster(agent_cluster: Cluster) -> Cluster:
    """The one that the real node joins."""
    return agent_cluster


@pytest.fixture(scope="module")
def site(real_node: RealNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cluster, folder = real_node.cluster, tmp_path_factory.mktemp("site")
    name = f"test-{uuid4().hex[:8]}"
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    with ExitStack() as stack:
        stack.enter_context(installation.webhook_in(cluster, folder, name))
        agent = AgentProcess(
            cluster,
            real_node.name,
            folder / "agent",
            simulate=THREE,
            podResourcesSocket=str(real_node.pod_resources),
            scanSeconds=1,
        )
        stage = Stage(cluster, name, folder)
        settings: Json = {**REFUSE, "agentSeconds": 2}  # twice what the agent here takes to notice a process
        stack.enter_context(agent)
        stack.callback(stage.close)
        stage.scheduler(**settings)
        yield Site(stage, real_node, agent)
    cluster.api.request("DELETE", f"/api/v1/namespaces/{name}")


def test_containers_see_the_device_that_was_decided_and_no_other(site: Site) -> None:
    """The shipped example, with two more containers that say nothing of devices, or want all of them."""
    wanted, made = example("claimed-pod.yaml")
    made["spec"]["containers"][0]["imagePullPolicy"] = "IfNotPresent"
    made["spec"]["containers"].append(container("beside", *SHOW))
    greedy = [{"name": each, "value": "all"} for each in names.DEVICE_ENV]
    made["spec"]["initContainers"] = [container("before", *SHOW, env=greedy)]
    uid = site.create(wanted, made)["metadata"]["uid"]

    where = site.stage.wait_bound("test-pod")["test-pod"]
    node, _, device = where.rpartition(":")
    uuid = site.agent.hardware.uuids[int(device)]
    assert node == site.node.name
    (lease,) = site.leases().values()
    assert lease["metadata"]["name"] == names.device_lease(node, int(device))
    assert lease["metadata"]["annotations"][names.LEASE_UUID] == uuid
    assert lease["spec"]["holderIdentity"] == uid
    status = until(lambda: _bound(site.stage.claim("test-claim")), "the claim tells it")
    assert (status["deviceUUIDs"], status["podUID"]) == ([uuid], uid)
    assert [each["uuid"] for each in site.devices() if each["id"] == int(device)] == [uuid]

    assert site.printed("test-pod", by="test") == f"CUDA_VISIBLE_DEVICES={uuid}\n"
    assert site.visible("test-pod", "before") == dict.fromkeys(names.DEVICE_ENV, uuid)
    assert site.visible("test-pod", "beside") == dict.fromkeys(names.DEVICE_ENV, uuid)
    (scheduler,) = site.stage.running
    assert "does not fit its type" not in scheduler.log.read_text(), (
        "objects of a real kubelet are understood"
    )
    site.stage.delete("test-pod", force=True)


def _bound(made: Json) -> Json | None:
    status: Json = made.get("status", {})
    return status if status.get("phase") == "Bound" else None


def test_devices_that_a_device_plugin_gave_are_left_alone(site: Site, figure: Callable[[str], None]) -> None:
    stage, uuids = site.stage, site.agent.hardware.uuids
    until(lambda: not site.leases(), "all devices are free")
    with device_plugin.offering(site.node.device_plugins, RESOURCE, uuids, lambda: _offered(site) == "3"):
        started = time.monotonic()
        uid = site.create(plugin_pod("other"))["metadata"]["uid"]
        used = until(lambda: in_use(site), "the agent reports the plugin's pod")
        figure(f"a device plugin's pod is reported {time.monotonic() - started:.1f} s after its creation")
        ((device, users),) = used.items()
        assert users == [uid]
        assert site.visible("other", "main") == {names.NVIDIA_DEVICES_ENV: uuids[device]}

        site.create(claim("all", 3), claimed_pod("all"))
        stage.wait_event("all", "1 has fewer than 3 free GPUs")
        site.create(claim("rest", 2), claimed_pod("rest"))
        rest = ",".join(str(each) for each in range(3) if each != device)
        assert stage.wait_bound("rest") == {"rest": f"{site.node.name}:{rest}"}
        assert "all" not in stage.bound()

        site.node.kubelet.pause()  # so that nobody ends the containers
        try:
            stage.delete("other", "rest", force=True)
            until(lambda: stage.bound() == {}, "both pods are gone")
            site.agent.wait_for_looks(2)
            assert in_use(site) == {device: [uid]}, "its container lives"
            assert "all" not in stage.bound()
        finally:
            site.node.kubelet.resume()
        assert stage.wait_bound("all") == {"all": f"{site.node.name}:0,1,2"}
    stage.delete("all", force=True)


def test_restarts_of_kubelet_and_containerd_free_no_device(site: Site) -> None:
    """A new kubelet first knows no pod, and no plugin: what it gave before stays given."""
    stage, uuids = site.stage, site.agent.hardware.uuids
    until(lambda: not site.leases(), "all devices are free")
    with device_plugin.offering(site.node.device_plugins, RESOURCE, uuids, lambda: _offered(site) == "3"):
        uid = site.create(plugin_pod("kept"))["metadata"]["uid"]
        used = until(lambda: in_use(site), "the agent reports the plugin's pod")
        assert list(used.values()) == [[uid]]
        until(lambda: _have_started(stage.pod("kept")), "its container runs")
        site.create(claim("three", 3), claimed_pod("three"))
        stage.wait_event("three", "1 has fewer than 3 free GPUs")
        for part in (site.node.kubelet, site.node.containerd):
            part.kill()
            site.agent.wait_for_looks(2)
            assert in_use(site) == used, f"{part.name} is away"
            part.start()
            for _ in range(4):
                site.agent.wait_for_looks(1)
                assert in_use(site) == used, f"{part.name} has started again"
            site.printed("kept", by="main")
        assert "three" not in stage.bound()
        stage.delete("kept")
        assert stage.wait_bound("three") == {"three": f"{site.node.name}:0,1,2"}


def plugin_pod(name: str) -> Json:
    """Return a pod for kube-scheduler that gets a device from the plugin."""
    return pod(name, container("main", *SHOW, "sleep infinity", resources={"limits": {RESOURCE: "1"}}))


def claimed_pod(name: str) -> Json:
    """Return a pod with the claim of the same name. The webhook fills in the rest."""
    made = pod(name, container("main"))
    made["metadata"]["annotations"] = {names.CLAIM: name}
    return made


def in_use(site: Site) -> dict[int, list[str]]:
    return {each["id"]: users for each in site.devices() if (users := each.get("inUseBy"))}


def _offered(site: Site) -> str | None:
    node = site.cluster.api.request("GET", f"/api/v1/nodes/{site.node.name}")
    found: str | None = node["status"].get("allocatable", {}).get(RESOURCE)
    return found
