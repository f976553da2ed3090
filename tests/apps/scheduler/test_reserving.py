"""Places kept for pods: what the coordinator knows of run times, and what pods are told."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.controllers.overruns import OverrunController
from gpu_orchestrator.apps.scheduler.cycle import reserving
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.apps.scheduler.settings import Settings
from gpu_orchestrator.engine.reservation_rules import ReservationRules
from tests.apps.scheduler.test_health import BLOCKED, Server
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod

RULES = ReservationRules(most=4, holds=1, owner_of=reserving.owner_of, name_of=lambda uid: f"pod {uid}")


def kept(world: World) -> dict[str, float]:
    return {each.name: each.at for each in world.coordinator.engine.kept()}


def with_big(**more: Any) -> World:
    """Return a node of which five GPUs are held for 100 s, and a pod that waits for all eight."""
    world = World(node("a"), reservations=RULES, **more)
    world.pod(pod("five", gpus=5, max_runtime_seconds=100))
    world.bind(world.executor.jobs[-1])
    world.pod(pod("big", gpus=8))
    return world


def bound(world: World) -> list[str]:
    return [job.pod.metadata.name for job in world.executor.jobs]


def test_pod_that_ends_before_runs_in_between() -> None:
    world = with_big()
    assert list(kept(world).values()) == [100.0]
    assert "its place on a is kept from 100 s" in world.executor.refused["big"]
    world.pod(pod("short", gpus=1, max_runtime_seconds=90))
    assert bound(world)[-1] == "short"
    assert world.executor.jobs[-1].in_between
    world.pod(pod("deadline", gpus=1, activeDeadlineSeconds=90))
    assert bound(world)[-1] == "deadline"
    world.pod(pod("long", gpus=1, max_runtime_seconds=500))
    world.pod(pod("silent", gpus=1))
    assert bound(world)[-1] == "deadline"
    assert world.executor.refused["long"].endswith(
        "would end after 100 s, when pod uid-big's place on a begins"
    )
    assert "pod uid-big's place on a begins" in world.executor.refused["silent"]


def test_bad_run_time_is_one_refused_pod() -> None:
    world = with_big()
    world.pod(pod("bad", gpus=1, max_runtime_seconds="soon"))
    assert "gpu.scheduling/max-runtime-seconds is 'soon'" in world.executor.refused["bad"]
    world.pod(pod("short", gpus=1, max_runtime_seconds=90))
    assert bound(world)[-1] == "short"


def test_what_nobody_enforces_may_not_count() -> None:
    world = with_big(enforced_run_times=True)
    assert kept(world) == {}
    world.pod(pod("deadline", gpus=1, activeDeadlineSeconds=50))
    world.bind(world.executor.jobs[-1])
    world.pod(pod("said", gpus=1, max_runtime_seconds=10))
    assert bound(world)[-1] == "said"


def test_ends_are_known_again_after_a_restart() -> None:
    world = World(node("a"), opened=False, uses_leases=False, reservations=RULES, left_s=lambda pod: 40.0)
    world.pod(pod("five", node="a", gpus=5, allocated="a:0,1,2,3,4", phase="Running"))
    world.pod(pod("big", gpus=8))
    world.coordinator.open()
    assert list(kept(world).values()) == [40.0]


def test_big_pod_is_bound_when_its_place_is_free() -> None:
    world = with_big()
    world.pod(pod("short", gpus=1, max_runtime_seconds=90))
    world.bind(world.executor.jobs[-1])
    for name in ("five", "short"):
        world.pod(pod(name, gpus=1, node="a", phase="Succeeded"))
        world.coordinator.freed(f"uid-{name}")
    assert bound(world)[-1] == "big"


class Reporter:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def report_overrun(self, pod: Pod, reason: str, why: str) -> None:
        self.told.append((pod.metadata.name, why))


def overruns(
    world: World, reporter: Reporter, metrics: Metrics, server: Server, *, evicts: bool
) -> OverrunController:
    """Return a controller, a minute after `five` should have ended."""
    world.now = 165.0
    world.coordinator.tick()
    return OverrunController(
        Client(server),
        world.coordinator,
        reporter,  # type: ignore[arg-type]
        metrics=metrics,
        may_write=lambda: True,
        evicts=evicts,
    )


def counted(metrics: Metrics, action: str) -> float | None:
    return metrics.registry.get_sample_value("gpu_scheduler_overrun_pods_total", {"action": action})


WHY = "runs longer than it declared, and another pod waits for its place"


async def test_pod_that_runs_longer_is_told_once() -> None:
    world, reporter, metrics, server = with_big(), Reporter(), Metrics(), Server()
    controller = overruns(world, reporter, metrics, server, evicts=False)
    await controller.check()
    await controller.check()
    assert reporter.told == [("five", WHY)]
    assert counted(metrics, "told") == 1
    assert server.evicted == []


async def test_pod_that_is_late_by_less_than_a_minute_is_left_alone() -> None:
    world, reporter, metrics, server = with_big(), Reporter(), Metrics(), Server()
    controller = overruns(world, reporter, metrics, server, evicts=True)
    world.now = 155.0
    world.coordinator.tick()
    await controller.check()
    assert (reporter.told, server.evicted) == ([], [])


async def test_pod_that_runs_longer_is_evicted_if_that_is_wanted() -> None:
    world, reporter, metrics, server = with_big(), Reporter(), Metrics(), Server()
    await overruns(world, reporter, metrics, server, evicts=True).check()
    assert server.evicted == ["five"]
    assert reporter.told == [("five", f"{WHY}; evicted")]
    assert counted(metrics, "evicted") == 1


async def test_budget_that_forbids_the_eviction_is_told_once() -> None:
    world, reporter, metrics, server = with_big(), Reporter(), Metrics(), Server()
    server.refusal = BLOCKED
    controller = overruns(world, reporter, metrics, server, evicts=True)
    await controller.check()
    await controller.check()
    ((name, why),) = reporter.told
    assert (name, counted(metrics, "blocked")) == ("five", 1)
    assert f"{WHY}; not evicted" in why


@pytest.mark.parametrize(
    ("after_s", "wanted"),
    [
        pytest.param(61.0, "14:05 UTC", id="soon"),
        pytest.param(13 * 3600.0, "2026-01-03 03:04 UTC", id="far"),
    ],
)
def test_moments_are_told_by_the_clock(after_s: float, wanted: str) -> None:
    assert reserving.told(datetime(2026, 1, 2, 14, 4, 5, tzinfo=UTC), after_s) == wanted


@pytest.mark.parametrize(
    ("key", "owner"),
    [("uid", "uid"), ("lease/gpu-a-0/uid", "uid"), ("ended/uid", "uid"), ("room/uid", "room/uid")],
)
def test_whose_run_time_counts(key: str, owner: str) -> None:
    assert reserving.owner_of(key) == owner


def test_settings_make_the_rules() -> None:
    rules = reserving.rules(Settings(reservations=1, holds=2, hold_seconds=5), dict, lambda: 0.0)
    assert (rules.most, rules.holds, rules.hold_s, rules.hold_after_s) == (1, 1, 5, 300)
    assert rules.name_of("x") == "another pod"
