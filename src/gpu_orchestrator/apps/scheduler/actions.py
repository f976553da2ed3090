"""What the coordinator asks an `Executor` to do, and the outcomes that come back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Lease, Pod
from gpu_orchestrator.api.volume_choice import VolumePlan
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device


@dataclass(frozen=True, slots=True)
class BindJob:
    """One decision of the engine, with all that is needed to carry it out. `claim` is the claim or template
    that the pod names; None if it asks for bare GPUs. `volumes` are those to be bound before the pod;
    `unready` says why that cannot be done. `queue` is the one whose quota it counts against, empty for
    none. `in_between`: the place is kept for another pod, and this one declares that it ends before."""

    pod: Pod
    placement: Placement
    devices: tuple[Device, ...]
    claim: GpuClaim | None = None
    volumes: VolumePlan | None = None
    unready: str = ""
    queue: str = ""
    in_between: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    job: BindJob


@dataclass(frozen=True, slots=True)
class Failed:
    """`found` are leases that made the job fail, or that it had to leave; the watch may not show them yet.
    `is_permanent`: the API server refused it, and will refuse it again."""

    job: BindJob
    why: str
    found: tuple[Lease, ...] = ()
    is_permanent: bool = False


Outcome = Bound | Failed


@dataclass(frozen=True, slots=True)
class PodEnded:
    """A pod that had devices has ended. Without a placement it had leases and was never bound."""

    pod: Pod
    placement: Placement | None


class Executor(Protocol):
    """Performs what the coordinator decides; `KubeExecutor` implements it. Every call returns at once, and
    results come back later, never from inside the call."""

    def bind(self, job: BindJob) -> None: ...

    def bind_gang(self, gang: str, jobs: Sequence[BindJob]) -> None: ...

    def abandon(self, job: BindJob, why: str) -> None: ...

    def report_refused(self, pod: Pod, why: str) -> None: ...

    def release(self, ended: PodEnded) -> None: ...

    def clear_leases(self, pod: Pod) -> None: ...

    def wake_at(self, moment: float | None) -> None: ...
