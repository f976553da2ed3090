"""Islands and best bandwidth of devices, from their links."""

import pytest

from gpu_orchestrator.api.topology import Link, best_peer, islands


def nvlink(a: str, b: str, gbps: int = 600) -> Link:
    return Link(a, b, "NVLink", gbps)


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        pytest.param([], {"a": 0, "b": 1, "c": 2}, id="alone without links"),
        pytest.param([nvlink("a", "b")], {"a": 0, "b": 0, "c": 1}, id="a pair"),
        pytest.param([nvlink("c", "b")], {"a": 0, "b": 1, "c": 1}, id="in any order"),
        pytest.param([nvlink("a", "c"), nvlink("c", "b")], {"a": 0, "b": 0, "c": 0}, id="through another"),
        pytest.param([Link("a", "b", "XGMI", 128)], {"a": 0, "b": 0, "c": 1}, id="XGMI"),
        pytest.param([nvlink("a", "b", 0)], {"a": 0, "b": 0, "c": 1}, id="a link of unknown rate"),
        pytest.param([Link("a", "b", "PCIe", 64)], {"a": 0, "b": 1, "c": 2}, id="not over PCIe"),
        pytest.param([Link("a", "b", "System", 0)], {"a": 0, "b": 1, "c": 2}, id="not between sockets"),
        pytest.param([nvlink("a", "x")], {"a": 0, "b": 1, "c": 2}, id="a device that is not listed"),
    ],
)
def test_islands_are_joined_by_fast_links(links: list[Link], expected: dict[str, int]) -> None:
    assert islands(["a", "b", "c"], links) == expected


def test_best_peer_has_the_widest_link_of_any_kind() -> None:
    links = [nvlink("a", "b", 100), Link("c", "a", "PCIe", 128), nvlink("b", "c", 900)]
    assert [best_peer(each, links) for each in "abcd"] == [128, 900, 900, 0]
