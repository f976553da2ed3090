"""Pieces of CEL that several policies use: lists, who asks, and what of a pod is claimed.

CEL is the language of the API server's policies. Only what Kubernetes 1.30 knows is used here.
"""

from collections.abc import Iterable

from gpu_orchestrator.api import names

_OURS = f"system:serviceaccount:{names.NAMESPACE}:"
USER = "request.userInfo.username"

IS_SCHEDULER = f"{USER}.matches('^{_OURS}([a-z0-9.-]+-)?{names.SCHEDULER}$')"
"""The ServiceAccount of a gpu-scheduler in our namespace: of the first, or of one whose name ends alike, as
that in examples/second-scheduler."""
IS_OPERATOR = f"{USER} == '{_OURS}{names.OPERATOR}'"
IS_AGENT = f"{USER} == '{_OURS}{names.AGENT}'"

IS_KUBERNETES = (
    f"{USER} == 'system:kube-controller-manager' || "
    "'system:serviceaccounts:kube-system' in request.userInfo.?groups.orValue([])"
)
"""Kubernetes' own controllers: those that delete what a namespace or an owner leaves behind."""

IS_ADMINISTRATOR = (
    "authorizer.group('admissionregistration.k8s.io').resource('validatingadmissionpolicies')"
    ".check('update').allowed()"
)
"""Somebody who could also change this policy. Needed to repair by hand, and to uninstall."""

CALLER_NODES = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'].orValue([])"
"""The node of the pod that the caller's token was made for; the API server checks that the pod is there."""

CONTAINERS = "dyn(object.spec.?initContainers.orValue([])) + dyn(object.spec.containers)"


def text_list(texts: Iterable[str]) -> str:
    return f"[{', '.join(repr(each) for each in texts)}]"


ASKS = text_list(names.ASKING_ANNOTATIONS)
ANSWERS = text_list(names.ANSWERING_ANNOTATIONS)


def annotations(of: str) -> str:
    return f"{of}.metadata.?annotations.orValue({{}})"


def is_claimed(of: str) -> str:
    """Return a condition that is true for a pod with one of the annotations that ask for GPUs."""
    return f"{ASKS}.exists(key, key in {annotations(of)})"


def old(part: str, otherwise: str) -> str:
    """Return what `oldObject` has of this part; `otherwise` if there is none, as at creation."""
    return f"oldObject == null ? {otherwise} : oldObject.{part}.orValue({otherwise})"


def same(keys: str, *, new: str, before: str) -> str:
    """Return a condition that is true if two maps have the same values, or none, at these keys."""
    return f"{keys}.all(key, {new}[?key] == {before}[?key])"
