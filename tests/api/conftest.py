"""The shared cluster with our kinds installed."""

import pytest

from controlplane.cluster import Cluster
from tests.support import installed_kinds


@pytest.fixture(scope="session")
def kinds(cluster: Cluster) -> Cluster:
    installed_kinds.install(cluster)
    return cluster
