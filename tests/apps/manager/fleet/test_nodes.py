"""Workers as nodes, tasks as requests, and the accounting of device memory."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet import rows, strategies
from gpu_orchestrator.apps.manager.fleet.nodes import (
    DeviceGrant,
    Hints,
    MemoryPolicy,
    Reserved,
    WorkerState,
    free_mib,
    node_of,
    request_of,
)
from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.limits import MOST_AMOUNT, MOST_MIB
from gpu_orchestrator.policies.registry import UnknownPolicy
from tests.support.scripted_worker import device, hello, reading

GIB = 1024
ALL = MemoryPolicy(threshold=1.0, headroom_mib=0)


def cluster_of(*workers: WorkerState, memory: MemoryPolicy = ALL) -> Cluster:
    return rows.cluster_of({each.hello.name: each for each in workers}, memory, ())


def placed(spec: TaskSpec, cluster: Cluster, policy: str = "balanced") -> Placement | Refusal:
    wanted = request_of("t", spec)
    return decide(wanted, cluster, strategies.registry(policy).policy_of(wanted), Random(1))


@pytest.mark.parametrize(
    ("others", "driver_free", "reserved", "free"),
    [
        pytest.param(0, 24, Reserved(), 24, id="empty"),
        pytest.param(10, 14, Reserved(10 * GIB, 10 * GIB), 4, id="used by others and reserved"),
        pytest.param(0, 14, Reserved(10 * GIB, 0), 14, id="reserved and allocated"),
        pytest.param(0, 8, Reserved(10 * GIB, 0), 8, id="the driver reports less than our accounting"),
        pytest.param(10, 24, Reserved(), 14, id="our accounting has less than the driver reports"),
    ],
)
def test_free_memory_is_the_smaller_of_accounting_and_driver(
    others: int, driver_free: int, reserved: Reserved, free: int
) -> None:
    now = session.Reading(0, 0, driver_free * GIB, others * GIB)
    assert free_mib(24 * GIB, ALL, now, reserved) == free * GIB


def test_without_reading_only_accounting_counts() -> None:
    assert free_mib(1000, MemoryPolicy(0.8, 100), None, Reserved(300, 300)) == 500


@given(
    total=st.integers(1000, 200_000),
    held=st.lists(st.tuples(st.integers(0, 50_000), st.floats(0, 1)), max_size=5),
    others=st.integers(0, 100_000),
    threshold=st.floats(0.1, 1.0),
)
def test_reservations_never_exceed_the_device(
    total: int, held: list[tuple[int, float]], others: int, threshold: float
) -> None:
    """The free memory fits beside all reservations and other processes, once every holder has allocated."""
    memory = MemoryPolicy(threshold, 256)
    allocated = sum(int(mib * part) for mib, part in held)
    promised = sum(mib for mib, _ in held)
    driver_free = max(total - others - allocated, 0)
    reserved = Reserved(promised, promised - allocated)
    free = free_mib(total, memory, session.Reading(0, total - driver_free, driver_free, others), reserved)
    if free > 0:
        assert promised + others + free <= total


def test_node_shows_usable_devices_and_memory() -> None:
    worker = WorkerState(
        hello("w", devices=(device(0), device(1), device(2)), max_concurrent=3),
        cordoned_devices=frozenset({1}),
        readings=(reading(0, others_gib=6), reading(1), reading(2, problem="XID 79")),
        score=0.5,
    )
    node = node_of(worker, MemoryPolicy(0.8, 256), {})
    assert [each.healthy for each in node.devices] == [True, False, False]
    cluster = Cluster([node])
    assert cluster.usage.free_mib[0, 0] == min(int(24 * GIB * 0.8) - 6 * GIB, 18 * GIB - 256)


@pytest.mark.parametrize(
    ("worker", "fits"),
    [
        pytest.param(WorkerState(hello("w")), True, id="online"),
        pytest.param(WorkerState(hello("w"), online=False), False, id="offline"),
        pytest.param(WorkerState(hello("w"), cordoned=True), False, id="cordoned"),
        pytest.param(WorkerState(hello("w"), draining=True), False, id="draining"),
        pytest.param(WorkerState(hello("w", task_types=("other",))), False, id="no handler"),
        pytest.param(WorkerState(hello("w", max_concurrent=0)), False, id="no slot"),
    ],
)
def test_workers_that_can_take_a_task(worker: WorkerState, fits: bool) -> None:
    answer = placed(TaskSpec("echo", gpus=0), cluster_of(worker))
    assert isinstance(answer, Placement) is fits


def test_device_filled_by_other_processes_is_not_given_whole() -> None:
    full = WorkerState(hello("w", devices=(device(0),)), readings=(reading(0, others_gib=24),))
    assert isinstance(placed(TaskSpec("echo"), cluster_of(full)), Refusal)


@pytest.mark.parametrize(
    ("wanted", "goes_to"),
    [
        pytest.param({}, "plain", id="a task without a pool stays out of pools"),
        pytest.param({"pool": "a100"}, "pooled", id="a task of a pool"),
        pytest.param({"pool": "h200"}, None, id="a pool without workers"),
        pytest.param({"pool": "a100", "worker_labels": {"zone": "b"}}, "pooled", id="pool and label"),
        pytest.param({"worker_labels": {"zone": "b"}}, None, id="the label is in a pool only"),
    ],
)
def test_pools_and_labels_choose_workers(wanted: dict[str, Any], goes_to: str | None) -> None:
    cluster = cluster_of(
        WorkerState(hello("plain", labels={"zone": "a"})),
        WorkerState(hello("pooled", pool="a100", labels={"zone": "b"})),
    )
    answer = placed(TaskSpec("echo", **wanted), cluster)
    assert (answer.node if isinstance(answer, Placement) else None) == goes_to
    assert isinstance(answer, Placement) or answer.never


def test_label_of_a_worker_cannot_stand_for_a_pool() -> None:
    cluster = cluster_of(WorkerState(hello("w", labels={"gpu-orchestrator/pool": "a100"})))
    assert isinstance(placed(TaskSpec("echo", pool="a100"), cluster), Refusal)


def test_workers_on_which_the_task_died_are_avoided() -> None:
    cluster = cluster_of(WorkerState(hello("a")), WorkerState(hello("b")))
    wanted = request_of("t", TaskSpec("echo"), Hints(avoid=("a",)))
    answer = decide(wanted, cluster, strategies.registry("balanced").policy(), Random(1))
    assert isinstance(answer, Placement)
    assert answer.node == "b"


@pytest.mark.parametrize(
    ("policy", "goes_to"),
    [
        pytest.param("balanced", "small", id="balanced: memory that fits"),
        pytest.param("leastConnections", "large", id="leastConnections: fewest tasks"),
        pytest.param("weightedRoundRobin", "large", id="weightedRoundRobin: most slots free"),
    ],
)
def test_each_policy_chooses_its_worker(policy: str, goes_to: str) -> None:
    cluster = cluster_of(
        WorkerState(hello("small", devices=(device(0, 12),), max_concurrent=16)),
        WorkerState(hello("large", devices=(device(0, 80),), max_concurrent=16)),
    )
    cluster.account(Placement("other", "small", (), milli=0, resources=((strategies.SLOTS, 1),)))
    answer = placed(TaskSpec("echo", memory_mib=10 * GIB), cluster, policy)
    assert isinstance(answer, Placement)
    assert answer.node == goes_to


def test_worker_that_fails_often_comes_last_among_equals() -> None:
    cluster = cluster_of(WorkerState(hello("a"), score=0.2), WorkerState(hello("b"), score=1.0))
    answer = placed(TaskSpec("echo", gpus=0), cluster)
    assert isinstance(answer, Placement)
    assert answer.node == "b"


def test_unknown_policy_suggests_a_known_one() -> None:
    with pytest.raises(UnknownPolicy, match="did you mean 'balanced'"):
        strategies.registry("ballanced")


def test_stored_grant_decodes_to_its_placement() -> None:
    grant = DeviceGrant((session.Given(1, "GPU-1"),), 4096)
    assert rows.placement_of("t", "w", rows.read_grant(rows.encode(grant))).devices == (1,)


def test_impossible_numbers_of_a_worker_are_clamped() -> None:
    huge = session.Device(0, "u", "nvidia", "A", memory_mib=2**40)
    impossible = session.Reading(0, used_mib=2**50, free_mib=-(2**50))
    greeting = session.Hello("a", "i", (huge,), max_concurrent=2**70)
    seen = node_of(WorkerState(greeting, readings=(impossible,)), MemoryPolicy(), {0: Reserved()})
    assert (seen.devices[0].memory_mib, seen.devices[0].taken_mib) == (MOST_MIB, MOST_MIB)
    assert dict(seen.resources) == {strategies.SLOTS: MOST_AMOUNT}
    assert Cluster([seen]).free_gpus("a") == 1
