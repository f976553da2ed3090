"""A real control plane on free loopback ports: etcd, kube-apiserver and, on request, the other parts.

    with Cluster.start(parts=("kube-controller-manager", "kube-scheduler", "kwok")) as cluster:
        cluster.gpu_nodes(8, gpus=8)
        cluster.kubectl("get", "nodes")

Used by pytest fixtures, benchmarks and `make cluster`. Every process ends with its owner (see watchdog.py).
"""

import os
import random
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from controlplane import audit, commands, etcd, kubeconfig, nodes
from controlplane.api import Api, Json
from controlplane.errors import ClusterError
from controlplane.guard import Guard
from controlplane.pki import Authority
from controlplane.process import Process
from controlplane.realnode.node import RealNode
from controlplane.toolbox import Toolbox

ALWAYS = ("etcd", "kube-apiserver")
OPTIONAL = ("kube-controller-manager", "kube-scheduler", "kwok")
ADMIN = "admin"


@dataclass
class Cluster:
    folder: Path
    url: str
    authority: Authority
    api: Api
    kubeconfig: Path
    parts: dict[str, Process]
    tools: Mapping[str, Path]
    guard: Guard
    toolbox: Toolbox
    _real_nodes: list[RealNode] = field(default_factory=list, repr=False)
    _users: dict[tuple[str, ...], Path] = field(default_factory=dict)
    _audit_from: int = 0

    @classmethod
    def start(
        cls,
        parts: Sequence[str] = (),
        *,
        toolbox: Toolbox | None = None,
        node_lifecycle: bool = True,
        dials_endpoints: bool = False,
        native_gangs: bool = False,
    ) -> Self:
        """Start a cluster and wait until its API server is ready.

        `node_lifecycle=False` leaves static nodes Ready although they send no heartbeats. With
        `dials_endpoints` the API server calls webhooks that run in containers of a real node. `native_gangs`
        turns on those of kube-scheduler.
        """
        if unknown := set(parts) - set(OPTIONAL):
            raise ClusterError(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(OPTIONAL)}")
        box = toolbox or Toolbox()
        tools = box.get(*ALWAYS, "kubectl", *parts)
        folder = Path(tempfile.mkdtemp(prefix="gpu-orchestrator-"))
        guard = Guard(folder)
        options = commands.Options(tuple(parts), node_lifecycle, dials_endpoints, native_gangs)
        try:
            cluster = cls._prepare(box, tools, guard, options)
            cluster._start_parts()
        except BaseException:
            guard.end()
            raise
        return cluster

    @classmethod
    def _prepare(
        cls, toolbox: Toolbox, tools: Mapping[str, Path], guard: Guard, options: commands.Options
    ) -> Self:
        folder = guard.folder
        authority = Authority(folder / "pki")
        port = free_port()
        url = f"https://127.0.0.1:{port}"
        admin = authority.client(ADMIN, ["system:masters"])
        api = Api(url, authority, admin)
        config = kubeconfig.with_certificate(
            folder / "admin.kubeconfig", url=url, ca=authority.cert, pair=admin
        )
        cluster = cls(folder, url, authority, api, config, {}, tools, guard, toolbox)
        for name, command in commands.all_parts(cluster, port, options).items():
            is_ready = api.is_ready if name == "kube-apiserver" else lambda: True
            cluster.parts[name] = Process(name, command, folder, guard.environment, is_ready)
        return cluster

    def _start_parts(self) -> None:
        for part in self.parts.values():
            part.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every part, in reverse order of start, and remove the folder.

        The data is not needed any more, so etcd and the API server are killed: a graceful stop of the API
        server would take ten seconds.
        """
        for node in self._real_nodes:
            node.close()
        self.api.close()
        for part in reversed(self.parts.values()):
            part.kill() if part.name in ALWAYS else part.stop(timeout_s=2)
        self.guard.end()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for processes that must end with this cluster, even if their parent is
        gone."""
        return self.guard.environment

    @property
    def ca_file(self) -> Path:
        return self.authority.cert

    @property
    def audit(self) -> audit.Audit:
        return audit.Audit(self.folder / "audit.log", self._audit_from)

    @property
    def memory_mb(self) -> float:
        return sum(part.memory_mb for part in self.parts.values() if part.is_running)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a client certificate for that user and those groups."""
        who = (user, *groups)
        if who not in self._users:
            path = self.folder / f"user-{len(self._users)}.kubeconfig"
            pair = self.authority.client(user, groups)
            self._users[who] = kubeconfig.with_certificate(path, url=self.url, ca=self.ca_file, pair=pair)
        return self._users[who]

    def service_account_kubeconfig(self, namespace: str, name: str, *, valid_s: int = 3600) -> Path:
        """Write a kubeconfig with a fresh token of that ServiceAccount, which must exist."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": valid_s},
        }
        answer = self.api.request(
            "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request
        )
        path = self.folder / f"{namespace}-{name}-{uuid.uuid4().hex[:6]}.kubeconfig"
        return kubeconfig.with_token(path, url=self.url, ca=self.ca_file, token=answer["status"]["token"])

    def kubectl(self, *words: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """Run kubectl and return its output."""
        config = kubeconfig or self.kubeconfig
        command: list[str | Path] = [self.tools["kubectl"], "--kubeconfig", config, *words]
        home = {"HOME": str(self.folder), "PATH": "/usr/bin:/bin"}  # without the user's cache and plugins
        home |= {name: value for name, value in os.environ.items() if name == "GOGC"}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=home)
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def gpu_nodes(
        self, count: int, *, prefix: str = "gpu-node", wait: bool = True, **shape: Any
    ) -> list[str]:
        """Create GPU nodes (for their fields see nodes.GpuNode) and wait until they are Ready."""
        made = [nodes.GpuNode(f"{prefix}-{number}", **shape) for number in range(count)]
        self.api.create_all("/api/v1/nodes", [node.manifest() for node in made])
        names = [node.name for node in made]
        if wait:
            self.wait_nodes_ready(names)
        return names

    def real_node(self, name: str = "real-node") -> RealNode:
        """Start a node that runs containers on this machine (see realnode/), and wait until it is Ready."""
        node = RealNode.start(self, name, port=free_port(), toolbox=self.toolbox)
        self._real_nodes.append(node)
        return node

    def wait_nodes_ready(self, names: Sequence[str], timeout_s: float = 60.0) -> None:
        started = time.monotonic()
        while True:
            polled_at = time.monotonic()
            missing = set(names) - set(self.ready_nodes())
            if not missing:
                return
            if polled_at > started + timeout_s:
                some = f"{len(missing)} nodes not Ready after {timeout_s:.0f} s, among them {min(missing)}"
                raise ClusterError(some)
            time.sleep(max(0.1, 3 * (time.monotonic() - polled_at)))  # polling must not slow the nodes down

    def ready_nodes(self) -> list[str]:
        items: list[Json] = self.api.request("GET", "/api/v1/nodes")["items"]
        return [node["metadata"]["name"] for node in items if nodes.is_ready(node)]

    def compact(self) -> None:
        """Compact etcd's history up to now, so that the API server answers 410 Gone to older
        resourceVersions."""
        etcd.compact(self.folder)

    def contents(self) -> frozenset[bytes]:
        """Return what etcd holds now, as `empty` takes it."""
        return frozenset(etcd.keys(self.folder))

    def empty(self, kept: Collection[bytes], seen_by: Sequence[str]) -> None:
        """Remove every object that is not among the `kept` contents, whatever holds it up, and let the audit
        log begin here. Wait until the API server, too, lists nothing any more at the paths `seen_by`."""
        etcd.remove_others(self.folder, kept)
        self._audit_from = self.audit.size
        for path in seen_by:
            self._wait_none_listed(path)

    def _wait_none_listed(self, path: str, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while left := [each["metadata"]["name"] for each in self.api.request("GET", path)["items"]]:
            if time.monotonic() > deadline:
                raise ClusterError(f"{path} still lists {len(left)} objects, among them {left[0]}")
            time.sleep(0.05)


def free_port() -> int:
    """Return a loopback port on which no process listens. If possible it is below the range for outgoing
    connections, so that a restarted server finds its port still free."""
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return port_below(min(first_outgoing, 32_768))


LOWEST_PORT = 10_000
_given: set[int] = set()
"""Ports that were returned before: the server may not listen on one yet when the next port is needed."""
_offset, _step = 0, 1


def share_ports(number: int, count: int) -> None:
    """Return only every `count`-th port from now on, so that `count` processes never choose the same one."""
    global _offset, _step
    _offset, _step = number, count


def port_below(limit: int) -> int:
    for _ in range(100):
        # If outgoing connections may use all ports, let the kernel choose a free one (port 0).
        is_wide = limit > LOWEST_PORT + 1000
        port = random.SystemRandom().randrange(LOWEST_PORT + _offset, limit, _step) if is_wide else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port
    raise ClusterError("no free loopback port found in 100 tries")
