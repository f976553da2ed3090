"""Many real agents in one process: each with a token of its own node and simulated devices in its own folder.

An agent as a process of its own is `AgentProcess`. Both are the shipped ServiceAccount at a real API server.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from prometheus_client import CollectorRegistry

from controlplane import kubeconfig
from controlplane.cluster import Cluster, free_port
from controlplane.process import Process
from gpu_orchestrator.adapters.gpus import find
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.agent import run
from gpu_orchestrator.apps.agent.settings import Settings
from tests.support import scrapes, warm
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.scheduler_stage import until
from tests.support.tracebacks import tracebacks

Json = dict[str, Any]
REPORTS = "/apis/gpu.scheduling/v1/gpunodestatuses"
NO_SOCKET = "/nonexistent/kubelet.sock"
GOODBYE = 100
"""How many hundredths of a second a connection has to end."""


def install(cluster: Cluster) -> None:
    """Install all that the agent ships with, but for its pods."""
    apply(cluster)
    cluster.kubectl("delete", "daemonset", names.AGENT, "-n", names.NAMESPACE, "--cascade=foreground")


def apply(cluster: Cluster) -> None:
    """Apply all that the agent ships with, and the policies that keep it to its node."""
    for folder in ("namespace", "crd", "priority", "agent"):
        cluster.kubectl("apply", "-k", str(ROOT / "config" / folder))
    cluster.kubectl("apply", "-f", str(ROOT / "config" / "policy" / "components.yaml"))


def account(cluster: Cluster, node: str) -> Path:
    """Return a kubeconfig with a token of the agent on this node."""
    file = cluster.folder / f"agent-{node}.kubeconfig"
    return kubeconfig.with_token(file, url=cluster.url, ca=cluster.ca_file, token=token(cluster, node))


def token(cluster: Cluster, node: str) -> str:
    """Return a token of the agent that names this node, as the token of its pod does."""
    uid = cluster.api.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
    bound = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    path = f"/api/v1/namespaces/{names.NAMESPACE}/serviceaccounts/{names.AGENT}/token"
    made = cluster.api.request("POST", path, {"spec": {"boundObjectRef": bound}})
    return str(made["status"]["token"])


@dataclass
class Hardware:
    """The simulated devices of one node."""

    folder: Path
    simulate: str = "2xH100:80GiB"

    @property
    def uuids(self) -> list[str]:
        return [each.uuid for each in find.find(self.simulate, self.folder).devices()]

    def harm(self, device: int, **trouble: Any) -> None:
        """Make something be wrong with a device: `xid=79`, `temperature_c=99`."""
        file = self.folder / self.uuids[device] / "trouble.json"
        new = file.with_name("trouble.json.new")
        new.write_text(json.dumps(trouble))
        new.replace(file)

    def mend(self, device: int) -> None:
        (self.folder / self.uuids[device] / "trouble.json").unlink(missing_ok=True)


@dataclass
class Fleet:
    """Agents of these nodes, in one thread with one event loop."""

    cluster: Cluster
    folder: Path
    settings: Json = field(default_factory=dict)
    hardware: dict[str, Hardware] = field(default_factory=dict)
    metrics: dict[str, CollectorRegistry] = field(default_factory=dict)
    _stops: dict[str, asyncio.Event] = field(default_factory=dict)
    _running: dict[str, "asyncio.Future[None]"] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in list(self._stops):
            self.stop(node)
        self._do(self._connections_ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _connections_ended(self) -> None:
        """Wait for the end of what was closed: TLS says goodbye first; a loop that stops does not wait. Cut
        off what an agent had begun when it was killed."""
        for attempt in range(1000):
            left = [each for each in self._loop._transports.values() if each._sock]  # type: ignore[attr-defined]
            if not left:
                return
            if attempt == GOODBYE:
                for each in left:
                    each.abort()
            await asyncio.sleep(0.01)

    def start(
        self,
        node: str,
        simulate: str = "2xH100:80GiB",
        identity: str = "",
        kubeconfig: Path | None = None,
        **more: Any,
    ) -> Hardware:
        """Start the agent of a node. `identity` stands for the agent's pod."""
        made = self.hardware.setdefault(node, Hardware(self.folder / node, simulate))
        devices: dict[str, Any] = {} if "devices_file" in more else {"simulate": simulate}
        settings = Settings(
            namespace=names.NAMESPACE,
            node_name=node,
            pod_name=identity or f"agent-{node}",
            pod_resources_socket=NO_SOCKET,
            devices_folder=str(made.folder),
            **(devices | self.settings | more),
        )
        key = identity or node
        path = kubeconfig or account(self.cluster, node)
        self._do(self._start(key, path, settings))
        return made

    async def _start(self, key: str, path: Path, settings: Settings) -> None:
        self._stops[key] = asyncio.Event()
        self._running[key] = asyncio.ensure_future(self._run(path, settings, self._stops[key]))

    async def _run(self, path: Path, settings: Settings, stop: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client.open(config.load(str(path))))
            made = run.make(client, settings, run.source(settings))
            self.metrics[settings.node_name] = made.metrics
            await made.run_until(stop)

    def stop(self, key: str) -> None:
        """Stop an agent as SIGTERM would."""

        async def end() -> None:
            self._stops.pop(key).set()
            task = self._running.pop(key)
            if not task.done():
                await task

        self._do(end())

    def kill(self, key: str) -> None:
        """End an agent as SIGKILL would: nothing is written or released."""

        async def end() -> None:
            self._stops.pop(key)
            task = self._running.pop(key)
            task.cancel()
            await asyncio.wait({task})

        self._do(end())

    def has_ended(self, key: str) -> BaseException | None:
        """Return the error that an agent ended with; None while it runs."""
        task = self._running[key]
        return task.exception() if task.done() else None

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def report(self, node: str) -> Json:
        found: Json = self.cluster.api.request("GET", f"{REPORTS}/{node}")
        return found

    def device(self, node: str, number: int) -> Json:
        devices: list[Json] = self.report(node).get("status", {}).get("devices", [])
        return next((each for each in devices if each["id"] == number), {})


