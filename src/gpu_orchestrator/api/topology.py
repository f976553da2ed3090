"""How the devices of a machine are connected: islands, and the best bandwidth of each device. Pure.

Sources of GPUs make the links (`adapters/gpus`); the agent publishes what is computed here as GpuNodeStatus,
`gpu-orchestrator devices` prints it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_orchestrator.api.gpunodestatus import LinkType
from gpu_orchestrator.core import topology

FAST = frozenset({"NVLink", "XGMI"})


@dataclass(frozen=True, slots=True)
class Link:
    """The connection of two devices, by UUID. The bandwidth is in GB/s, both directions added, as vendors
    quote it; 0 if unknown. `label` is what `nvidia-smi topo -m` calls it: NV18, PIX, SYS."""

    a: str
    b: str
    kind: LinkType
    bandwidth_gbps: int
    label: str = ""


def islands(uuids: Sequence[str], links: Iterable[Link]) -> dict[str, int]:
    """Return the island of each device: devices that reach each other over NVLink or XGMI, also through
    others, share one. Islands are numbered in the order of their first devices."""
    place = {uuid: at for at, uuid in enumerate(uuids)}
    joined = {
        (place[link.a], place[link.b]): 1
        for link in links
        if link.kind in FAST and link.a in place and link.b in place
    }
    found = topology.from_links(range(len(uuids)), joined).islands
    return dict(zip(uuids, found, strict=True))


def best_peer(uuid: str, links: Iterable[Link]) -> int:
    """Return the bandwidth in GB/s to the device's best peer, 0 if it has none."""
    return max((link.bandwidth_gbps for link in links if uuid in (link.a, link.b)), default=0)
