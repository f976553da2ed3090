"""Measure the node agent: what one costs its node, and what thousands cost the API server.

    make bench-agent [ARGS="--seconds 120 --agents 100 --faster 20"]

One agent as a process with eight simulated GPUs, half of them in use, scraped every 15 s: its memory, and its
CPU as a part of one core. Then many agents in this process, which write heartbeats and reports `faster` times
as often as they do by default, so that 100 of them are the load of 2,000: their writes, and the CPU of API
server and etcd, scaled to 5,000 nodes. Before that, the same control plane idles for as long, and its CPU is
subtracted.
"""

import json
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog
from cyclopts import run

from benchmarks.table import show
from controlplane.cluster import OPTIONAL, Cluster
from gpu_orchestrator.apps.agent.settings import Settings
from tests.support import agent_fleet
from tests.support.agent_fleet import AgentProcess, Fleet, Hardware
from tests.support.scheduler_stage import until

LARGE = 5000
SCRAPE_S = 15.0
USUAL = Settings(node_name="any")


def one(cluster: Cluster, folder: Path, seconds: float) -> dict[str, float]:
    """Measure one agent while half of its devices are in use."""
    (node,) = cluster.gpu_nodes(1, prefix="one")
    with AgentProcess(cluster, node, folder / "one") as agent, using(agent.hardware, folder):
        process, started = agent.process, time.monotonic()
        before = process.cpu_s
        while (left_s := started + seconds - time.monotonic()) > 0:
            time.sleep(min(SCRAPE_S, left_s))
            agent.metric("gpu_agent_devices")
        spent = process.cpu_s - before
        return {
            "cpu_percent": round(100 * spent / (time.monotonic() - started), 3),
            "memory_mb": round(process.memory_mb, 1),
            "scans": agent.metric("gpu_agent_scan_duration_seconds_count"),
        }


@contextmanager
def using(hardware: Hardware, root: Path) -> Iterator[None]:
    """Hold memory of every second device with a process of its own."""
    with ExitStack() as stack:
        for device in range(0, len(hardware.uuids), 2):
            stack.enter_context(agent_fleet.holding(hardware, device, root))
        yield


def many(cluster: Cluster, folder: Path, agents: int, seconds: float, faster: float) -> dict[str, float]:
    """Measure what many agents write, and what that costs the control plane."""
    nodes = cluster.gpu_nodes(agents, prefix="many", static=True)
    idle = cpu_of(cluster, seconds)
    settings = {
        "scan_seconds": 30.0,
        "heartbeat_seconds": USUAL.heartbeat_seconds / faster,
        "refresh_seconds": USUAL.refresh_seconds / faster,
    }
    with Fleet(cluster, folder / "many", settings) as fleet:
        for node in nodes:
            fleet.start(node)
        until(lambda: len(cluster.api.request("GET", agent_fleet.REPORTS)["items"]) > agents, "all report")
        before, began = writes(cluster), time.monotonic()
        busy = cpu_of(cluster, seconds)
        spent_s, after = time.monotonic() - began, writes(cluster)
    scale = LARGE / (agents * faster)
    per_minute = (after - before) * 60 / spent_s
    return {
        "writes_per_minute": round(per_minute * scale),
        "control_plane_cores": round(max(busy - idle, 0.0) * scale, 2),
        "idle_cores": round(idle, 3),
    }


def cpu_of(cluster: Cluster, seconds: float) -> float:
    """Return how many cores API server and etcd use over that time."""
    parts = [cluster.parts["kube-apiserver"], cluster.parts["etcd"]]
    before, began = sum(each.cpu_s for each in parts), time.monotonic()
    time.sleep(seconds)
    return (sum(each.cpu_s for each in parts) - before) / (time.monotonic() - began)


def writes(cluster: Cluster) -> int:
    kinds = ("gpunodestatuses", "leases", "nodes/status")
    ours = (each for each in cluster.audit.entries() if "gpu-scheduler-agent" in each.user)
    return sum(each.verb in ("patch", "create") and each.resource.startswith(kinds) for each in ours)


def main(*, seconds: float = 60.0, agents: int = 100, faster: float = 20.0) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder, Cluster.start(parts=OPTIONAL) as cluster:
        agent_fleet.install(cluster)
        alone = one(cluster, Path(folder), seconds)
        together = many(cluster, Path(folder), agents, seconds, faster)
    rows = [
        ["one agent, 8 GPUs: CPU of one core", f"{alone['cpu_percent']} %"],
        ["one agent, 8 GPUs: memory", f"{alone['memory_mb']} MB"],
        [f"{LARGE:,} agents: writes per minute", f"{together['writes_per_minute']:,}"],
        [f"{LARGE:,} agents: cores of API server and etcd", f"{together['control_plane_cores']}"],
    ]
    show(f"The node agent; {agents} of them, {faster:g} times as busy", ("figure", "measured"), rows)
    print(json.dumps(alone | together))


if __name__ == "__main__":
    run(main)
