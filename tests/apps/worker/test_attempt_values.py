"""What the agent keeps of partial results, and when it sends them again."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempts import attempt_values
from gpu_orchestrator.apps.worker.attempts.attempt_values import AttemptValues, ValueCallbacks


class Agent:
    def __init__(self) -> None:
        self.keeps = self.joined = True
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.told: list[int] = []
        self.values = AttemptValues(
            ValueCallbacks(lambda: self.keeps, lambda: self.joined, self.sent.put_nowait)
        )

    def yields(self, at: int) -> None:
        self.values.sent(frames.Sent("t", 1, at, (msgspec.Raw(b"%d" % at),)), self.told.append)

    def answers(self, taken: int, *, later: bool = False) -> None:
        self.values.taken(session.Taken("t", 1, taken, later))

    async def next(self) -> int:
        async with asyncio.timeout(20):
            return int((await self.sent.get()).at)

    def all(self) -> list[int]:
        return [self.sent.get_nowait().at for _ in range(self.sent.qsize())]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    for name in ("TICK_S", "FIRST_S", "LONGEST_S"):
        monkeypatch.setattr(attempt_values, name, 0.001)
    return Agent()


async def test_refused_value_is_tried_alone_until_it_is_taken(agent: Agent) -> None:
    for at in range(3):
        agent.yields(at)
    assert agent.all() == [0, 1, 2]
    agent.answers(1)
    for _ in range(2):  # for each message under way
        agent.answers(1, later=True)
    assert await agent.next() == 1
    agent.yields(3)
    agent.answers(1, later=True)
    assert await agent.next() == 1
    assert agent.all() == []
    agent.answers(2)
    assert agent.all() == [2, 3]
    agent.answers(4)
    assert agent.told == [1, 2, 4]


async def test_values_go_again_when_nobody_answers(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_values, "SILENCE_S", 0.01)
    agent.yields(0)
    agent.yields(1)
    assert [await agent.next() for _ in range(4)] == [0, 1, 0, 0]
    agent.answers(1)
    assert await agent.next() == 1
    agent.answers(2)
    agent.values.ended(("t", 1))
    agent.answers(3)
    assert agent.told == [1, 2]


async def test_new_connection_gets_all_that_was_not_taken(agent: Agent) -> None:
    agent.yields(0)
    agent.yields(1)
    agent.answers(1)
    agent.joined = False
    agent.yields(2)
    assert agent.all() == [0, 1]
    agent.joined = True
    agent.values.joined()
    again = [agent.sent.get_nowait() for _ in range(2)]
    assert [(each.at, each.taken) for each in again] == [(1, 1), (2, 1)]
    agent.keeps = False
    agent.values.joined()
    agent.yields(3)
    assert agent.told == [1, 3, 4], "a manager that keeps no values holds nobody back"
    assert agent.all() == []
