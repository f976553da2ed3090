"""Which request a pod becomes, and with which message it is refused."""

from typing import Any

import pytest

from gpu_orchestrator.api import gangs
from gpu_orchestrator.api.free_volumes import FreeVolume
from gpu_orchestrator.api.kubernetes import Pod, VolumeClaim
from gpu_orchestrator.api.podgroup import PodGroup
from gpu_orchestrator.api.volumes import StorageClass, Volume
from gpu_orchestrator.apps.scheduler.cycle.pod_request import Others, Unschedulable, request_of
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import fits
from gpu_orchestrator.core.node import node
from gpu_orchestrator.core.request import Expression, Request, Term
from tests.support.neighbour_oracle import REQUIRED
from tests.support.scheduler_objects import claim, pod, volume, volume_claim

LINKED_SLICES = {
    "count": 2,
    "exclusivity": "MIG",
    "migProfile": "1g.10gb",
    "topology": {"mode": "Required", "minBandwidthGBps": 600},
}


class Volumes:
    def __init__(self, *claims: VolumeClaim, volumes: tuple[Volume, ...] = ()) -> None:
        self._claims = {f"default/{each.metadata.name}": each for each in claims}
        self._volumes = {each.metadata.name: each for each in volumes}

    def volume_claim(self, key: str) -> VolumeClaim | None:
        return self._claims.get(key)

    def volume(self, name: str) -> Volume | None:
        return self._volumes.get(name)

    def storage_class(self, name: str) -> StorageClass | None:
        return None

    def free_volumes(self, class_name: str, claim: str) -> list[FreeVolume]:
        return []

    def volumes_for(self, claim: str) -> list[Volume]:
        return []

    def binding_for(self, claim: str) -> str:
        return ""

    def group_of(self, pod: Pod) -> PodGroup | None:
        return None

    def no_group(self, pod: Pod) -> str:
        return f"PodGroup {gangs.group_key(pod)} does not exist; create it"

    def namespaces_with(self, labels: tuple[Expression, ...]) -> frozenset[str]:
        return frozenset({"one", "two"} if labels else ())


