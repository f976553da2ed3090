"""Among the nodes that fit, `decide_among` chooses as `decide` does."""

from random import Random

import pytest

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import where
from gpu_orchestrator.core.decide import decide, decide_among
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.standing import FITS, current
from gpu_orchestrator.policies.registry import Registry
from tests.support.generators import ALLOCATORS, STRATEGIES, a_node, a_shape


@pytest.mark.parametrize("seed", range(120))
def test_nodes_that_fit_are_enough_to_decide(seed: int) -> None:
    rng = Random(seed)
    cluster = Cluster([a_node(rng, f"n{number}") for number in range(8)])
    policy = Registry().policy(rng.choice(STRATEGIES), rng.choice(ALLOCATORS))
    for number in range(6):
        request = Request(f"r{number}", a_shape(rng))
        rows = where(current(request.shape, cluster, policy).codes == FITS).tolist()
        expected = decide(request, cluster.copy(), policy, Random(seed))
        rng.shuffle(rows)
        assert decide_among(rows, request, cluster, policy, Random(seed)) == expected
        if rows:
            cluster.place(expected)  # type: ignore[arg-type] # it fits
