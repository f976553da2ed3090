"""Every function that reads what tenants and administrators write returns a value or a known error."""

import string
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_orchestrator.api import claims, deviceleases, inventory, nodedevices, quantity, translate
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus as Report
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatusSpec, GpuNodeStatusStatus
from gpu_orchestrator.api.kubernetes import Lease, LeaseSpec, Node, Pod
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.core.limits import MOST_AMOUNT, MOST_DEVICES
from gpu_orchestrator.core.request import Request
from tests.support import hostile_text, scheduler_objects, wire_values
from tests.support.scheduler_harness import World

PIECES = [
    *(*hostile_text.NUMBERS, *hostile_text.WORDS, *hostile_text.DOCUMENTS),
    *(*hostile_text.LABELS, *hostile_text.QUANTITIES, "a:", "a:0,1", "gpu-a-", "gpu-a-1", "node-a"),
]
texts = st.sampled_from(PIECES) | st.lists(st.sampled_from(PIECES), min_size=2, max_size=5).map("".join)
texts |= st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.text(string.digits + ".eE+-mKi")
amounts = st.dictionaries(st.sampled_from(hostile_text.RESOURCES), texts, max_size=2)


@given(texts)
def test_quantity_is_read_or_refused(text: str) -> None:
    for read in (quantity.whole, quantity.milli):
        with suppress(BadQuantity):
            assert 0 <= read(text) <= MOST_AMOUNT


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Return node `a`, with anything in its labels, its annotation and its amounts."""
    plain = {
        "metadata": {
            "name": "a",
            "labels": draw(st.dictionaries(st.sampled_from(hostile_text.NODE_LABELS), texts, max_size=4)),
            "annotations": draw(st.fixed_dictionaries({}, optional={"gpu.scheduling/devices": texts})),
        },
        "status": {
            "allocatable": {"nvidia.com/gpu": "2", **draw(amounts)},
            "capacity": draw(amounts),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return msgspec.convert(plain, Node)


reports = wire_values.of(GpuNodeStatusStatus).map(
    lambda status: Report(ObjectMeta(name="a"), GpuNodeStatusSpec("a"), status)
)


@given(nodes(), st.none() | reports)
def test_node_is_counted_or_barred(seen: Node, report: Report | None) -> None:
    for made in (inventory.node_of(seen, report), translate.counted_node(seen)):
        assert len(made.devices) <= MOST_DEVICES
        assert len(made.barred) < 400
        assert made.barred or made.resources == () or min(dict(made.resources).values()) > 0
    translate.model(seen)
    inventory.used_by(report)


@given(texts)
def test_description_of_devices_is_read_or_refused(text: str) -> None:
    seen = scheduler_objects.node("a", annotations={"gpu.scheduling/devices": text})
    try:
        entry = nodedevices.entry(seen)
    except nodedevices.BadEntry:
        return
    assert entry is not None
    assert len(entry.island_of) <= MOST_DEVICES


@st.composite
def pods(draw: st.DrawFn, name: str = "p") -> Pod:
    """Return a pod with anything in its annotations and its amounts, bound or not."""
    words = [f"gpu.scheduling/{each}" for each in hostile_text.POD_ANNOTATIONS]
    plain: dict[str, Any] = {
        "metadata": {
            "name": draw(st.sampled_from([name, "x" * 253])),
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": draw(st.dictionaries(st.sampled_from(words), texts | st.just("1"), max_size=3)),
        },
        "spec": {
            "schedulerName": "gpu-scheduler",
            "nodeName": draw(st.sampled_from(["", "", "a"])),
            "containers": [{"resources": {"limits": draw(amounts)}}],
            "overhead": draw(amounts),
        },
    }
    return msgspec.convert(plain, Pod)


@given(pods())
def test_pod_is_read_or_refused(pod: Pod) -> None:
    assert all(0 <= device < MOST_DEVICES for device in claims.given(pod))
    claims.uuids(pod)
    assert len(claims.claim_name(pod)) <= max(253, *map(len, pod.metadata.annotations.values()), 0)
    with suppress(BadQuantity):
        taken = translate.counted_placement(pod)
        assert taken is None or 0 <= taken.unnamed <= len(hostile_text.RESOURCES) * MOST_AMOUNT
    answer = pod_request.request_of(pod, None, World().coordinator.stores)
    if not isinstance(answer, Request):
        assert 0 < len(answer.why) < 25_000


leases = st.builds(
    lambda name, label, annotations, holder: Lease(
        ObjectMeta(
            name=name, namespace="system", labels={"gpu.scheduling/managed": label}, annotations=annotations
        ),
        LeaseSpec(holder_identity=holder),
    ),
    texts.map(lambda text: f"gpu-a-{text}") | st.sampled_from(["gpu-a-0", "gpu-a-1", "gpu-agent-a"]),
    st.sampled_from(["true", "true", "", "false"]),
    st.dictionaries(
        st.sampled_from(["gpu.scheduling/holders", "gpu.scheduling/node", "gpu.scheduling/uuid"]),
        texts | st.just("a"),
    ),
    st.sampled_from(["shared", "uid-p", ""]) | texts,
)


@given(leases)
def test_lease_is_read_or_no_device(lease: Lease) -> None:
    for holder in deviceleases.holders(lease):
        assert 0 <= holder.share <= 1000
    for ref in (deviceleases.device_ref(lease), deviceleases.obstructed(lease)):
        assert ref is None or 0 <= ref.device < MOST_DEVICES


@settings(max_examples=40)
@given(st.lists(nodes() | reports | pods("p") | pods("q") | leases, max_size=6))
def test_scheduler_takes_anything_in_and_still_places_others(seen: list[Any]) -> None:
    world = World(scheduler_objects.node("b", 1, labels={"crowd": "b"}))
    for each in seen:
        match each:
            case Node():
                world.node(each)
            case Report():
                world.report(each)
            case Lease():
                world.lease(each)
            case _:
                world.pod(each)
    world.pod(scheduler_objects.pod("innocent", gpus=1, nodeSelector={"crowd": "b"}))
    assert world.executor.jobs[-1].pod.metadata.name == "innocent"
    world.coordinator.pending.refresh(100)
