"""The mix of requests that ordinary clients send to the manager, for load tests."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

TASK = {"task_type": "echo", "parameters": {"x": 1}, "resources": {"gpus": 0}}


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `name` is its route, for the figures."""

    method: str
    path: str
    name: str
    body: Any = None


def submit() -> Call:
    return Call("POST", "/tasks", "/tasks", TASK)


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
    """One client, which remembers its latest tasks."""

    rng: Random
    known: deque[str] = field(default_factory=lambda: deque(maxlen=50))

    def next(self) -> Call:
        (kind,) = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if kind in ("look", "explain") and not self.known:
            return submit()
        match kind:
            case "look":
                return Call("GET", f"/tasks/{self._one(self.known)}", "/tasks/{task_id}")
            case "explain":
                return Call("GET", f"/tasks/{self._one(self.known)}/explain", "/tasks/{task_id}/explain")
            case "list":
                return Call("GET", "/tasks?limit=20", "/tasks?limit=20")
            case "batch":
                return Call("POST", "/tasks/batch", "/tasks/batch", {"tasks": [TASK] * 10})
            case "status":
                return Call("GET", "/cluster/status", "/cluster/status")
            case "workers":
                return Call("GET", "/workers", "/workers")
            case "health":
                return Call("GET", "/health", "/health")
            case _:
                return submit()

    def remember(self, call: Call, answer: Any) -> None:
        """Remember the accepted tasks of an answer."""
        if call.method == "POST":
            accepted = answer.get("tasks", [answer])
            self.known.extend(each["task_id"] for each in accepted if "task_id" in each)

    def _one(self, names: Sequence[str]) -> str:
        return self.rng.choice(names)
