"""Groups of tests are handed to workers whole, heavy ones to one worker, and none is lost with a worker."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import side_by_side
from tests.support.side_by_side import HEAVY, HOMES, Groups

LIGHT = [f"tests/core/test_{file}.py::test_{number}" for file in "abc" for number in range(4)]
ALSO = {
    "cluster": ("tests/scenarios/agent/test_seen_devices.py", "tests/scenarios/kube/test_own_strategy.py")
}
"""Files with tests that need more than one: the first gives another its name."""
MEASURED = [f"{file}::test_it" for file in sorted(HEAVY)]


class Node:
    """A worker that notes which tests it was given."""

    def __init__(self) -> None:
        self.given: deque[int] = deque()
        self.ran: list[str] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: list[int]) -> None:
        assert indices, "a worker without a test to run reports nothing and gets nothing more"
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def start(nodes: list[Node], tests: list[str]) -> Any:
    config = SimpleNamespace(
        getvalue=lambda _: ["popen"] * len(nodes), option=SimpleNamespace(loadscopereorder=False)
    )
    groups: Any = Groups(config)  # type: ignore[arg-type]
    for node in nodes:
        groups.add_node(node)
        groups.add_node_collection(node, tests)
    groups.schedule()
    return groups


def run(groups: Any, tests: list[str], *nodes: Node) -> None:
    """Let the workers run their tests in turn until none has any left."""
    while any(node.given for node in nodes):
        for node in nodes:
            if node.given:
                index = node.given.popleft()
                node.ran.append(tests[index])
                groups.mark_test_complete(node, index)


def test_heavy_tests_run_on_one_worker() -> None:
    nodes = [Node(), Node()]
    run(start(nodes, MEASURED + LIGHT), MEASURED + LIGHT, *nodes)
    assert sorted(nodes[0].ran + nodes[1].ran) == sorted(MEASURED + LIGHT)
    assert [set(MEASURED) & set(node.ran) for node in nodes] == [set(MEASURED), set()]


def test_files_that_share_a_control_plane_run_on_one_worker() -> None:
    nodes = [Node(), Node()]
    shared = [f"{folder}/test_{file}.py::test_it" for folder in HOMES for file in "ab" if ".py" not in folder]
    light = [f"tests/core/test_{number}.py::test_it" for number in range(100)]
    tests = sorted(shared + light, key=side_by_side.rank)
    groups = start(nodes, tests)
    while any(node.given for node in nodes):
        for node, pace in zip(nodes, (1, 4), strict=True):
            for index in [node.given.popleft() for _ in range(min(pace, len(node.given)))]:
                node.ran.append(tests[index])
                groups.mark_test_complete(node, index)
    assert sorted(nodes[0].ran + nodes[1].ran) == sorted(tests)
    homes = [{side_by_side.home_of(test.partition("::")[0]) for test in node.ran} - {""} for node in nodes]
    assert homes[0].isdisjoint(homes[1])
    assert homes[0] | homes[1] == {"cluster", "operator_cluster", "agent_cluster"}
    for node in nodes:
        assert node.ran == sorted(node.ran, key=side_by_side.rank)


def test_two_of_many_workers_share_the_control_plane_that_most_files_need() -> None:
    nodes = [Node() for _ in range(side_by_side.MANY)]
    tests = [
        f"tests/scenarios/{each}/test_{at}.py::test_it" for each in ("webhook", "agent") for at in range(9)
    ]
    light = [f"tests/core/test_{number}.py::test_it" for number in range(200)]
    run(start(nodes, tests + light), tests + light, *nodes)
    homes = [{side_by_side.home_of(test.partition("::")[0]) for test in node.ran} - {""} for node in nodes]
    assert sorted(map(sorted, homes)) == [[], [], ["agent_cluster"], ["cluster"], ["cluster"]]


def test_group_of_another_workers_control_plane_is_taken_when_nothing_else_is_left() -> None:
    nodes = [Node(), Node()]
    tests = [f"tests/scenarios/operator/test_{file}.py::test_it" for file in "abcdefgh"]
    run(start(nodes, tests), tests, *nodes)
    assert all(len(node.ran) >= 3 for node in nodes)


def test_control_planes_are_those_that_the_tests_use(request: pytest.FixtureRequest) -> None:
    """A file that uses another one than the table says starts it where it was ended or never needed."""
    wrong = {
        (file, home)
        for item in request.session.items
        for home in ("operator_cluster", "agent_cluster", "cluster")
        if home in getattr(item, "fixturenames", ())
        and (file := item.nodeid.partition("::")[0]) not in ALSO.get(home, ())
        and side_by_side.home_of(file) != home
    }
    assert wrong == set()


@pytest.mark.parametrize("finished", [0, 3, 5])
def test_a_lost_worker_costs_only_the_test_it_ran(finished: int) -> None:
    lost, other = Node(), Node()
    groups = start([lost, other], LIGHT)
    for _ in range(finished):
        index = lost.given.popleft()
        lost.ran.append(LIGHT[index])
        groups.mark_test_complete(lost, index)
    crashed = LIGHT[lost.given[0]]
    assert groups.remove_node(lost) == crashed
    run(groups, LIGHT, other)
    assert sorted([*lost.ran, crashed, *other.ran]) == sorted(LIGHT)


def test_a_worker_is_lost_while_another_one_collects() -> None:
    lost, late = Node(), Node()
    groups = start([lost], LIGHT)
    groups.add_node(late)
    crashed = LIGHT[lost.given[0]]
    assert groups.remove_node(lost) == crashed
    groups.add_node_collection(late, LIGHT)
    groups.schedule()
    run(groups, LIGHT, late)
    assert sorted([crashed, *late.ran]) == sorted(LIGHT)


def test_heavy_and_first_files_exist(pytestconfig: pytest.Config) -> None:
    for path in (*HEAVY, *side_by_side.FIRST):
        assert (pytestconfig.rootpath / path).exists(), path
