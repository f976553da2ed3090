"""What the schema of a GpuClaim and of a GPUWorkload cannot say: contradictions, and fields without effect.

Called by the webhook before such an object is stored. A problem is certain: nothing could ever serve the
request, whatever nodes join. What merely has no effect is a warning. Each says what to write instead.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpu_orchestrator.api import claims, template_checks, template_reading
from gpu_orchestrator.api.devices import DeviceWish, Topology
from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.template_checks import InvalidTemplate

MAKERS = {
    "nvidia": ("nvidia", "tesla", "geforce", "quadro"),
    "amd": ("amd", "radeon", "instinct"),
    "intel": ("intel",),
}
"""How the names of a vendor's models begin, in small letters."""
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Findings:
    """`problems` refuse the object; `warnings` are shown to its author."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def of_claim(spec: GpuClaimSpec) -> Findings:
    count = spec.devices.count
    return Findings(
        tuple(_problems("spec", spec.devices, spec.selector.match_labels)),
        tuple(_without_effect("spec", spec.devices, count, spec.topology)),
    )


def of_workload(workload: GPUWorkload) -> Findings:
    """Return what is wrong with a workload. Without `spec.claim`, the operator's default decides which path
    it takes, so only what both refuse is a problem."""
    claim, problem = workload.spec.claim, _template_problem(workload)
    problems = (problem,) if problem else ()
    if claim is None:
        return Findings(problems)
    return Findings(
        (*problems, *_problems("spec.claim", claim.devices, claim.selector.match_labels)),
        tuple(_without_effect("spec.claim", claim.devices, workload.spec.gpu_count, claim.topology)),
    )


def _template_problem(workload: GPUWorkload) -> str:
    try:
        template_checks.check_depth(workload)
        if workload.spec.claim is not None:
            template_reading.read(workload, claimed=True)
        else:
            template_reading.check_either(workload)
    except InvalidTemplate as error:
        return str(error)
    return ""


def _problems(at: str, wish: DeviceWish, labels: dict[str, str]) -> Iterator[str]:
    if wish.exclusivity == "MIG" and wish.vendor not in (None, "nvidia"):
        yield (
            f"{at}.devices.vendor is {wish.vendor} and exclusivity is MIG, which only NVIDIA's GPUs have; "
            "leave vendor out, or ask for a share (exclusivity Shared)"
        )
    maker = _maker(wish.model)
    if wish.vendor and maker not in ("", wish.vendor):
        yield (
            f"{at}.devices.model {claims.shortened(wish.model)!r} is a model of {maker} and vendor is "
            f"{wish.vendor}; leave one of them out"
        )
    for name in labels:
        if not is_label(name):
            yield (
                f"{at}.selector.matchLabels has {claims.shortened(name)!r}, which is no label's name, so no "
                "node can have it; kubectl get nodes --show-labels lists the names"
            )


def _without_effect(at: str, wish: DeviceWish, count: int, topology: Topology) -> Iterator[str]:
    ids = len(wish.prefer_ids)
    if ids and wish.policy != "preferIds":
        yield f"{at}.devices.preferIds has no effect with policy {wish.policy}; write policy: preferIds"
    elif ids > count:
        yield f"{at}.devices.preferIds has {ids} ids and count is {count}; the first that are free are taken"
    if topology.min_bandwidth_gbps and topology.mode == "Ignore":
        yield f"{at}.topology.minBandwidthGBps has no effect with mode Ignore; write Preferred or Required"
    elif topology.min_bandwidth_gbps and count == 1:
        yield f"{at}.topology.minBandwidthGBps has no effect on a single device; it compares pairs"


def _maker(model: str) -> str:
    """Return the vendor of a model; empty if its name does not tell."""
    name = model.lower()
    return next((vendor for vendor, heads in MAKERS.items() if name.startswith(heads)), "")


def is_label(text: str) -> bool:
    """Return True if a label can have this name."""
    prefix, separator, name = text.rpartition("/")
    return bool(_LABEL_NAME.fullmatch(name)) and (not separator or bool(_LABEL_PREFIX.fullmatch(prefix)))
