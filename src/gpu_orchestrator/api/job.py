"""Jobs on the wire: a Job with its pod template, and its pods after they have ended.

The operator writes Jobs and reads them back; only the fields that it needs are decoded.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import PodSpec, StatusCondition
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire, keep_annotations

NODE_FIELD = "metadata.name"
DEADLINE_EXCEEDED = "DeadlineExceeded"  # the reason of a Job or a pod that ran into its deadline
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"


class PodTemplate(Wire, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class JobSpec(Wire, frozen=True, gc=False):
    suspend: bool = False
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    template: PodTemplate = PodTemplate()


class UncountedPods(Wire, frozen=True, gc=False):
    """UIDs of pods that ended and are not yet in the Job's counts."""

    succeeded: list[str] = []
    failed: list[str] = []


class JobStatus(Wire, frozen=True, gc=False):
    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    start_time: str = ""
    completion_time: str = ""
    conditions: list[StatusCondition] = []
    uncounted_terminated_pods: UncountedPods = UncountedPods()


class Job(Wire, frozen=True, gc=False):
    """A Job with its pod template, which says on which node it runs and what it takes there."""

    metadata: ObjectMeta
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    def __post_init__(self) -> None:
        keep_annotations(self.metadata, {names.MADE_FROM: 1024})
        keep_annotations(self.spec.template.metadata, {})

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the operator chose, best first; none for a claimed Job, whose affinity is the
        user's own. The operator's condition is the first of each term."""
        if self.is_claimed:
            return ()
        required = self.spec.template.spec.affinity.node_affinity.required
        terms = required.node_selector_terms if required else []
        first = [term.match_fields[0] for term in terms if term.match_fields]
        chosen = [each for each in first if each.key == NODE_FIELD and each.operator == "In"]
        return tuple(dict.fromkeys(name for each in chosen for name in each.values))

    @property
    def node(self) -> str:
        """The node on which the Job must run; empty if a scheduler chooses one."""
        nodes = self.nodes
        return nodes[0] if len(nodes) == 1 else ""

    @property
    def is_claimed(self) -> bool:
        """True if the gpu-scheduler places its pods."""
        return self.spec.template.spec.scheduler_name == names.SCHEDULER

    @property
    def has_made_pods(self) -> bool:
        """True if the Job's status shows a pod, whether or not it has ended."""
        state, uncounted = self.status, self.status.uncounted_terminated_pods
        counted = state.active or state.terminating or state.succeeded or state.failed
        return bool(counted or uncounted.succeeded or uncounted.failed)

    @property
    def is_deleting(self) -> bool:
        return bool(self.metadata.deletion_timestamp)

    @property
    def is_complete(self) -> bool:
        return self._condition("Complete") is not None

    @property
    def failure(self) -> StatusCondition | None:
        """Why it failed. A Job whose pod is stuck on a lost node has only `FailureTarget` for a long time,
        but it cannot recover from that."""
        return self._condition("Failed") or self._condition("FailureTarget")

    @property
    def is_finished(self) -> bool:
        return self.is_complete or self.failure is not None

    def _condition(self, kind: str) -> StatusCondition | None:
        return next(
            (each for each in self.status.conditions if (each.type, each.status) == (kind, "True")), None
        )


class Terminated(Wire, frozen=True, gc=False):
    exit_code: int = 0
    reason: str = ""


class ContainerState(Wire, frozen=True, gc=False):
    terminated: Terminated | None = None


class ContainerStatus(Wire, frozen=True, gc=False):
    name: str = ""
    state: ContainerState = ContainerState()


class EndedStatus(Wire, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    message: str = ""
    init_container_statuses: list[ContainerStatus] = []
    container_statuses: list[ContainerStatus] = []


class EndedSpec(Wire, frozen=True, gc=False):
    node_name: str = ""


class EndedPod(Wire, frozen=True, gc=False):
    """A pod that has ended: where it ran, and how its containers ended."""

    metadata: ObjectMeta
    spec: EndedSpec = EndedSpec()
    status: EndedStatus = EndedStatus()


JOBS = Resource(Job, "Job", "jobs", "batch")
ENDED_PODS = Resource(EndedPod, "Pod", "pods")
