"""Check that the agent sees a process come to a GPU of this machine, and go, within ten seconds.

    KUBEBUILDER_ASSETS=FOLDER python scripts/check_agent.py [--rounds 3] [--simulate 1xH100:80GiB]

FOLDER has etcd, kube-apiserver and kubectl; without it they are those of `make tools`. The agent is a process
as it ships, with its usual settings, at a real API server. No kubelet runs, so the cgroup of the process, by
which the agent knows its pod, is a file below a folder that stands in for the host's `/`.

Prints for each round how long it took until the report named the pod and until it did not, then one line of
JSON; ends with 1 if that was longer than ten seconds.
"""

# ruff: noqa: T201, TID251 - a script, outside the pure packages

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from controlplane.cluster import Cluster  # noqa: E402
from tests.support import agent_fleet  # noqa: E402
from tests.support.agent_fleet import REPORTS, AgentProcess  # noqa: E402

ALLOWED_S, GIVE_UP_S, LOOK_EVERY_S = 10.0, 60.0, 0.05


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds from the first byte of GPU memory, and from the end of the process."""

    seen_s: float
    gone_s: float
    used_mib: int


def check(
    cluster: Cluster, node: str, folder: Path, *, simulate: str, rounds: int, scan_s: float = 5.0
) -> list[Round]:
    """Let processes hold memory of the node's first device, one after the other, beside an agent."""
    root = folder / "host"
    (root / "proc").mkdir(parents=True)
    (root / "sys").symlink_to("/sys")
    with AgentProcess(
        cluster, node, folder / "agent", simulate=simulate, root=str(root), scanSeconds=scan_s
    ) as agent:
        print(f"agent ready with {len(agent.hardware.uuids)} devices, {agent.process.memory_mb:.0f} MB")
        return [_round(cluster, node, agent, root) for _ in range(rounds)]


def _round(cluster: Cluster, node: str, agent: AgentProcess, root: Path) -> Round:
    pod = str(uuid4())
    with agent_fleet.holding(agent.hardware, 0, root, pod):
        seen_s = _seconds(lambda: _users(cluster, node) == [pod], f"the report names pod {pod}")
        used_mib = int(agent.metric("gpu_agent_pod_memory_used_mib"))
    gone_s = _seconds(lambda: _users(cluster, node) == [], f"the report names pod {pod} no more")
    return Round(round(seen_s, 2), round(gone_s, 2), used_mib)


def _users(cluster: Cluster, node: str) -> list[str]:
    """Return the pods on all devices that the report has."""
    devices = cluster.api.request("GET", f"{REPORTS}/{node}")["status"]["devices"]
    return [pod for device in devices for pod in device.get("inUseBy", [])]


def _seconds(is_so: Callable[[], bool], what: str) -> float:
    started = time.monotonic()
    while not is_so():
        if time.monotonic() - started > GIVE_UP_S:
            sys.exit(f"not within {GIVE_UP_S:.0f} s: {what}")
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - started


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--simulate", default="", help="devices to simulate, as 1xH100:80GiB")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster.start() as cluster:
        agent_fleet.apply(cluster)
        (node,) = cluster.gpu_nodes(1, prefix="node", wait=False)
        found = check(cluster, node, Path(folder), simulate=given.simulate, rounds=given.rounds)
    for each in found:
        print(f"seen after {each.seen_s} s with {each.used_mib} MiB, gone after {each.gone_s} s")
    print(json.dumps([asdict(each) for each in found]))
    sys.exit(any(max(each.seen_s, each.gone_s) > ALLOWED_S for each in found))


if __name__ == "__main__":
    main()
