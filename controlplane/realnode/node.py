"""One real node: its parts in order of start, and the paths on which tests reach it."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import yaml

from controlplane.api import ApiError
from controlplane.commands import SERVICE_CIDR
from controlplane.errors import ClusterError
from controlplane.guard import Guard
from controlplane.process import Process
from controlplane.realnode import cgroups, containerd, images, kubelet, namespace, python_image, runc
from controlplane.realnode.namespace import Namespace
from controlplane.realnode.network import Network
from controlplane.realnode.services import Services
from controlplane.toolbox import NODE, Toolbox

if TYPE_CHECKING:
    from controlplane.cluster import Cluster

READY_TIMEOUT_S = 60.0


@dataclass
class RealNode:
    name: str
    cluster: "Cluster" = field(repr=False)
    guard: Guard
    network: Network
    cgroup: str
    tools: Mapping[str, Path]
    namespace: Namespace
    port: int
    ready_after_s: float = 0.0
    _undo: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def start(cls, cluster: "Cluster", name: str, *, port: int, toolbox: Toolbox) -> Self:
        """Start a node whose kubelet listens on that port, and wait until it is Ready."""
        tools = {**toolbox.get(*NODE), "runc": runc.get(toolbox.cache)}
        started = time.monotonic()
        with ExitStack() as undo:
            guard = Guard(Path(tempfile.mkdtemp(prefix="gpu-orchestrator-")))
            undo.callback(guard.end)
            cgroup, network = cgroups.make(guard.mark), Network.make(guard.mark)
            inside = namespace.make(guard.folder, list(tools.values()))
            undo.callback(inside.close)
            node = cls(name, cluster, guard, network, cgroup, tools, inside, port)
            undo.callback(node.containerd.kill)
            undo.callback(node.kubelet.kill)
            node._start_parts()
            node._undo = undo.pop_all()
        node.ready_after_s = time.monotonic() - started
        return node

    def _start_parts(self) -> None:
        self.containerd.start()
        self.kubelet.start()
        self._import([images.TOOLS, images.PAUSE], images.tools(self.tools["node-tools"]), ["/bin/pause"])
        self._wait_ready()

    def _wait_ready(self) -> None:
        try:
            self.cluster.wait_nodes_ready([self.name], READY_TIMEOUT_S)
        except ClusterError as error:
            raise ClusterError(f"{error}; the kubelet's log ends:\n{self.kubelet.last_words()}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the node with all its containers, and remove it and its pods from the cluster."""
        self._undo.close()
        if self.cluster.api.is_ready():
            self._forget()

    def _forget(self) -> None:
        here = f"/api/v1/pods?fieldSelector=spec.nodeName={self.name}"
        for pod in self.cluster.api.request("GET", here)["items"]:
            meta = pod["metadata"]
            self._delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}")
        self._delete(f"/api/v1/nodes/{self.name}")

    def _delete(self, path: str) -> None:
        try:
            self.cluster.api.request("DELETE", path, {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:  # else a controller was faster
                raise

    @cached_property
    def containerd(self) -> Process:
        return self._process("containerd", self._containerd_command(), self._has_containerd)

    @cached_property
    def kubelet(self) -> Process:
        return self._process("kubelet", self._kubelet_command())

    @property
    def folder(self) -> Path:
        return self.guard.folder

    @property
    def pod_resources(self) -> Path:
        """Return the socket on which the kubelet tells which pod has which devices."""
        return self.folder / "lib/kubelet/pod-resources/kubelet.sock"

    @property
    def device_plugins(self) -> Path:
        """Return the folder of the sockets of device plugins, and of kubelet.sock, where they register."""
        return self.folder / "lib/kubelet/device-plugins"

    @property
    def cdi(self) -> Path:
        """Return the folder in which containerd looks for CDI specifications."""
        return self.folder / "run/cdi"

    @property
    def pin(self) -> dict[str, Any]:
        """Return the fields of a pod's spec that lead it to this node."""
        return {
            "nodeSelector": {"kubernetes.io/hostname": self.name},
            "tolerations": [{"key": kubelet.TAINT, "operator": "Exists"}],
        }

    @cached_property
    def python_image(self) -> str:
        """Import the image with this Python, and return its name."""
        self._import([images.PYTHON], python_image.content(), [sys.executable])
        return images.PYTHON

    def serve(self, *ports: int) -> None:
        """Let pods reach Services on these ports, the API server's included, until the node is closed."""
        folder = self.folder / "services"
        plugin = self.tools["bridge"]
        services = Services.start(self.cluster, self.network, ports, plugin=plugin, folder=folder)
        self._undo.callback(services.close)

    def import_image(self, path: Path) -> None:
        """Import the image in this file: an OCI layout, or what `docker save` writes."""
        self.ctr("images", "import", "--snapshotter", self.namespace.snapshotter, path)

    def ctr(self, *words: str | Path) -> str:
        """Run ctr on this node, in the namespace of the kubelet's containers."""
        command = [
            self.tools["ctr"],
            "-a",
            self.folder / "run/containerd/containerd.sock",
            "-n",
            "k8s.io",
            *words,
        ]
        done = subprocess.run(self.namespace.enter(command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"ctr {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def _import(self, names: Sequence[str], content: images.Content, command: Sequence[str]) -> None:
        path = self.folder / "image.tar"
        images.write(path, names, content, command)
        self.import_image(path)
        path.unlink()

    def _process(
        self, name: str, command: Sequence[str | Path], is_ready: Callable[[], bool] = lambda: True
    ) -> Process:
        # Besides starting the runc that its configuration names, containerd asks the one on PATH what it can.
        path = f"{self.tools['runc'].parent}:{os.environ.get('PATH', '')}"
        environment = {**self.guard.environment, "PATH": path}
        return Process(name, self.namespace.enter(command), self.folder, environment, is_ready)

    def _has_containerd(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.folder / "run/containerd/containerd.sock")) == 0

    def _containerd_command(self) -> list[str | Path]:
        cni = self.folder / "cni"
        cni.mkdir()
        (cni / "pods.conflist").write_text(
            json.dumps(self.network.cni(self.folder / "addresses", SERVICE_CIDR))
        )
        config = containerd.config(
            snapshotter=self.namespace.snapshotter,
            plugins=self.tools["bridge"].parent,
            cni=cni,
            shim=self.tools["containerd-shim-runc-v2"],
            runc=self.tools["runc"],
        )
        return [self.tools["containerd"], "--config", self._write("containerd.toml", config)]

    def _kubelet_command(self) -> list[str | Path]:
        settings = kubelet.Settings(
            address=self.network.host,
            port=self.port,
            cgroup=self.cgroup,
            serving=self.cluster.authority.server(f"kubelet-{self.name}", hosts=[self.network.host]),
            clients=self.cluster.ca_file,
            resolv_conf=self._write("resolv.conf", ""),
        )
        config = self._write("kubelet.yaml", yaml.safe_dump(kubelet.config(settings)))
        identity = self.cluster.kubeconfig_for(f"system:node:{self.name}", ["system:nodes"])
        return [
            self.tools["kubelet"],
            f"--config={config}",
            f"--kubeconfig={identity}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.network.host}",
        ]

    def _write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        return path
