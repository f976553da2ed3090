"""MutatingAdmissionPolicies that fill a claimed pod in as the webhook does, without any process of ours.

They need Kubernetes 1.36. What a claim counts for is read from the claim itself: the policy has GpuClaims as
parameters, and the API server evaluates it for each claim of the pod's namespace, 0.1 ms each, also for pods
that claim nothing. The claims that the scheduler makes, one for each pod of a template, are left out by their
label; where people write hundreds of claims in one namespace, use the webhook.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_orchestrator.api import deviceenv, names
from gpu_orchestrator.api.admission_policies import cel
from gpu_orchestrator.api.admission_policies.claimed_pods import GPUS_PATTERN, NO_GPUS
from gpu_orchestrator.api.admission_policies.policy import API_VERSION, EXEMPT, Manifest, Resources, named
from gpu_orchestrator.api.capacity import WHOLE_DEVICE
from gpu_orchestrator.core.device import SLICES

CLAIM_KIND = {"apiVersion": f"{names.SCHEDULING_GROUP}/{names.SCHEDULING_VERSION}", "kind": "GpuClaim"}
_KEY = names.MILLIGPU.replace("/", "~1")
_FIRST = "object.spec.containers[0]"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A MutatingAdmissionPolicy. Each of the `patches` is an expression that returns a list of JSONPatch.
    They are joined: the API server spends milliseconds on each mutation. `of_claims`: the policy is
    evaluated with each GpuClaim of the namespace as `params`."""

    name: str
    about: str
    resources: Resources
    patches: tuple[str, ...]
    conditions: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    of_claims: bool = False
    namespaces: Mapping[str, Any] = field(default_factory=lambda: EXEMPT)

    def manifests(self) -> tuple[Manifest, Manifest]:
        """Return the policy and its binding. If it fails, a policy that refuses says what is missing."""
        spec: Manifest = {
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "IfNeeded",
            **({"paramKind": CLAIM_KIND} if self.of_claims else {}),
            "matchConstraints": {
                "namespaceSelector": dict(self.namespaces),
                "resourceRules": [self.resources.manifest()],
            },
            "matchConditions": named(self.conditions),
            "variables": named(self.variables),
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _joined(self.patches)}}],
        }
        written = {"matchExpressions": [{"key": names.MANAGED, "operator": "DoesNotExist"}]}
        every_claim: dict[str, Any] = {"paramRef": {"selector": written, "parameterNotFoundAction": "Allow"}}
        return (
            _manifest("MutatingAdmissionPolicy", self.name, spec),
            _manifest(
                "MutatingAdmissionPolicyBinding",
                self.name,
                {"policyName": self.name, **(every_claim if self.of_claims else {})},
            ),
        )


def _joined(patches: tuple[str, ...]) -> str:
    return " + ".join(f"({each})" for each in patches)


