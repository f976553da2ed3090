"""One control plane for the scenarios of the agent, with all that ships for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.cluster import OPTIONAL, Cluster
from controlplane.toolbox import Toolbox
from tests.support import agent_fleet, namespaces
from tests.support.agent_fleet import Fleet
from tests.support.scheduler_stage import Stage


@pytest.fixture(scope="package")
def agent_cluster(toolbox: Toolbox) -> Iterator[Cluster]:
    with Cluster.start(parts=OPTIONAL, toolbox=toolbox) as cluster:
        agent_fleet.install(cluster)
        yield cluster


@pytest.fixture
def fleet(agent_cluster: Cluster, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(agent_cluster, tmp_path) as made:
        yield made


@pytest.fixture
def agent_stage(agent_cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    """A namespace for pods, and nodes of its own; device leases are where the agents look for them."""
    with namespaces.fresh(agent_cluster) as name:
        made = Stage(agent_cluster, name, tmp_path)
        yield made
        made.close()
