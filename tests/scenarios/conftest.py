"""The stages of the gpu-scheduler's scenarios."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from controlplane.cluster import Cluster
from tests.conftest import NewCluster
from tests.scenarios import stage as stages
from tests.scenarios.stage import Stage


@pytest.fixture
def stage(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage of the test's own in the shared cluster: its namespace, leases, nodes and scheduler."""
    stages.install(cluster)
    made = Stage(cluster, namespace, tmp_path, namespace, f"scheduler-{uuid4().hex[:6]}")
    yield made
    made.close()


@pytest.fixture
def bare_stage(new_cluster: NewCluster, tmp_path: Path) -> Iterator[Stage]:
    """A cluster of an API server and etcd alone, for races and crashes: bound pods stay as they are."""
    cluster = new_cluster(parts=(), node_lifecycle=False)
    stages.install(cluster)
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "race"}})
    made = Stage(cluster, "race", tmp_path, static=True)
    yield made
    made.close()
