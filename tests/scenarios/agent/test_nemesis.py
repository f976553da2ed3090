"""Agents that are killed at any moment, while somebody deletes and forges what they wrote and their devices
fall ill: what they report in the end is true, and belongs to the Node."""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from controlplane.api import Api, ApiError
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.agent import capacity, publisher
from tests.faults.proxy import Call, Cut, DropAnswer, Fault, Proxy
from tests.support.agent_fleet import REPORTS, Fleet, account, holding
from tests.support.paths import ROOT
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, pod, until

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/gpu-agent-"
LONG_S = 3.0
"""Long enough for an agent to make again what was deleted."""
QUICK: Json = {
    "scan_seconds": 0.2,
    "recovery_seconds": 1.0,
    "longest_recovery_seconds": 2.0,
    "heartbeat_seconds": 1.0,
    "refresh_seconds": 5.0,
}


@dataclass
class Site:
    """One node, its agent, and what is wrong with its devices."""

    fleet: Fleet
    node: str
    is_running: bool = False
    ill: set[int] = field(default_factory=set)
    settings: Json = field(default_factory=dict)

    @property
    def api(self) -> Api:
        return self.fleet.cluster.api

    def start(self) -> None:
        if not self.is_running:
            self.fleet.start(self.node, **QUICK, **self.settings)
            self.is_running = True

    def kill(self) -> None:
        if self.is_running:
            self.fleet.kill(self.node)
            self.is_running = False

    def harm(self, device: int) -> None:
        self.fleet.hardware[self.node].harm(device, xid=79, problem="the driver reported XID 79")
        self.ill.add(device)

    def mend(self, device: int) -> None:
        self.fleet.hardware[self.node].mend(device)
        self.ill.discard(device)

    def delete(self, path: str) -> None:
        with suppress(ApiError):
            self.api.request("DELETE", path)

    def replace_node(self, pause_s: float) -> None:
        """Let the Node be gone for a while, with all that belongs to it, for which the garbage collector
        would take half a minute. The token of the agent's pod names the Node that was."""
        made = self.api.request("GET", self.node_path)
        for path in (self.node_path, self.report_path, LEASES + self.node):
            self.delete(path)
        time.sleep(pause_s)
        self.kill()
        kept = {name: made["metadata"].get(name) for name in ("name", "labels", "annotations")}
        self.api.request("POST", "/api/v1/nodes", {"metadata": kept, "spec": made["spec"]})

    def forge(self, path: str, status: Json) -> None:
        with suppress(ApiError):
            self.api.request("PATCH", f"{path}/status", {"status": status}, content_type=MERGE)

    @property
    def node_path(self) -> str:
        return f"/api/v1/nodes/{self.node}"

    @property
    def report_path(self) -> str:
        return f"{REPORTS}/{self.node}"

    def deeds(self, rng: random.Random) -> list[Callable[[], None]]:
        """Return what may happen next."""
        device, wrong = rng.randrange(2), {names.MILLIGPU: "77"}
        return [
            *[self.kill, self.start] * 3,
            partial(self.harm, device),
            partial(self.mend, device),
            partial(self.delete, self.report_path),
            partial(self.delete, LEASES + self.node),
            partial(self.replace_node, rng.random()),
            partial(self.forge, self.report_path, {"devices": []}),
            partial(self.forge, self.node_path, {"capacity": wrong, "allocatable": wrong}),
        ]

    def untrue(self) -> list[str]:
        """Return what the API server has that is not so."""
        try:
            node, report, lease = map(self.found, (self.node_path, self.report_path, LEASES + self.node))
        except ApiError as error:
            return [str(error)]
        devices = report.get("status", {}).get("devices", [])
        shown = {each["id"]: (each["uuid"], each["health"]) for each in devices}
        true = {
            at: (uuid, "Unhealthy" if at in self.ill else "Healthy")
            for at, uuid in enumerate(self.fleet.hardware[self.node].uuids)
        }
        milligpu = node.get("status", {}).get("allocatable", {}).get(names.MILLIGPU)
        owners = [each["metadata"].get("ownerReferences", [{}])[0].get("uid") for each in (report, lease)]
        checks = {
            f"devices {shown}": shown == true,
            f"capacity {milligpu}": milligpu == {0: "2k", 1: "1k", 2: "0"}[len(self.ill)],
            f"holder {lease['spec']}": lease["spec"].get("holderIdentity") == f"agent-{self.node}",
            f"owners {owners}": set(owners) == {node["metadata"]["uid"]},
        }
        return [what for what, is_true in checks.items() if not is_true]

    def found(self, path: str) -> Json:
        return self.api.request("GET", path)


