"""All members of a gang get places, or none does and the answer says why."""

import random
from typing import Any

import pytest

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.gang import Gang, GangRefusal, decide_gang
from gpu_orchestrator.core.request import GangTerms, Request
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import cluster, node, request, whole

REGISTRY = Registry()
POLICY = REGISTRY.policy()


def gang(*gpus: int, least: int | None = None, domain: str = "", near: str = "", **shape: Any) -> Gang:
    members = tuple(request(f"m{number}", each, **shape) for number, each in enumerate(gpus))
    terms = GangTerms("g", least or len(gpus), domain, near)
    return Gang(terms, members, terms.least)


def decided(asked: Gang, *nodes: Any, held: tuple[Placement, ...] = ()) -> tuple[Placement, ...]:
    answer = _decide(asked, *nodes, held=held)
    assert not isinstance(answer, GangRefusal), answer.refusal.message
    return answer


def refused(asked: Gang, *nodes: Any, held: tuple[Placement, ...] = ()) -> GangRefusal:
    answer = _decide(asked, *nodes, held=held)
    assert isinstance(answer, GangRefusal), answer
    return answer


def _decide(asked: Gang, *nodes: Any, held: tuple[Placement, ...]) -> tuple[Placement, ...] | GangRefusal:
    world = cluster(*nodes)
    for each in held:
        world.place(each)
    before = {each.name: world.free_gpus(each.name) for each in nodes}
    answer = decide_gang(asked, world, _policy, random.Random(1))
    assert {each.name: world.free_gpus(each.name) for each in nodes} == before  # it changes nothing
    return answer


def _policy(member: Request) -> Any:
    return REGISTRY.policy(member.strategy) if member.strategy else POLICY


def test_four_members_of_eight_gpus_fill_four_nodes() -> None:
    placed = decided(gang(8, 8, 8, 8), *(node(name, 8) for name in "abcd"))
    assert sorted(each.node for each in placed) == ["a", "b", "c", "d"]
    assert {each.key for each in placed} == {"m0", "m1", "m2", "m3"}


def test_three_nodes_are_one_too_few_and_the_answer_counts() -> None:
    said = refused(gang(8, 8, 8, 8), *(node(name, 8) for name in "abc"))
    assert said.refusal.never
    assert said.refusal.message == (
        "gang g: 3 of 4 members fit together; for the next one 0/3 nodes fit: 3 have fewer than 8 free GPUs"
    )


def test_busy_cluster_may_take_the_gang_later() -> None:
    said = refused(gang(8, 8), node("a", 8), node("b", 8), held=(whole("other", "a", 0),))
    assert (said.placed, said.refusal.never) == (1, False)


def test_large_members_go_first_whatever_their_order() -> None:
    """Placed in the order given, the small one would take a GPU of the only node for the large one."""
    placed = decided(gang(1, 4), node("a", 4), node("b", 2))
    assert {each.key: each.node for each in placed} == {"m0": "b", "m1": "a"}


@pytest.mark.parametrize(
    ("strategy", "size", "members"),
    [
        pytest.param("leastLoaded", 9, (5, 4, 3, 3, 3), id="5 and 4, then 3 three times"),
        pytest.param("binPack", 8, (4, 3, 3, 2, 2, 2), id="4, 2 and 2, then 3, 3 and 2"),
    ],
)
def test_mixed_members_are_searched_before_they_are_refused(
    strategy: str, size: int, members: tuple[int, ...]
) -> None:
    """The strategy's first choices leave no room for the last member."""
    placed = decided(gang(*members, strategy=strategy), node("a", size), node("b", size))
    assert sum(len(each.devices) for each in placed) == 2 * size


