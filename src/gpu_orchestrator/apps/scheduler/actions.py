"""What the desk asks others to do, and what comes back. `work` is the `Executor` that does it."""

from dataclasses import dataclass
from typing import Protocol

from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Lease, Pod
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device


@dataclass(frozen=True, slots=True)
class BindJob:
    """One decision of the engine, with all that is needed to carry it out. `claim` is the claim or template
    that the pod names; None when it asked for bare GPUs."""

    pod: Pod
    placement: Placement
    devices: tuple[Device, ...]
    claim: GpuClaim | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    job: BindJob


@dataclass(frozen=True, slots=True)
class Failed:
    """`found` are other holders' leases that the job ran into, maybe before the watch shows them."""

    job: BindJob
    why: str
    found: tuple[Lease, ...] = ()


Outcome = Bound | Failed


@dataclass(frozen=True, slots=True)
class PodEnded:
    """A pod has ended and had devices; without a placement it had leases and was never bound."""

    pod: Pod
    placement: Placement | None


class Executor(Protocol):
    """Performs what the desk decides. Every call returns at once and calls back later, never from inside."""

    def place(self, job: BindJob) -> None: ...

    def abandon(self, job: BindJob, why: str) -> None: ...

    def refuse(self, pod: Pod, why: str) -> None: ...

    def ended(self, ended: PodEnded) -> None: ...

    def clear(self, pod: Pod) -> None: ...

    def wake_at(self, moment: float | None) -> None: ...
