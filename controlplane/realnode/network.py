"""The bridge that joins the pods of a node and the host: 198.18.x.0/24, with the host as 198.18.x.1.

The node makes it, not its CNI plugin, which would switch on IP forwarding for the whole machine. The kubelet
listens on the host's address there: it accepts no loopback address, and must not be open to the network.
"""

import fcntl
import random
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from controlplane import watchdog
from controlplane.errors import ClusterError

# From linux/sockios.h.
ADD_BRIDGE, SET_ADDRESS, SET_MASK = 0x89A0, 0x8916, 0x891C


@dataclass(frozen=True, slots=True)
class Network:
    bridge: str
    prefix: str  # "198.18.7": the first three numbers

    @classmethod
    def make(cls, mark: str) -> Self:
        made = cls(watchdog.bridge_name(mark), _free_prefix())
        name = made.bridge.encode()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, ADD_BRIDGE, name + b"\0")
            fcntl.ioctl(sock, SET_ADDRESS, address(name, made.host))
            fcntl.ioctl(sock, SET_MASK, address(name, "255.255.255.0"))
            fcntl.ioctl(sock, watchdog.SET_FLAGS, struct.pack("16sh14x", name, watchdog.IS_UP))
        return made

    @property
    def host(self) -> str:
        return f"{self.prefix}.1"

    def cni(self, folder: Path, services: str) -> dict[str, Any]:
        """Return the CNI configuration of pods, with a route to the addresses of Services. Addresses in use
        are noted in `folder`."""
        routes = [{"dst": services, "gw": self._services}]
        return self._cni("pods", folder, {"rangeStart": f"{self.prefix}.3"}, routes)

    def cni_of_services(self, folder: Path) -> dict[str, Any]:
        """Return the configuration of the network namespace where Services are (see services.py)."""
        made = self._cni("services", folder, {"rangeStart": self._services, "rangeEnd": self._services}, [])
        (plugin,) = made.pop("plugins")  # to be given to the plugin itself
        return {**made, **plugin}

    @property
    def _services(self) -> str:
        return f"{self.prefix}.2"

    def _cni(
        self, name: str, folder: Path, limits: dict[str, str], routes: list[dict[str, str]]
    ) -> dict[str, Any]:
        subnet = {"subnet": f"{self.prefix}.0/24", **limits}
        ipam = {"type": "host-local", "dataDir": str(folder), "ranges": [[subnet]], "routes": routes}
        bridge = {"type": "bridge", "bridge": self.bridge, "ipam": ipam}
        return {"cniVersion": "1.0.0", "name": name, "plugins": [bridge]}


def address(name: bytes, address: str) -> bytes:
    return struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(address))


def _free_prefix() -> str:
    """Return a network of 198.18.0.0/15 that no route of this machine leads to.

    That range is set aside for measurements (RFC 2544), so that no office or VPN uses it."""
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    # Addresses are there as hexadecimal numbers in the byte order of the machine.
    taken = {socket.inet_ntoa(struct.pack("=I", int(line.split()[1], 16))) for line in routes}
    free = [f"198.{a}.{b}" for a in (18, 19) for b in range(256) if f"198.{a}.{b}.0" not in taken]
    if not free:
        raise ClusterError("every network of 198.18.0.0/15 is in use; see /proc/net/route")
    return random.SystemRandom().choice(free)