@contextmanager
def holding(hardware: Hardware, device: int, root: Path, pod_uid: str = "") -> Iterator[int]:
    """Hold memory of a device with a process that seems to be in that pod, where /proc is below `root`."""
    source = find.find(hardware.simulate, hardware.folder)
    command = [sys.executable, "-m", "gpu_orchestrator.adapters.gpus.hold", "100"]
    env = os.environ | source.environment([hardware.uuids[device]])
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        about = root / "proc" / str(process.pid)
        about.mkdir(parents=True)
        (about / "cgroup").write_text(f"0::/kubepods/pod{pod_uid}/x\n" if pod_uid else "0::/\n")
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.communicate()


class AgentProcess:
    """`gpu-orchestrator agent` as a process of its own, with 8 simulated GPUs unless `settings` say else.
    When the block ends it must stop cleanly, and its log must contain no traceback."""

    def __init__(
        self, cluster: Cluster, node: str, folder: Path, kubeconfig: Path | None = None, **settings: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.metrics_port, probes = free_port(), free_port()
        self.hardware = Hardware(folder / "devices", settings.get("simulate", "8xH100:80GiB"))
        values = {
            "kubeconfig": str(kubeconfig or account(cluster, node)),
            "nodeName": node,
            "podName": f"agent-{node}",
            "podResourcesSocket": NO_SOCKET,
            "devicesFolder": str(self.hardware.folder),
            "simulate": self.hardware.simulate,
            "metricsBindAddress": f"127.0.0.1:{self.metrics_port}",
            "healthProbeBindAddress": f"127.0.0.1:{probes}",
            **settings,
        }
        file = folder / "agent.yaml"
        file.write_text(yaml.safe_dump(values))
        command = [sys.executable, "-m", "gpu_orchestrator", "agent", f"--config={file}"]
        self.process = Process(f"agent-{node}", command, folder, {}, lambda: _answers(probes), warm.Popen)

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()
        broken = tracebacks(self.process.log.read_text())
        assert not broken, broken[0][:3000]

    def metric(self, name: str) -> float:
        """Return the sum of the samples of a metric."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        scrapes.check("agent", text)
        lines = text.splitlines()
        ours = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rpartition(" ")[2]) for line in ours)

    def wait_for_looks(self, number: int) -> None:
        """Wait until the agent has looked so often again."""
        looks = "gpu_agent_scan_duration_seconds_count"
        wanted = self.metric(looks) + number
        until(lambda: self.metric(looks) >= wanted, "the agent has looked again")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return int(answer.status) == 200
    except OSError:
        return False
