"""What clients ask of a cluster manager all day, in the proportions in which they do."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

TASK = {"task_type": "echo", "parameters": {"x": 1}, "resources": {"gpus": 0}}


@dataclass(frozen=True, slots=True)
class Ask:
    """`name` is the route, for the figures."""

    method: str
    path: str
    name: str
    body: Any = None


def submit() -> Ask:
    return Ask("POST", "/tasks", "/tasks", TASK)


WEIGHTS = {
    "submit": 45,
    "look": 30,
    "list": 8,
    "batch": 4,
    "status": 5,
    "workers": 4,
    "explain": 2,
    "health": 2,
}


@dataclass
class Client:
    """One client with a memory of its latest tasks."""

    rng: Random
    known: deque[str] = field(default_factory=lambda: deque(maxlen=50))

    def next(self) -> Ask:
        (kind,) = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if kind in ("look", "explain") and not self.known:
            return submit()
        match kind:
            case "look":
                return Ask("GET", f"/tasks/{self._one(self.known)}", "/tasks/{task_id}")
            case "explain":
                return Ask("GET", f"/tasks/{self._one(self.known)}/explain", "/tasks/{task_id}/explain")
            case "list":
                return Ask("GET", "/tasks?limit=20", "/tasks?limit=20")
            case "batch":
                return Ask("POST", "/tasks/batch", "/tasks/batch", {"tasks": [TASK] * 10})
            case "status":
                return Ask("GET", "/cluster/status", "/cluster/status")
            case "workers":
                return Ask("GET", "/workers", "/workers")
            case "health":
                return Ask("GET", "/health", "/health")
            case _:
                return submit()

    def heard(self, ask: Ask, answer: Any) -> None:
        """Remember what was accepted."""
        if ask.method == "POST":
            accepted = answer.get("tasks", [answer])
            self.known.extend(each["task_id"] for each in accepted if "task_id" in each)

    def _one(self, names: Sequence[str]) -> str:
        return self.rng.choice(names)
