"""Queues with quota share GPU time by weight, in virtual time, however long their pods run."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

import pytest

from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.engine import turns
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Event,
    NodeUpdated,
    Place,
    Placed,
    QueueUpdated,
    RequestAdded,
    RequestRemoved,
)
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import node, request

GPUS, UNTIL_S = 8, 3_000.0


@dataclass(frozen=True)
class Load:
    """Of a queue: as many pods of one GPU as this wait or run at any time, each for a length of time."""

    at_once: int
    length_s: float


@dataclass
class Yard:
    """Eight GPUs and a clock. `used` is GPU time by queue."""

    loads: Mapping[str, Load]
    terms: tuple[QueueTerms, ...]
    now: float = 0.0
    used: Counter[str] = field(default_factory=Counter)
    running: list[tuple[float, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng, self.made = Random(1), 0
        self.engine = Engine(Registry().policy_of, Random(1))
        self.tell(NodeUpdated(node("a", GPUS)), *map(QueueUpdated, self.terms))

    def tell(self, *events: Event) -> None:
        for action in self.engine.handle_all(events, self.now):
            if isinstance(action, Place):
                queue = action.request.queue
                ends = min(self.now + self.loads[queue].length_s * self.rng.uniform(0.8, 1.2), UNTIL_S)
                self.used[queue] += ends - self.now  # type: ignore[assignment]
                heappush(self.running, (ends, action.request.key, queue))
                self.tell(Placed(action.request.key))

    def one_more(self, queue: str) -> Event:
        self.made += 1
        return RequestAdded(request(f"{queue}-{self.made}", 1, queue=queue))

    def shares(self) -> dict[str, float]:
        """Return the part of all GPU time that each queue had."""
        self.tell(*(self.one_more(name) for name, load in self.loads.items() for _ in range(load.at_once)))
        while self.running:
            self.now, key, queue = heappop(self.running)
            if self.now >= UNTIL_S:
                break
            self.tell(RequestRemoved(key), self.one_more(queue))
        return {name: self.used[name] / (GPUS * UNTIL_S) for name in self.loads}


@pytest.mark.parametrize(
    ("terms", "loads", "due"),
    [
        pytest.param(
            [QueueTerms("a"), QueueTerms("b")],
            {"a": Load(40, 25.0), "b": Load(9, 6.0)},
            {"a": 1 / 2, "b": 1 / 2},
            id="equal weights, unequal demand",
        ),
        pytest.param(
            [QueueTerms("a", weight=3.0), QueueTerms("b")],
            {"a": Load(20, 6.0), "b": Load(20, 20.0)},
            {"a": 3 / 4, "b": 1 / 4},
            id="weights",
        ),
        pytest.param(
            [QueueTerms("a"), QueueTerms("b"), QueueTerms("c")],
            {"a": Load(1, 20.0), "b": Load(20, 20.0), "c": Load(20, 5.0)},
            {"a": 1 / 8, "b": 7 / 16, "c": 7 / 16},
            id="what one does not want is shared by the others",
        ),
        pytest.param(
            [QueueTerms("org"), QueueTerms("a", "org"), QueueTerms("b", "org"), QueueTerms("c")],
            {"a": Load(20, 9.0), "b": Load(20, 20.0), "c": Load(20, 5.0)},
            {"a": 1 / 4, "b": 1 / 4, "c": 1 / 2},
            id="below a queue they share what it has",
        ),
        pytest.param(
            [QueueTerms("a", limit={"*": 1000}), QueueTerms("b"), QueueTerms("c")],
            {"a": Load(20, 9.0), "b": Load(20, 20.0), "c": Load(20, 5.0)},
            {"a": 1 / 8, "b": 7 / 16, "c": 7 / 16},
            id="one at its limit",
        ),
        pytest.param(
            [QueueTerms("a", guaranteed={"*": 6000}), QueueTerms("b")],
            {"a": Load(20, 9.0), "b": Load(20, 20.0)},
            {"a": 6 / 8, "b": 2 / 8},
            id="what is guaranteed comes first",
        ),
        pytest.param(
            [QueueTerms("a")],
            {"a": Load(20, 9.0), "": Load(20, 20.0)},
            {"a": 1 / 2, "": 1 / 2},
            id="pods in no queue are one more",
        ),
    ],
)
@pytest.mark.parametrize("few", [0, 16])
def test_queues_end_within_two_percent_of_their_fair_share(
    monkeypatch: pytest.MonkeyPatch,
    terms: list[QueueTerms],
    loads: dict[str, Load],
    due: dict[str, float],
    few: int,
) -> None:
    """Few flows are compared each time, many are kept in order."""
    monkeypatch.setattr(turns, "FEW", few)
    monkeypatch.setattr(turns, "FEW_FLOWS", few)
    assert Yard(loads, tuple(terms)).shares() == pytest.approx(due, abs=0.02)