def _manifest(kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _variable(name: str, annotation: str) -> str:
    path = f"{{'fieldRef': {{'apiVersion': 'v1', 'fieldPath': \"metadata.annotations['{annotation}']\"}}}}"
    return f"{{'name': dyn('{name}'), 'valueFrom': dyn({path})}}"


_ENV = {"env": f"[{', '.join(_variable(*each) for each in names.DEVICE_ENV.items())}]"}
_VOID = {"env": f"[{{'name': '{names.NVIDIA_DEVICES_ENV}', 'value': '{deviceenv.VOID}'}}]"}


def _with_env(kind: str, *, unless: str = "false") -> str:
    """Return an expression that sets our variables first in each container of that list, in place of
    others of the same names."""
    return (
        f"object.spec.?{kind}.orValue([]).transformList(number, container, !({unless}), JSONPatch{{op: "
        "'add', "
        f"path: '/spec/{kind}/' + string(number) + '/env', value: dyn(variables.env) + "
        "dyn(container.?env.orValue([]).filter(each, !variables.env.exists(ours, ours.name == "
        "each.name)))})"
    )


def _uncounted(kind: str, part: str, *, which: str = "true") -> str:
    """Return an expression that removes our resource from the containers of that list."""
    return (
        f"object.spec.?{kind}.orValue([]).transformList(number, container, {which} && "
        f"'{names.MILLIGPU}' in container.?resources.?{part}.orValue({{}}), JSONPatch{{op: 'remove', "
        f"path: '/spec/{kind}/' + string(number) + '/resources/{part}/{_KEY}'}})"
    )


def _counted(amount: str) -> tuple[str, ...]:
    """Return expressions that set requests and limits of the first container to this number."""
    path, parts = "/spec/containers/0/resources", ("requests", "limits")
    made = [f"has({_FIRST}.resources) ? [] : [{_add(path, '{}')}]"]
    for part in parts:
        into = _add(f"{path}/{part}/{_KEY}", f"string({amount})")
        alone = _add(f"{path}/{part}", f"{{'{names.MILLIGPU}': string({amount})}}")
        made.append(f"has({_FIRST}.resources) && has({_FIRST}.resources.{part}) ? [{into}] : [{alone}]")
    return tuple(made)


def _add(path: str, value: str) -> str:
    return f"JSONPatch{{op: 'add', path: '{path}', value: {value}}}"


_TOLERATED = (
    "variables.missing.size() == 0 ? [] : [JSONPatch{op: 'add', path: '/spec/tolerations', "
    "value: dyn(object.spec.?tolerations.orValue([])) + dyn(variables.missing.map(key, "
    "{'key': key, 'operator': 'Exists'}))}]"
)
_MISSING = (
    f"{cel.text_list(names.GPU_RESOURCES)}.filter(key, !object.spec.?tolerations.orValue([]).exists(each, "
    "each.?key.orValue('') == key && each.?operator.orValue('') == 'Exists' && each.?effect.orValue('') == "
    "'' && "
    "each.?value.orValue('') == '' && !has(each.tolerationSeconds)))"
)
_LEFT_RUNNING = tuple(
    f"'{key}' in object.metadata.annotations ? [] : "
    f"[{_add('/metadata/annotations/' + key.replace('/', '~1'), repr(value))}]"
    for key, value in names.KEEP_RUNNING.items()
)
_NAMED = (
    f"object.spec.?schedulerName.orValue('') in {cel.text_list(names.KUBE_SCHEDULER)} ? "
    f"[JSONPatch{{op: 'add', path: '/spec/schedulerName', value: '{names.SCHEDULER}'}}] : []"
)
_DEVICES = "params.spec.devices"
_OF_ONE = (
    f"{_DEVICES}.?exclusivity.orValue('') == 'Shared' ? "
    f"(has({_DEVICES}.memoryMiB) ? {WHOLE_DEVICE} : {_DEVICES}.?share.orValue({WHOLE_DEVICE})) : "
    f"{_DEVICES}.?exclusivity.orValue('') == 'MIG' && variables.profile.matches('^([1-7]c[.])?[1-7]g[.]') ? "
    "int(variables.profile.split('g.')[0].split('.').map(part, part.substring(part.size() - "
    "1)).reverse()[0]) * "
    f"{WHOLE_DEVICE} / {SLICES} : {WHOLE_DEVICE}"
)
_KNOWN = {"known": "oldObject.spec.?ephemeralContainers.orValue([]).map(container, container.name)"}
CREATED = Resources(("pods",), ("CREATE",))

PODS = Mutation(
    "gpu-orchestrator-fill-pods",
    "A pod that asks for GPUs gets its scheduler, device variables and tolerations, and requests nothing "
    "that its\n"
    "devices do not count for. Autoscalers leave it where it is.",
    CREATED,
    (
        _NAMED,
        *_LEFT_RUNNING,
        _with_env("initContainers"),
        _with_env("containers"),
        _TOLERATED,
        _uncounted("initContainers", "requests"),
        _uncounted("initContainers", "limits"),
        _uncounted("containers", "requests", which="number > 0"),
        _uncounted("containers", "limits", which="number > 0"),
    ),
    {"claimed": cel.is_claimed("object")},
    {**_ENV, "missing": _MISSING},
)

WHOLE = Mutation(
    "gpu-orchestrator-fill-gpus",
    f"What whole GPUs count for: {WHOLE_DEVICE} each.",
    CREATED,
    _counted("variables.amount"),
    {
        "whole-gpus": f"(object.metadata.?annotations[?'{names.GPUS}'].orValue('').matches('{GPUS_PATTERN}') "
        f"|| {NO_GPUS}) && "
        f"{cel.ASKS}.filter(key, key in object.metadata.annotations).size() == 1"
    },
    {"amount": f"{WHOLE_DEVICE} * int(object.metadata.annotations['{names.GPUS}'])"},
)

CLAIMS = Mutation(
    "gpu-orchestrator-fill-claims",
    "What a claim counts for. A share of memory counts as a whole device here: its part is not known.",
    CREATED,
    _counted("variables.amount"),
    {
        "its-claim": f"{cel.ASKS}.filter(key, key in {cel.annotations('object')}).size() == 1 && "
        f"object.metadata.?annotations[?'{names.CLAIM}'].or(object.metadata.?annotations"
        f"[?'{names.CLAIM_TEMPLATE}']).orValue('') == params.metadata.name"
    },
    {
        "profile": f"{_DEVICES}.?migProfile.orValue('')",
        "amount": f"{_DEVICES}.?count.orValue(1) * ({_OF_ONE})",
    },
    of_claims=True,
)

LATE = Mutation(
    "gpu-orchestrator-fill-late-containers",
    "A container that `kubectl debug` adds sees the GPUs of its pod. Others of the pod cannot change any "
    "more.",
    Resources(("pods/ephemeralcontainers",), ("UPDATE",)),
    (_with_env("ephemeralContainers", unless="container.name in variables.known"),),
    {"claimed": cel.is_claimed("object")},
    {**_ENV, **_KNOWN},
)

_HIDING = {"matchLabels": {names.HIDE_GPUS: "true"}, **EXEMPT}
_UNCLAIMED = {"unclaimed": f"!({cel.is_claimed('object')})"}

HIDE = Mutation(
    "gpu-orchestrator-hide-gpus",
    "In a namespace that an administrator labelled for it, a pod that asks for no GPU sees none.",
    CREATED,
    (_with_env("initContainers"), _with_env("containers")),
    _UNCLAIMED,
    _VOID,
    namespaces=_HIDING,
)

HIDE_LATE = Mutation(
    "gpu-orchestrator-hide-gpus-late",
    "The same for a container that `kubectl debug` adds.",
    LATE.resources,
    LATE.patches,
    _UNCLAIMED,
    {**_VOID, **_KNOWN},
    namespaces=_HIDING,
)

MUTATIONS = (PODS, WHOLE, CLAIMS, LATE, HIDE, HIDE_LATE)
