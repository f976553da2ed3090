"""Links between devices: how fast a set of them is, and which set is fastest."""

from math import inf

import pytest

from gpu_orchestrator.core import topology
from gpu_orchestrator.core.topology import Topology, best_link, first_set, mask_of, weakest_link
from tests.support.builders import links, two_islands

EIGHT = topology.from_links(range(8), two_islands())
RING = topology.from_links(range(4), {(0, 1): 100, (1, 2): 100, (2, 3): 100, (3, 0): 100})


@pytest.mark.parametrize(
    ("where", "devices", "gbps"),
    [
        pytest.param(EIGHT, (0, 3), 600, id="inside an island"),
        pytest.param(EIGHT, (0, 1, 4), 0, id="one of another island spoils it"),
        pytest.param(RING, (0, 1, 2), 0, id="linked through others is not linked"),
        pytest.param(EIGHT, (5,), inf, id="a single device has no slow pair"),
        pytest.param(EIGHT, (), inf, id="nothing has no slow pair"),
    ],
)
def test_set_is_as_fast_as_its_slowest_pair(where: Topology, devices: tuple[int, ...], gbps: float) -> None:
    assert weakest_link(where, devices) == gbps


@pytest.mark.parametrize(
    ("where", "free", "count", "gbps"),
    [
        pytest.param(EIGHT, range(8), 4, 600, id="a whole island"),
        pytest.param(EIGHT, (0, 1, 4, 5), 2, 600, id="half of one"),
        pytest.param(EIGHT, (0, 4), 2, 0, id="only across"),
        pytest.param(RING, range(4), 2, 100, id="neighbours on a ring"),
        pytest.param(RING, range(4), 3, 0, id="no three are all neighbours"),
        pytest.param(EIGHT, (0,), 2, -1, id="too few"),
    ],
)
def test_best_link_of_a_node(where: Topology, free: tuple[int, ...], count: int, gbps: float) -> None:
    assert best_link(where, mask_of(free), count) == gbps


def test_first_set_follows_preference_where_the_floor_allows() -> None:
    assert first_set(EIGHT, (7, 0, 6, 1), 2, 0) == (0, 7)
    assert first_set(EIGHT, (7, 0, 6, 1), 2, 600) == (6, 7)
    assert first_set(EIGHT, (7, 0), 2, 600) is None


def test_islands_are_derived_from_links_if_not_given() -> None:
    assert EIGHT.islands == (0, 0, 0, 0, 1, 1, 1, 1)
    assert RING.islands == (0, 0, 0, 0)
    assert topology.from_links((4, 9), {}).islands == (0, 1)
    assert topology.from_links((4, 9), {}, islands={4: 5, 9: 5}).islands == (5, 5)


def test_pair_bandwidths_are_derived_from_islands() -> None:
    told = topology.from_islands((0, 1, 2), islands={0: 0, 1: 0, 2: 1}, gbps={0: 600, 1: 300, 2: 600})
    assert told.bandwidth == ((0, 300, 0), (300, 0, 0), (0, 0, 0))


def test_large_irregular_node_is_answered_in_bounded_time() -> None:
    """Forty devices in a wiring with many near-cliques: perhaps not the best set, but one that is what it
    says."""
    pairs = {(a, b): 100 + (a * b) % 7 * 100 for a in range(40) for b in range(40) if a < b and (a + b) % 3}
    large = topology.from_links(range(40), pairs)
    best = best_link(large, mask_of(range(40)), 12)
    found = first_set(large, tuple(range(40)), 12, best)
    assert found is not None
    assert weakest_link(large, found) >= best


def test_links_can_be_given_in_either_order() -> None:
    assert topology.from_links((0, 1), {(1, 0): 9}) == topology.from_links((0, 1), links((0, 1), gbps=9))
