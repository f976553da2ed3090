"""Few parked shapes are compared with a node one by one, many by columns: both find the same ones."""

from random import Random

import pytest

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.engine import wakeup_index
from gpu_orchestrator.engine.wakeup_index import WakeupIndex
from tests.support.generators import a_node, a_shape


@pytest.mark.parametrize("seed", range(60))
def test_few_shapes_are_found_as_many_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    cluster = Cluster([a_node(rng, f"n{number}") for number in range(5)])
    index = WakeupIndex()
    for slot in range(4):
        index.set(slot * 5, a_shape(rng), cluster)
    index.clear(rng.choice((0, 5, 10, 15)))
    rows = [cluster.row(f"n{number}") for number in range(5)]
    few = [index.met_by(cluster, row) for row in rows]
    monkeypatch.setattr(wakeup_index, "FEW", 0)
    assert few == [index.met_by(cluster, row) for row in rows]
