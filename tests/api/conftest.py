"""The shared cluster with our kinds installed."""

import pytest

from controlplane.cluster import Cluster
from tests.api import server


@pytest.fixture(scope="session")
def kinds(cluster: Cluster) -> Cluster:
    server.install(cluster)
    return cluster