def test_search_takes_no_more_steps_in_many_domains_than_in_one() -> None:
    """Members that differ, in racks that have enough by the numbers and yet no room: each is searched."""
    names = [(rack, f"{rack}-{at}") for rack in "abcdefgh" for at in range(6)]
    racks = [node(name, 8, resources={"cpu": 100}, labels={"rack": rack}) for rack, name in names]
    members = [request(f"m{at}", 5, resources={"cpu": 1 + at % 2}) for at in range(6)]
    asked = Gang(GangTerms("g", 7, "rack"), (*members, request("last", 4)), 7)
    steps = [100]
    answer = decide_gang(asked, cluster(*racks), lambda _: POLICY, random.Random(1), steps)
    assert isinstance(answer, GangRefusal)
    assert steps == [0]


def test_launcher_without_gpus_is_a_member_too() -> None:
    placed = decided(gang(0, 8, 8), node("a", 8), node("b", 8))
    assert len(placed) == 3
    assert refused(gang(0, 8, 8), node("a", 8)).placed == 2


@pytest.mark.parametrize(("nodes", "count"), [(2, 2), (3, 3), (4, 4), (5, 4)])
def test_more_than_the_least_start_where_there_is_room(nodes: int, count: int) -> None:
    names = "abcde"[:nodes]
    assert len(decided(gang(8, 8, 8, 8, least=2), *(node(name, 8) for name in names))) == count


def test_least_members_may_be_the_small_ones() -> None:
    placed = decided(gang(8, 1, 1, least=2), node("a", 2))
    assert {each.key for each in placed} == {"m1", "m2"}


class TestDomains:
    RACKS = (
        node("a", 8, labels={"rack": "1"}),
        node("b", 8, labels={"rack": "1"}),
        node("c", 8, labels={"rack": "2"}),
        node("d", 8),
    )

    def test_all_members_get_one_value_of_the_label(self) -> None:
        placed = decided(gang(8, 8, domain="rack"), *self.RACKS)
        assert {each.node for each in placed} == {"a", "b"}

    def test_the_domain_with_the_least_to_spare_is_taken(self) -> None:
        placed = decided(gang(4, 4, domain="rack"), *self.RACKS)
        assert {each.node for each in placed} == {"c"}

    def test_no_domain_is_large_enough(self) -> None:
        said = refused(gang(8, 8, 8, domain="rack"), *self.RACKS)
        assert said.refusal.message == (
            "gang g: 0 of 3 members fit together in one rack; for the next one 0/4 nodes fit: "
            "4 are in a rack with too little free for 3 members"
        )

    def test_no_node_has_the_label(self) -> None:
        said = refused(gang(1, 1, domain="block"), *self.RACKS)
        assert said.refusal.never
        assert "have no label block" in said.refusal.message

    def test_nodes_without_the_label_are_no_domain_of_their_own(self) -> None:
        assert refused(gang(8, domain="rack"), node("d", 8), node("e", 0, labels={"rack": "1"})).placed == 0

    def test_domain_that_has_enough_in_sum_but_not_on_a_node_is_passed_over(self) -> None:
        half = node("a", 4, labels={"rack": "1"}), node("b", 4, labels={"rack": "1"})
        assert {each.node for each in decided(gang(8, domain="rack"), *half, self.RACKS[2])} == {"c"}

    def test_selector_of_a_member_still_counts(self) -> None:
        said = refused(gang(8, 8, domain="rack", labels={"rack": "2"}), *self.RACKS)
        assert said.refusal.message == (
            "gang g: 0 of 2 members fit together in one rack; for the next one 0/4 nodes fit: "
            "2 are in another rack, 2 do not match the selector rack=2"
        )

    def test_a_domain_is_preferred_where_there_is_one_and_ignored_where_there_is_none(self) -> None:
        assert {each.node for each in decided(gang(8, 8, near="rack"), *self.RACKS)} == {"a", "b"}
        assert len(decided(gang(8, 8, 8, 8, near="rack"), *self.RACKS)) == 4


@pytest.mark.parametrize("least", [0, 3])
def test_least_that_cannot_be_is_refused(least: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{least} members of gang g must start together, and it has 2"):
        Gang(GangTerms("g", least), (request("a"), request("b")), least)
