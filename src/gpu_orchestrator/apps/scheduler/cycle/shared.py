"""What the coordinator shares with `bound_pods` and `unbound_pods`: its parts, and what they know of pods."""

from dataclasses import dataclass, field

from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.accounting.holdings import Holdings
from gpu_orchestrator.apps.scheduler.accounting.lease_index import LeaseIndex
from gpu_orchestrator.apps.scheduler.accounting.pod_queues import PodQueues
from gpu_orchestrator.apps.scheduler.actions import BindJob, Executor
from gpu_orchestrator.apps.scheduler.cycle.claim_users import ClaimUsers
from gpu_orchestrator.apps.scheduler.cycle.pending import PendingPods
from gpu_orchestrator.apps.scheduler.cycle.surroundings import Surroundings
from gpu_orchestrator.apps.scheduler.informers import Stores


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """`clears_leftovers`: clear unknown leases of an unbound pod at once. Only a single scheduler may do so;
    beside others, such a lease may be another scheduler's bind in progress. Leases found at the start are
    cleared by every scheduler: most of them are its own, from before a crash. `uses_leases`: False if devices
    have no leases; then a pod's annotation is the only word on its devices. `max_waiting_shapes`: how many
    different shapes of one namespace are considered at once. `requires_env`: refuse pods whose containers do
    not take their devices from our annotations. `requires_capacity`: refuse pods that request less
    `gpu.scheduling/milligpu` than their GPUs count for. `guarded_annotations`: nobody but a scheduler can
    write the devices of a bound pod into its annotation. `enforced_run_times`: a run time that only the
    pod's annotation declares does not count."""

    scheduler_name: str = names.SCHEDULER
    clears_leftovers: bool = True
    uses_leases: bool = True
    max_waiting_shapes: int = 1000
    requires_env: bool = False
    requires_capacity: bool = False
    guarded_annotations: bool = False
    enforced_run_times: bool = False


@dataclass(slots=True)
class Shared:
    """`binding` are the running bind jobs, and `failures` how often in a row the bind of a pod has failed,
    each by the pod's UID. `is_opened`: the initial state is known."""

    config: CoordinatorConfig
    stores: Stores
    executor: Executor
    our_pods: dict[str, Pod]
    binding: dict[str, BindJob]
    pending: PendingPods
    holdings: Holdings
    lease_index: LeaseIndex
    surroundings: Surroundings
    claim_users: ClaimUsers
    queues: PodQueues
    failures: dict[str, int] = field(default_factory=dict)
    is_opened: bool = False

    def is_placed(self, uid: str) -> bool:
        """Return True if the pod is bound or being bound."""
        return uid in self.binding or uid in self.holdings
