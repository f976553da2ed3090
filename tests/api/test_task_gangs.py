"""Ids of members, and what they are told of each other."""

import os

import pytest

from gpu_orchestrator.api.task_gangs import (
    FIRST_PORT,
    PORTS,
    TORCH,
    Gang,
    Peer,
    environment,
    members,
    port_of,
    split,
)
from gpu_orchestrator.apps.worker.environment import of_gang


@pytest.mark.parametrize(
    ("task", "gang", "rank"),
    [
        pytest.param("ab12-0", "ab12", 0, id="first"),
        pytest.param("ab12-511", "ab12", 511, id="last"),
        pytest.param("a-b-3", "a-b", 3, id="a gang with a dash"),
        pytest.param("f" * 32, "f" * 32, 0, id="no member"),
        pytest.param("local-x", "local-x", 0, id="no rank"),
    ],
)
def test_id_of_a_member_says_gang_and_rank(task: str, gang: str, rank: int) -> None:
    assert split(task) == (gang, rank)


def test_members_of_a_gang_are_known_by_its_size() -> None:
    assert [split(each) for each in members("g", 3)] == [("g", 0), ("g", 1), ("g", 2)]


def test_each_attempt_has_a_port_of_its_own_below_those_of_the_system() -> None:
    ports = [port_of("gang", attempt) for attempt in range(1, 50)]
    assert all(FIRST_PORT <= each < FIRST_PORT + PORTS < 32_768 for each in ports)
    assert len(set(ports)) > 45
    assert ports[0] == port_of("gang", 1)


def test_environment_of_a_member_is_gone_with_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "of the operator")
    gang = Gang("g", 1, (Peer("a", "10.0.0.1"), Peer("b", "fe80::2")), 20_001)
    before = dict(os.environ)
    with of_gang(gang, 2):
        told = {name: os.environ[name] for name in environment(gang, 2)}
    assert dict(os.environ) == before
    assert [told[name] for name in TORCH] == ["1", "2", "10.0.0.1", "20001"]
    assert (told["GANG_MEMBERS"], told["GANG_WORKERS"]) == ("10.0.0.1,fe80::2", "a,b")
    assert (told["GANG_ATTEMPT"], told["GANG_ADDRESS"], told["GANG_SIZE"]) == ("2", "10.0.0.1", "2")
