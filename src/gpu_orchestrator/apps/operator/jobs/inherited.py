"""Which labels and annotations of a workload its Job and its pods get.

Called by `job` and `template`. Labels are what people and tools select, queue and bill by, so all of them go
down except those that another controller would take for its own. Annotations go to the Job only; those of the
pods are in the template.
"""

from collections.abc import Mapping

from gpu_orchestrator.api import names

OURS = (f"{names.WARP_GROUP}/", f"{names.SCHEDULING_GROUP}/")
JOB_CONTROLLER = ("batch.kubernetes.io/", "controller-uid", "job-name")
# Tools that delete or adopt every object with their mark.
TOOLS = ("applyset.kubernetes.io/", "argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/")
NOTES_OF_TOOLS = ("kubectl.kubernetes.io/", "meta.helm.sh/", "helm.sh/")
# A queue admits the Job as a whole, not its pods one by one.
QUEUES = ("kueue.x-k8s.io/",)
# Services and PodDisruptionBudgets of the chart that the workload is in select pods by these.
CHARTS = ("app.kubernetes.io/", "helm.sh/")


def labels(of_workload: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that the Job gets from its workload."""
    return _without(of_workload, (*OURS, *JOB_CONTROLLER, *TOOLS))


def pod_labels(of_workload: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that the pods get from the workload: also the GpuQueue that it names."""
    queue = {names.QUEUE: of_workload[names.QUEUE]} if names.QUEUE in of_workload else {}
    return {**_without(labels(of_workload), (*QUEUES, *CHARTS)), **queue}


def annotations(of_workload: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that the Job gets from its workload."""
    return _without(of_workload, (*OURS, *JOB_CONTROLLER, *TOOLS, *NOTES_OF_TOOLS))


def _without(found: Mapping[str, str], reserved: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in found.items() if not name.startswith(reserved)}
