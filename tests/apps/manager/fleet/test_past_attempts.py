"""What earlier attempts teach about the next one: where it goes, and how much it reserves."""

from random import Random

import pytest

from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet import rows, strategies
from gpu_orchestrator.apps.manager.fleet.nodes import Hints, MemoryPolicy, WorkerState, request_of
from gpu_orchestrator.apps.manager.fleet.past_attempts import Death, deaths_of, has_elsewhere, hints
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.decide import decide
from tests.support.scripted_worker import device, hello

GIB = 1024
ALL = MemoryPolicy(threshold=1.0, headroom_mib=0)
SHARED = TaskSpec("echo", memory_mib=4 * GIB)


def fleet(*workers: WorkerState) -> dict[str, WorkerState]:
    return {each.hello.name: each for each in workers}


ONE = fleet(WorkerState(hello("a", devices=(device(0), device(1)))))
TWO = {**ONE, **fleet(WorkerState(hello("b", devices=(device(0),))))}


@pytest.mark.parametrize(
    ("spec", "deaths", "workers", "expected"),
    [
        pytest.param(SHARED, (), TWO, Hints(), id="first attempt"),
        pytest.param(SHARED, (Death("a", "worker"),), TWO, Hints(avoid=("a",)), id="worker died"),
        pytest.param(SHARED, (Death("a", "runner"),), ONE, Hints(), id="no other worker"),
        pytest.param(
            SHARED,
            (Death("a", "worker"),),
            fleet(WorkerState(hello("a")), WorkerState(hello("b", task_types=("sleep",)))),
            Hints(),
            id="the other worker cannot take it",
        ),
        pytest.param(
            SHARED,
            (Death("a", "worker"),),
            fleet(WorkerState(hello("a")), WorkerState(hello("b"), online=False)),
            Hints(),
            id="the other worker is offline",
        ),
        pytest.param(
            SHARED,
            (Death("a", "memory", (0,), 4 * GIB, 3 * GIB),),
            ONE,
            Hints(shun_workers=("a",), prefer_devices=(1,), memory_mib=6 * GIB),
            id="out of memory: other device and more memory",
        ),
        pytest.param(
            TaskSpec("echo", model="m", memory_mib=4 * GIB),
            (Death("a", "memory", (0,), 4 * GIB, 3 * GIB),),
            TWO,
            Hints(avoid=("a",), shun_workers=("a",), prefer_devices=(1,), memory_mib=6 * GIB),
            id="a model does not return to the worker on which it did not fit",
        ),
        pytest.param(
            SHARED,
            (Death("a", "memory", (0,), 4 * GIB, 10 * GIB),),
            ONE,
            Hints(shun_workers=("a",), prefer_devices=(1,), memory_mib=15 * GIB),
            id="more than was measured",
        ),
        pytest.param(
            SHARED,
            (Death("a", "memory", (0,), 20 * GIB),),
            ONE,
            Hints(shun_workers=("a",), prefer_devices=(1,), memory_mib=24 * GIB),
            id="no more than the largest device has",
        ),
        pytest.param(
            TaskSpec("echo"),
            (Death("a", "memory", (0,)),),
            ONE,
            Hints(shun_workers=("a",), prefer_devices=(1,)),
            id="whole devices",
        ),
    ],
)
def test_hints(
    spec: TaskSpec, deaths: tuple[Death, ...], workers: dict[str, WorkerState], expected: Hints
) -> None:
    assert hints(spec, deaths, workers, ALL) == expected


@pytest.mark.parametrize(
    ("spec", "workers", "goes_to"),
    [
        pytest.param(SHARED, ONE, ("a", (1,)), id="other device of the same worker"),
        pytest.param(SHARED, TWO, ("b", (0,)), id="other worker"),
        pytest.param(TaskSpec("echo"), ONE, ("a", (1,)), id="other whole device"),
        pytest.param(
            SHARED, fleet(WorkerState(hello("a", devices=(device(0),)))), ("a", (0,)), id="the only device"
        ),
    ],
)
def test_task_that_ran_out_of_memory_goes_elsewhere(
    spec: TaskSpec, workers: dict[str, WorkerState], goes_to: tuple[str, tuple[int, ...]]
) -> None:
    learnt = hints(spec, (Death("a", "memory", (0,), spec.memory_mib),), workers, ALL)
    wanted = request_of("t", spec, learnt)
    cluster = rows.cluster_of(workers, ALL, ())
    policy = strategies.registry("balanced").policy_of(wanted)
    answer = decide(wanted, cluster, policy, Random(1))
    assert isinstance(answer, Placement)
    assert (answer.node, answer.devices) == goes_to


def test_deaths_of_an_older_version_are_understood() -> None:
    stored = '[{"worker":"a","attempt":1,"kind":"worker","evidence":"x","at":1}]'
    assert deaths_of(stored) == (Death("a", "worker"),)
    assert deaths_of("") == ()


@pytest.mark.parametrize(
    ("deaths", "at", "workers", "expected"),
    [
        pytest.param((), ("a", (0,)), ONE, True, id="another device of the worker"),
        pytest.param((), ("b", (0,)), TWO, True, id="another worker"),
        pytest.param((Death("a", "memory", (0,)),), ("a", (1,)), ONE, False, id="all devices were tried"),
        pytest.param((Death("a", "memory", (0,)),), ("b", (0,)), TWO, False, id="the other worker was tried"),
        pytest.param((Death("a", "runner"),), ("b", (0,)), TWO, True, id="its runner died there, no more"),
    ],
)
def test_model_out_of_memory_is_retried_only_where_it_was_not(
    deaths: tuple[Death, ...],
    at: tuple[str, tuple[int, ...]],
    workers: dict[str, WorkerState],
    expected: bool,
) -> None:
    assert has_elsewhere(TaskSpec("echo", model="m"), deaths, *at, workers) is expected