NO_VOLUMES = Volumes()
MOUNTED: dict[str, Any] = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
TOO_LONG: dict[str, dict[str, Any]] = {
    "namespaces": {"labelSelector": {}, "namespaces": [f"ns-{each}" for each in range(65)]},
    "labels": {"labelSelector": {"matchLabels": {f"l{each}": "x" for each in range(17)}}},
    "values": {
        "labelSelector": {
            "matchExpressions": [{"key": "app", "operator": "In", "values": [str(n) for n in range(65)]}]
        }
    },
    "namespace labels": {
        "labelSelector": {},
        "namespaceSelector": {
            "matchExpressions": [{"key": f"l{n}", "operator": "Exists"} for n in range(17)]
        },
    },
}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param({}, "asks for no GPU; add one of the annotations", id="nothing"),
        pytest.param({"gpus": 1, "claim": "c"}, "asks for GPUs in 2 ways at once", id="two ways"),
        pytest.param({"gpus": 0}, "gpu.scheduling/gpus is '0'; write a number from 1 to 64", id="none"),
        pytest.param({"gpus": "-1"}, "write a number from 1 to 64", id="negative"),
        pytest.param({"gpus": 1, "resourceClaims": [{"name": "r"}]}, "spec.resourceClaims", id="DRA"),
        pytest.param(
            {"gpus": 1, "schedulingGroup": {"podGroupName": "g"}},
            "PodGroup default/g does not exist",
            id="group",
        ),
        pytest.param(
            {"gpus": 1, "containers": [{"resources": {"limits": {"amd.com/gpu": "1"}}}]},
            "a request for amd.com/gpu beside a claim",
            id="device plugin",
        ),
        pytest.param(
            {"gpus": 1, "initContainers": [{"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]},
            "a request for nvidia.com/mig-1g.10gb beside a claim",
            id="slices of a device plugin",
        ),
        pytest.param({"claim": ""}, "gpu.scheduling/claim is empty; write the name", id="empty claim"),
        pytest.param({"claim_template": ""}, "gpu.scheduling/claim-template is empty", id="empty template"),
        pytest.param(
            {"gpus": 1, "containers": [{"resources": {"requests": {"cpu": "many"}}}]},
            "'many' is not a quantity",
            id="bad quantity",
        ),
        pytest.param(
            {"gpus": 1, "topologySpreadConstraints": [{"topologyKey": "zone"}] * 9},
            "9 rules about other pods (affinity, anti-affinity, spread); this scheduler takes up to 8",
            id="too many rules",
        ),
        *(
            pytest.param(
                {"gpus": 1, "affinity": {kind: {REQUIRED: [{"topologyKey": "zone", **fields}]}}},
                "a rule of the pod about other pods lists more than 64 namespaces, 16 conditions or 64",
                id=f"{kind} with too many {what}",
            )
            for kind in ("podAffinity", "podAntiAffinity")
            for what, fields in TOO_LONG.items()
        ),
        pytest.param(
            {
                "gpus": 1,
                "topologySpreadConstraints": [{"labelSelector": TOO_LONG["values"]["labelSelector"]}],
            },
            "a rule of the pod about other pods lists more than",
            id="spread with too many values",
        ),
        pytest.param(
            {"gpus": 1, "nodeSelector": {f"k{n}": "x" for n in range(65)}},
            "the pod's conditions on nodes (nodeSelector, node affinity): 65 found, up to 64 are taken; give",
            id="too long a selector",
        ),
        pytest.param({"gpus": 1, **MOUNTED}, "default/data does not exist", id="volume"),
        pytest.param({"claim": "other"}, "GpuClaim default/other does not exist; create it", id="no claim"),
        pytest.param({"claim_template": "t"}, "template GpuClaim default/t does not exist", id="no template"),
    ],
)
def test_unsupported_or_invalid_pod_is_refused(asked: dict[str, Any], message: str) -> None:
    answer = request_of(pod("p", **asked), None, NO_VOLUMES)
    assert isinstance(answer, Unschedulable)
    assert message in answer.why


@pytest.mark.parametrize(
    ("made", "message"),
    [
        pytest.param(LINKED_SLICES, "no node has: topology.minBandwidthGBps between MIG slices", id="MIG"),
        pytest.param({"gangRef": "g"}, "gang g has no size", id="gang"),
        pytest.param({"exclusivity": "Shared"}, "without share or memory", id="share of nothing"),
        pytest.param({"deleting": True}, "is being deleted", id="deleting"),
        pytest.param({"reserved_for": "uid-q"}, "serves another pod (UID uid-q)", id="in use"),
    ],
)
def test_pod_with_an_unusable_claim_is_refused(made: dict[str, Any], message: str) -> None:
    answer = request_of(pod("p", claim="c"), claim("c", **made), NO_VOLUMES)
    assert isinstance(answer, Unschedulable)
    assert message in answer.why


def test_long_name_of_a_claim_is_shortened() -> None:
    answer = request_of(pod("p", claim="c" * 1000), None, NO_VOLUMES)
    assert isinstance(answer, Unschedulable)
    assert len(answer.why) < 200


def test_claim_assigned_to_another_pod_is_refused_before_the_claim_shows_it() -> None:
    answer = request_of(pod("p", claim="c"), claim("c"), NO_VOLUMES, Others(pod("q", claim="c")))
    assert answer == Unschedulable("GpuClaim c serves another pod (q); it is free when that pod has ended")
    assert isinstance(request_of(pod("p", claim="c"), claim("c", reserved_for="uid-p"), NO_VOLUMES), Request)


def test_template_serves_any_number_of_pods() -> None:
    assert isinstance(
        request_of(pod("p", claim_template="c"), claim("c", reserved_for="uid-q"), NO_VOLUMES), Request
    )


def test_soft_rules_do_not_refuse_a_pod() -> None:
    soft: dict[str, Any] = {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}
    assert isinstance(request_of(pod("p", gpus=1, **soft), None, NO_VOLUMES), Request)


def on(*names: str) -> Expression:
    return Expression("kubernetes.io/hostname", "In", names)


def test_bound_volumes_restrict_the_nodes() -> None:
    known = Volumes(volume_claim("data", "v1"), volumes=(volume("v1", "a", "b"),))
    answer = request_of(pod("p", gpus=1, **MOUNTED), None, known)
    assert isinstance(answer, Request)
    assert answer.shape.reach == ((Term((on("a", "b"),)),),)
    assert answer.shape.affinity == ()


ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("on_volume", "on_node", "is_reached"),
    [
        pytest.param({ZONE: "a"}, {ZONE: "a"}, True, id="same zone"),
        pytest.param({ZONE: "a"}, {ZONE: "b"}, False, id="another zone"),
        pytest.param({ZONE: "a__b"}, {ZONE: "b"}, True, id="one of two zones"),
        pytest.param({ZONE: "a"}, {}, True, id="a node of no zone"),
        pytest.param(
            {ZONE: "a"}, {"topology.kubernetes.io/region": "r"}, False, id="a node of a region, without zone"
        ),
        pytest.param({OLD_ZONE: "a"}, {ZONE: "a"}, True, id="the old name on the volume"),
        pytest.param({OLD_ZONE: "a"}, {ZONE: "b"}, False, id="the old name on the volume, another zone"),
        pytest.param({OLD_ZONE: "a"}, {OLD_ZONE: "a", ZONE: "b"}, True, id="the same old name counts first"),
        pytest.param({"zone": "a"}, {ZONE: "b"}, True, id="any other label"),
    ],
)
def test_zone_labels_of_a_volume_restrict_the_nodes(
    on_volume: dict[str, str], on_node: dict[str, str], is_reached: bool
) -> None:
    known = Volumes(volume_claim("data", "v1"), volumes=(volume("v1", labels=on_volume),))
    answer = request_of(pod("p", gpus=1, **MOUNTED), None, known)
    assert isinstance(answer, Request)
    made = Cluster([node("n", 1, labels=on_node, resources={"pods": 1})])
    assert fits(answer.shape, made, "n") is is_reached


@pytest.mark.parametrize(
    ("known", "message"),
    [
        pytest.param(Volumes(volume_claim("data")), "is not bound", id="unbound"),
        pytest.param(Volumes(volume_claim("data", "v1", phase="Lost")), "has lost its volume", id="lost"),
        pytest.param(
            Volumes(volume_claim("data", "v1", meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})),
            "is being deleted",
            id="deleted",
        ),
        pytest.param(
            Volumes(volume_claim("data", "v1")), "PersistentVolume v1 of default/data", id="no volume"
        ),
    ],
)
def test_pod_with_an_unready_volume_is_refused(known: Volumes, message: str) -> None:
    answer = request_of(pod("p", gpus=1, **MOUNTED), None, known)
    assert isinstance(answer, Unschedulable)
    assert message in answer.why
