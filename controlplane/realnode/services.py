"""Services for the pods of a real node, in place of kube-proxy, which would change the whole machine.

A network namespace on the node's bridge, in which every address of Services is local. Pods have a route to
it. The address that a connection arrives at says which Service is meant, and one of its ready endpoints
gets it. The namespace lasts as long as the sockets in it: nothing is left when this process ends.
"""

import ctypes
import fcntl
import json
import os
import random
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from controlplane import relay, watchdog
from controlplane.commands import SERVICE_CIDR
from controlplane.errors import ClusterError
from controlplane.realnode.network import SET_ADDRESS, SET_MASK, Network, address

if TYPE_CHECKING:
    from controlplane.cluster import Cluster

CLONE_NEWNET = 0x40000000  # from linux/sched.h
OF_THE_API_SERVER = ("default", "kubernetes")
"""A Service whose endpoint is not in the cluster: the API server listens on the host's loopback."""

Address = tuple[str, int]


class Services:
    """Passes connections on until it is closed."""

    def __init__(self, cluster: "Cluster", listening: Sequence[socket.socket]) -> None:
        self._cluster = cluster
        self._listening = listening
        self._accepting = [_thread(self._accept, each) for each in listening]
        self._passing: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_closed = False

    @classmethod
    def start(
        cls, cluster: "Cluster", network: Network, ports: Sequence[int], *, plugin: Path, folder: Path
    ) -> "Services":
        """Listen on these ports of every Service. `plugin` is the CNI plugin that makes interfaces."""
        made = cls(cluster, _listen(network, ports, plugin, folder))
        for each in made._accepting:
            each.start()
        return made

    def close(self) -> None:
        for each in self._listening:
            each.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        for thread in self._accepting:
            thread.join()
        with self._lock:
            self._is_closed = True
            for each in self._open:
                with suppress(OSError):  # its other end has closed it
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._passing:
            thread.join()
        for each in self._listening:
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            try:
                backend = self._endpoint(*client.getsockname())
            except (OSError, ClusterError):  # the API server is away
                backend = None
            passing = _thread(self._pass_on, client, backend)
            passing.start()
            with self._lock:
                self._passing = [each for each in self._passing if each.is_alive()] + [passing]

    def _pass_on(self, client: socket.socket, backend: Address | None) -> None:
        """Without a backend the caller sees its connection end, as it does when an endpoint goes away."""
        with client, suppress(OSError):
            if not backend:
                return
            with socket.create_connection(backend) as server:
                with self._lock:
                    if self._is_closed:
                        return
                    self._open |= {client, server}
                try:
                    relay.join(client, server)
                finally:
                    with self._lock:
                        self._open -= {client, server}

    def _endpoint(self, ip: str, port: int) -> Address | None:
        """Return a ready endpoint of the Service with this address."""
        ask = self._cluster.api.request
        for service in ask("GET", "/api/v1/services")["items"]:
            meta, spec = service["metadata"], service["spec"]
            if spec.get("clusterIP") != ip:
                continue
            if (meta["namespace"], meta["name"]) == OF_THE_API_SERVER:
                url = urlsplit(self._cluster.url)
                return str(url.hostname), int(url.port or 443)
            names = [each.get("name") for each in spec["ports"] if each["port"] == port]
            return self._of(meta["namespace"], meta["name"], names)
        return None

    def _of(self, namespace: str, name: str, ports: Sequence[str | None]) -> Address | None:
        selector = f"labelSelector=kubernetes.io/service-name={name}"
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{selector}"
        found = [
            (endpoint["addresses"][0], port["port"])
            for piece in self._cluster.api.request("GET", path)["items"]
            for endpoint in piece.get("endpoints") or ()
            for port in piece.get("ports") or ()
            if endpoint.get("conditions", {}).get("ready") and (port.get("name") or None) in ports
        ]
        return random.SystemRandom().choice(found) if found else None


def _thread(work: Callable[..., None], *args: object) -> threading.Thread:
    return threading.Thread(target=work, args=args, daemon=True)


def _listen(network: Network, ports: Sequence[int], plugin: Path, folder: Path) -> list[socket.socket]:
    """Return sockets in a network namespace of their own, which is on the bridge."""
    maker = _Maker(ports)
    maker.start()
    maker.made.wait()
    try:
        if not maker.failed:
            _join(network, maker, plugin, folder)
    finally:
        maker.joined.set()
        maker.join()
    if maker.failed:
        raise ClusterError(f"could not make a network namespace for Services: {maker.failed}")
    return maker.sockets


class _Maker(threading.Thread):
    """A thread that leaves the host's network namespace. Only its sockets are in the new one."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self.made, self.joined = threading.Event(), threading.Event()
        self.path = ""
        self.sockets: list[socket.socket] = []
        self.failed: OSError | None = None
        self._ports = ports

    def run(self) -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            self.path = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"
            self.made.set()
            self.joined.wait()
            _make_local(SERVICE_CIDR)
            self.sockets = [socket.create_server(("", port), backlog=128) for port in self._ports]
        except OSError as error:
            self.failed = error
        finally:
            self.made.set()


def _join(network: Network, maker: _Maker, plugin: Path, folder: Path) -> None:
    env = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "services",
        "CNI_NETNS": maker.path,
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(plugin.parent),
    }
    config = json.dumps(network.cni_of_services(folder))
    done = subprocess.run([plugin], input=config, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"could not join the Services to the bridge: {done.stdout or done.stderr}")


def _make_local(cidr: str) -> None:
    """Make all addresses of this network local here: those of a network on `lo` are."""
    name, (first, _, bits) = b"lo:1", cidr.partition("/")
    mask = socket.inet_ntoa(struct.pack("!I", 0xFFFFFFFF << (32 - int(bits)) & 0xFFFFFFFF))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, watchdog.SET_FLAGS, struct.pack("16sh14x", b"lo", watchdog.IS_UP))
        one = socket.inet_ntoa(struct.pack("!I", struct.unpack("!I", socket.inet_aton(first))[0] + 1))
        fcntl.ioctl(sock, SET_ADDRESS, address(name, one))
        fcntl.ioctl(sock, SET_MASK, address(name, mask))