def test_what_is_reported_in_the_end_is_true(
    fleet: Fleet,
    agent_stage: Stage,
    scale: Scale,
    figure: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, pause in ((publisher, "CHECK_S"), (publisher, "EVERY_S"), (capacity, "EVERY_S")):
        monkeypatch.setattr(module, pause, 1.0)
    seed = random.SystemRandom().randrange(1_000_000)
    rng, deeds = random.Random(seed), scale(test=25, accept=600)
    sites = [Site(fleet, node) for node in agent_stage.gpu_nodes(2, gpus=2)]
    for site in sites:
        site.start()
    until(lambda: not any(site.untrue() for site in sites), "both have reported")
    for _ in range(deeds):
        rng.choice(rng.choice(sites).deeds(rng))()
        time.sleep(rng.random() * 0.3)
    sites[0].start()
    sites[0].replace_node(LONG_S)
    started = time.monotonic()
    for site in sites:
        assert not (site.is_running and fleet.has_ended(site.node)), f"seed {seed}"
        site.start()
    with suppress(AssertionError):
        until(lambda: not any(site.untrue() for site in sites), "all is true")
    assert [site.untrue() for site in sites] == [[], []], f"seed {seed}"
    figure(f"{deeds} deeds, seed {seed}: all true after {time.monotonic() - started:.1f} s")


Moment = Literal["request", "answer", "done"]
MOMENTS: dict[Moment, Fault | None] = {"request": Cut(), "answer": DropAnswer(), "done": None}
WRITES = (
    ("create", "gpunodestatuses"),
    ("patch", "gpunodestatuses/status"),
    ("create", "leases"),
    ("patch", "leases"),
    ("patch", "nodes/status"),
    ("create", "events"),
    ("patch", "nodes"),
)


def test_kill_at_every_write_leaves_the_truth(
    fleet: Fleet, agent_stage: Stage, tmp_path: Path, scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill before the request is forwarded, after it is applied but not answered, and after the answer. Small
    scale: at the second moment. The role for the taint is that of the document."""
    moments: list[Moment] = scale(test=["answer"], accept=list(MOMENTS))
    for module, pause in ((publisher, "CHECK_S"), (publisher, "EVERY_S"), (capacity, "EVERY_S")):
        monkeypatch.setattr(module, pause, 1.0)
    (role,) = re.findall(r"```yaml\n(.*?-agent-taint.*?)```", (ROOT / "docs/agent.md").read_text(), re.DOTALL)
    (tmp_path / "role.yaml").write_text(role)
    fleet.cluster.kubectl("apply", "-f", str(tmp_path / "role.yaml"))
    (node,) = agent_stage.gpu_nodes(1, gpus=2)
    with Proxy(account(fleet.cluster, node)) as proxy:
        more: Json = {"kubeconfig": proxy.kubeconfig, "root": str(tmp_path), "taint_on_mismatch": True}
        site = Site(fleet, node, settings=more)
        site.start()
        until(lambda: not site.untrue(), "it has reported")
        for number, (write, moment) in enumerate((write, moment) for write in WRITES for moment in moments):
            site.kill()
            proxy.on(*write, do=Call(lambda _: site.kill(), at=moment, then=MOMENTS[moment]))
            with ExitStack() as stack:
                if write[1] in ("events", "nodes"):
                    stack.enter_context(thief(site, agent_stage, f"thief-{number}", tmp_path))
                provoke(site, write)
                site.start()
                until(lambda: not site.is_running, f"killed at {write}, {moment}")
                proxy.heal()
                site.start()
                if write[1] in ("events", "nodes"):
                    agent_stage.wait_event(f"thief-{number}", "DeviceMismatch")
                    until(lambda: is_tainted(site), "the node is tainted")
            until(lambda: not site.untrue() and not is_tainted(site), f"true after {write}, {moment}")
    fleet.cluster.kubectl("delete", "-f", str(tmp_path / "role.yaml"))


def provoke(site: Site, write: tuple[str, str]) -> None:
    """Let the next agent have a reason for this write."""
    match write:
        case ("create", "gpunodestatuses"):
            site.delete(site.report_path)
        case ("create", "leases"):
            site.delete(LEASES + site.node)
        case ("patch", "nodes/status"):
            (site.mend if 1 in site.ill else site.harm)(1)


@contextmanager
def thief(site: Site, stage: Stage, name: str, root: Path) -> Iterator[None]:
    """Run a pod on the node with a process on a device that it was not given."""
    body = pod(name, nodeName=site.node)
    uid = site.api.request("POST", stage.pods_path, body)["metadata"]["uid"]
    with holding(site.fleet.hardware[site.node], 0, root, uid):
        yield


def is_tainted(site: Site) -> bool:
    taints = site.found(site.node_path)["spec"].get("taints", [])
    return names.MISMATCH_TAINT in {each["key"] for each in taints}
