"""API objects become the core's values."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import names, pod_amounts, translate
from gpu_orchestrator.api.kubernetes import Node, Pod, PodSpec
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import fits
from gpu_orchestrator.core.limits import MOST_AMOUNT
from gpu_orchestrator.core.request import Expression, HostPort, Term


def node(**fields: Any) -> Node:
    allocatable = {"cpu": "8", "memory": "1Gi", "pods": "110", **fields.get("gives", {})}
    plain = {
        "metadata": {
            "name": "a",
            "labels": fields.get("labels", {}),
            "annotations": fields.get("annotations", {}),
        },
        "spec": fields.get("spec", {}),
        "status": {"allocatable": allocatable, "conditions": fields.get("conditions", [])},
    }
    return msgspec.convert(plain, Node)


def spec(**fields: Any) -> PodSpec:
    return msgspec.convert(fields, PodSpec)


def container(
    name: str = "main", *, restart: str = "", limits: Any = None, **requests: str
) -> dict[str, Any]:
    return {
        "name": name,
        "restartPolicy": restart,
        "resources": {"requests": requests, "limits": limits or {}},
    }


def test_node_with_gpus() -> None:
    seen = node(
        gives={"nvidia.com/gpu": "2"},
        labels={"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": "81920"},
        conditions=[{"type": "Ready", "status": "True"}],
    )
    made = translate.counted_node(seen)
    assert [(d.id, d.vendor, d.model, d.memory_mib) for d in made.devices] == [
        (0, "nvidia", "A100", 81920),
        (1, "nvidia", "A100", 81920),
    ]
    offered = {"cpu": 8000, "memory": 1 << 30, "pods": 110, names.MILLIGPU: MOST_AMOUNT}
    assert dict(made.resources) == offered
    assert made.ready
    assert made.schedulable


@pytest.mark.parametrize(
    ("gives", "resource", "count"),
    [
        pytest.param({}, "", 0, id="none"),
        pytest.param({"nvidia.com/gpu": "0"}, "", 0, id="none healthy"),
        pytest.param({"amd.com/gpu": "4"}, "amd.com/gpu", 4, id="amd"),
        pytest.param({"gpu.intel.com/xe": "1"}, "gpu.intel.com/xe", 1, id="intel"),
        pytest.param(
            {"gpu.intel.com/i915": "1", "nvidia.com/gpu": "8"}, "nvidia.com/gpu", 8, id="two vendors"
        ),
    ],
)
def test_gpus_of_each_vendor(gives: dict[str, str], resource: str, count: int) -> None:
    assert translate.gpu_resource(node(gives=gives)) == resource
    assert len(translate.counted_node(node(gives=gives)).devices) == count


@pytest.mark.parametrize("told", ["16777217", "2147483648", "9" * 400, "much", "-1"])
def test_impossible_memory_counts_as_unknown(told: str) -> None:
    seen = node(gives={"nvidia.com/gpu": "1"}, labels={"nvidia.com/gpu.memory": told})
    assert [device.memory_mib for device in translate.counted_node(seen).devices] == [0]
    described = {names.NODE_DEVICES: f'{{"model": "A", "memoryMiB": {told}}}'}
    seen = node(gives={"nvidia.com/gpu": "1"}, annotations=described)
    assert [device.memory_mib for device in translate.counted_node(seen).devices] == [0]


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        pytest.param(
            {"nvidia.com/gpu": "9223372036854775807"},
            "cannot be counted: 9007199254740992 nvidia.com/gpu on one node; at most 1024 can be counted",
            id="too many devices",
        ),
        pytest.param(
            {"nvidia.com/gpu": "-1"}, "cannot be counted: '-1' is negative; write 0 or more", id="negative"
        ),
        pytest.param({"memory": "NaN"}, "cannot be counted: 'NaN' is not a quantity", id="no number"),
        pytest.param({"cpu": "1e999"}, "cannot be counted: '1e999' is beyond what can be counted", id="huge"),
    ],
)
def test_node_that_cannot_be_counted_is_barred(gives: dict[str, str], why: str) -> None:
    seen = node(gives=gives, labels={"zone": "x"}, conditions=[{"type": "Ready", "status": "True"}])
    made = translate.counted_node(seen)
    assert made.barred.startswith(why)
    assert (made.devices, made.resources, made.labels, made.ready) == ((), (), (("zone", "x"),), True)
    assert translate.gpu_resource(seen) in ("", "nvidia.com/gpu")


def test_reason_why_a_node_cannot_be_counted_is_short() -> None:
    made = translate.counted_node(node(gives={"memory": "x" * 100_000}))
    assert len(made.barred) < 300


def test_too_large_amounts_are_capped() -> None:
    made = translate.counted_node(node(gives={"memory": "9223372036854775807"}))
    assert dict(made.resources)["memory"] == MOST_AMOUNT
    pod = msgspec.convert(
        {
            "metadata": {"uid": "u"},
            "spec": {"nodeName": "a", "containers": [container(n, memory="9E") for n in "ab"]},
        },
        Pod,
    )
    held = translate.counted_placement(pod)
    assert held is not None
    assert dict(held.resources) == {"memory": MOST_AMOUNT, "pods": 1}


def test_node_not_ready_cordoned_and_tainted() -> None:
    made = translate.counted_node(
        node(spec={"unschedulable": True, "taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]})
    )
    assert not made.ready
    assert not made.schedulable
    assert [str(taint) for taint in made.taints] == ["k=v:NoExecute"]


def test_islands_from_the_annotation() -> None:
    told = '{"model": "H100", "bandwidthGBps": 900, "islands": [[0, 1], [2, 3]]}'
    made = translate.counted_node(
        node(gives={"nvidia.com/gpu": "4"}, annotations={"gpu.scheduling/devices": told})
    )
    assert made.topology.islands == (0, 0, 1, 1)
    assert made.topology.bandwidth[0][1] == 900
    assert made.topology.bandwidth[1][2] == 0


def test_unreadable_annotation_keeps_the_counted_devices() -> None:
    made = translate.counted_node(
        node(gives={"nvidia.com/gpu": "4"}, annotations={"gpu.scheduling/devices": "{"})
    )
    assert len(made.devices) == 4


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(spec(), {"pods": 1}, id="nothing"),
        pytest.param(
            spec(containers=[container("a", cpu="1500m"), container("b", cpu="1", memory="1Ki")]),
            {"cpu": 2500, "memory": 1024, "pods": 1},
            id="containers add up",
        ),
        pytest.param(
            spec(containers=[container(cpu="1")], initContainers=[container("i", cpu="3")]),
            {"cpu": 3000, "pods": 1},
            id="an init container runs alone",
        ),
        pytest.param(
            spec(
                containers=[container(cpu="1")],
                initContainers=[container("s", restart="Always", cpu="2"), container("i", cpu="2")],
            ),
            {"cpu": 4000, "pods": 1},
            id="a sidecar runs beside what comes after it",
        ),
        pytest.param(
            spec(containers=[container(limits={"memory": "1Ki"})]), {"memory": 1024, "pods": 1}, id="limit"
        ),
        pytest.param(
            spec(containers=[container(cpu="1")], overhead={"cpu": "250m"}),
            {"cpu": 1250, "pods": 1},
            id="overhead",
        ),
        pytest.param(
            spec(containers=[container(cpu="1")], resources={"requests": {"cpu": "5"}}),
            {"cpu": 5000, "pods": 1},
            id="of the pod as a whole",
        ),
    ],
)
def test_pod_requests(pod: PodSpec, expected: dict[str, int]) -> None:
    assert translate.asked(pod) == expected


def test_gpus_are_counted_separately() -> None:
    pod = spec(containers=[container(limits={"nvidia.com/gpu": "2", "example.com/fpga": "1"})])
    assert translate.gpus_asked(pod) == 2
    assert translate.asked(pod) == {"example.com/fpga": 1, "pods": 1}


def bound(*, phase: str = "Running", node_name: str = "a", allocated: str = "", **fields: Any) -> Pod:
    meta: dict[str, Any] = {"name": "p", "uid": "u"}
    if allocated:
        meta["annotations"] = {"gpu.scheduling/allocated": allocated}
        fields = {"schedulerName": "gpu-scheduler", **fields}
    plain = {"metadata": meta, "spec": {"nodeName": node_name, **fields}, "status": {"phase": phase}}
    return msgspec.convert(plain, Pod)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(bound(node_name=""), None, id="no node"),
        pytest.param(bound(phase="Succeeded"), None, id="ended well"),
        pytest.param(bound(phase="Failed"), None, id="ended badly"),
        pytest.param(bound(), Placement("u", "a", resources=(("pods", 1),)), id="no GPU"),
        pytest.param(
            bound(containers=[container(limits={"amd.com/gpu": "3"})]),
            Placement("u", "a", unnamed=3, resources=(("pods", 1),)),
            id="by a device plugin",
        ),
        pytest.param(
            bound(allocated="a:0,5"), Placement("u", "a", unnamed=2, resources=(("pods", 1),)), id="by claim"
        ),
        pytest.param(
            bound(allocated="a:0,5", schedulerName="default-scheduler"),
            Placement("u", "a", resources=(("pods", 1),)),
            id="on a pod of the kube-scheduler",
        ),
        pytest.param(
            bound(allocated="b:0,5"), Placement("u", "a", resources=(("pods", 1),)), id="of another node"
        ),
        pytest.param(
            bound(allocated=f"a:0,0,1024,{'9' * 5000},\u0663,-1,,x"),
            Placement("u", "a", unnamed=1, resources=(("pods", 1),)),
            id="what no device can be called",
        ),
        pytest.param(
            bound(containers=[{"name": "x", "ports": [{"hostPort": 80}, {"hostPort": 0}]}]),
            Placement("u", "a", resources=(("pods", 1),), host_ports=(HostPort(80),)),
            id="a host port",
        ),
    ],
)
def test_pod_placement(pod: Pod, expected: Placement | None) -> None:
    assert translate.counted_placement(pod) == expected


def test_pod_node_constraints() -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}
                ]
            }
        }
    }
    pod = spec(
        nodeSelector={"disk": "ssd"}, affinity=affinity, tolerations=[{"key": "k", "operator": "Exists"}]
    )
    shape = translate.shape(pod, 2, vendor="amd", avoid={"b"}, tolerated=translate.GPU_TAINTS)
    assert (shape.gpus, shape.vendor, shape.labels) == (2, "amd", (("disk", "ssd"),))
    assert shape.affinity == (
        Term((Expression("zone", "In", ("x",)),), (Expression("metadata.name", "NotIn", ("b",)),)),
    )
    assert "k" in {each.key for each in shape.tolerations}
    assert "nvidia.com/gpu" in {each.key for each in shape.tolerations}
    assert {each.key for each in translate.shape(pod, 2).tolerations} == {"k"}


@pytest.mark.parametrize(
    ("pod", "has_parts"),
    [
        pytest.param(spec(containers=[container(limits={"nvidia.com/gpu": "1"})]), False, id="whole GPUs"),
        pytest.param(spec(containers=[container(limits={"example.com/fpga": "1"})]), False, id="others"),
        pytest.param(spec(containers=[container(limits={"nvidia.com/mig-1g.10gb": "0"})]), False, id="none"),
        pytest.param(spec(containers=[container(limits={"nvidia.com/hostdev": "1"})]), False, id="network"),
        pytest.param(spec(containers=[container(limits={"amd.com/nic": "1"})]), False, id="AMD network"),
        pytest.param(
            spec(containers=[container(limits={"gpu.intel.com/i915_monitoring": "1"})]),
            False,
            id="monitoring",
        ),
        pytest.param(spec(containers=[container(limits={"nvidia.com/mig-1g.10gb": "2"})]), True, id="MIG"),
        pytest.param(spec(containers=[container(limits={"nvidia.com/gpu.shared": "1"})]), True, id="shared"),
        pytest.param(spec(containers=[container(limits={"nvidia.com/gpu-a100": "1"})]), True, id="renamed"),
        pytest.param(spec(initContainers=[container(limits={"amd.com/cpx_nps4": "1"})]), True, id="init"),
        pytest.param(spec(resources={"requests": {"gpu.intel.com/tiles": "1"}}), True, id="of the pod"),
        pytest.param(spec(resourceClaims=[{"name": "gpu"}]), True, id="DRA"),
    ],
)
def test_parts_of_gpus_are_noticed_and_not_counted_as_gpus(pod: PodSpec, has_parts: bool) -> None:
    taken = translate.placement("u", "a", pod)
    seen = Pod(ObjectMeta(uid="u"), pod)
    assert translate.has_gpu_parts(seen, pod_amounts.taken(pod)) is has_parts
    assert taken.unnamed == (1 if "nvidia.com/gpu" in str(pod.containers) and not has_parts else 0)


def test_preferred_node_affinity_keeps_its_weights() -> None:
    here = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["east"]}]}
    terms = [{"weight": 7, "preference": here}, {"weight": 5, "preference": {}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    assert translate.shape(spec(affinity=affinity), 1).preferred == (
        (7, Term((Expression("zone", "In", ("east",)),))),
    )


@pytest.mark.parametrize(
    ("listed", "does_fit"),
    [
        pytest.param(None, True, id="a node that does not list it takes any pod, as its kubelet does"),
        pytest.param("2k", True, id="a node with enough"),
        pytest.param("1999", False, id="a node with too little"),
        pytest.param("0", False, id="a node that lists none"),
    ],
)
def test_milligpu_counts_on_nodes_that_list_it(listed: str | None, does_fit: bool) -> None:
    gives = {"nvidia.com/gpu": "2"} | ({names.MILLIGPU: listed} if listed else {})
    seen = node(gives=gives, conditions=[{"type": "Ready", "status": "True"}])
    wanted = translate.shape(spec(containers=[container(**{names.MILLIGPU: "2000"})]), 2)
    cluster = Cluster([translate.counted_node(seen)])
    assert fits(wanted, cluster, "a") == does_fit
