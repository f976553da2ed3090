"""Requests for `gpu.scheduling/milligpu`: a claimed pod what it counts for, all others nothing."""

from gpu_orchestrator.api import names
from gpu_orchestrator.api.admission_policies import cel
from gpu_orchestrator.api.admission_policies.claimed_pods import GPUS_PATTERN, NO_GPUS
from gpu_orchestrator.api.admission_policies.policy import Policy, Resources, Validation
from gpu_orchestrator.api.capacity import WHOLE_DEVICE

_GPUS = f"object.metadata.?annotations[?'{names.GPUS}']"
_HAS = f"'{names.MILLIGPU}' in {{}}.?resources.?{{}}.orValue({{{{}}}})"


def _counts(container: str) -> str:
    """Return a condition that is true if the container requests our resource."""
    return " || ".join(_HAS.format(container, kind) for kind in ("requests", "limits"))


def _amount(kind: str) -> str:
    return f"object.spec.containers[0].?resources.?{kind}[?'{names.MILLIGPU}'].orValue('0')"


UNCLAIMED = Policy(
    "gpu-orchestrator-unclaimed-capacity",
    f"{names.MILLIGPU} counts what pods ask of the gpu-scheduler; a pod that asks for nothing would only "
    "block it.",
    (Resources(("pods",), ("CREATE",)),),
    (
        Validation(
            f"({cel.CONTAINERS}).all(container, !({_counts('container')}))",
            f"{names.MILLIGPU} counts the GPUs of pods that ask for them by annotation; write {names.GPUS}: "
            '"1" or name a claim, and the number is filled in; or leave the resource out. To debug a claimed '
            "pod, use kubectl debug without --copy-to: a copy has the number, but no GPUs",
            reason="Invalid",
        ),
    ),
    conditions={"unclaimed": f"!({cel.is_claimed('object')})"},
)

CLAIMED = Policy(
    "gpu-orchestrator-claimed-capacity",
    "A pod that asks for GPUs requests what they count for, so that quotas and autoscalers count it.\n"
    "What a claim counts for is not known here: the gpu-scheduler compares.",
    (Resources(("pods",), ("CREATE",)),),
    (
        Validation(
            "variables.others.all(container, !(" + _counts("container") + "))",
            f"the first container requests {names.MILLIGPU} for the whole pod; remove it from the others",
            reason="Invalid",
        ),
        Validation(
            f"variables.requested == variables.limited && ({NO_GPUS} ? variables.requested == 0 : "
            "variables.requested >= 1)",
            f"a pod that asks for GPUs requests what they count for as {names.MILLIGPU}, in requests and "
            "limits of its "
            "first container; create its GpuClaim first, if it names one, and the webhook fills it in; is "
            "it down? kubectl "
            f"get deploy {names.WEBHOOK} -n {names.NAMESPACE}",
            reason="Invalid",
        ),
        Validation(
            f"!{_GPUS}.orValue('').matches('{GPUS_PATTERN}') || variables.requested == {WHOLE_DEVICE} * "
            f"int({_GPUS}.orValue('0'))",
            f"'the pod asks for ' + {_GPUS}.orValue('') + ' GPUs, each of which counts {WHOLE_DEVICE}, and "
            "requests ' "
            f"+ string(variables.requested) + ' {names.MILLIGPU}; leave the resource out, and it is filled "
            "in'",
            is_computed=True,
            reason="Invalid",
        ),
    ),
    conditions={"claimed": cel.is_claimed("object")},
    variables={
        "others": f"({cel.CONTAINERS}).filter(container, container.name != object.spec.containers[0].name)",
        "requested": f"quantity({_amount('requests')}).asInteger()",
        "limited": f"quantity({_amount('limits')}).asInteger()",
    },
)

POLICIES = (UNCLAIMED, CLAIMED)
