"""What the desk asks others to do; `work` does it."""

from dataclasses import dataclass
from typing import Protocol

from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.bind import Job
from gpu_orchestrator.core.answer import Placement


@dataclass(frozen=True, slots=True)
class Ended:
    """A pod that lives no longer and had devices; without a placement it had leases and was never bound."""

    pod: Pod
    placement: Placement | None


class Hands(Protocol):
    """All of it returns at once."""

    def place(self, job: Job) -> None: ...

    def give_up(self, job: Job, why: str) -> None: ...

    def refuse(self, pod: Pod, why: str) -> None: ...

    def ended(self, ended: Ended) -> None: ...

    def clear(self, pod: Pod) -> None: ...

    def wake_at(self, moment: float | None) -> None: ...
