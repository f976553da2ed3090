"""The check of the agent on a machine with GPUs, played with simulated ones."""

from collections.abc import Callable
from pathlib import Path

from controlplane.cluster import Cluster
from scripts import check_agent


def test_agent_sees_a_process_come_and_go(
    agent_cluster: Cluster, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    (node,) = agent_cluster.gpu_nodes(1, prefix="checked")
    found = check_agent.check(agent_cluster, node, tmp_path, simulate="2xH100:80GiB", rounds=2, scan_s=0.5)
    figure(", ".join(f"seen after {each.seen_s} s, gone after {each.gone_s} s" for each in found))
    assert all(max(each.seen_s, each.gone_s) <= check_agent.ALLOWED_S for each in found)
    assert [each.used_mib for each in found] == [100, 100]
