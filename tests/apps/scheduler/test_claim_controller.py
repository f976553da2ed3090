"""When claims are written: not for pods that are bound soon, and slowly while thousands wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import structs

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import AgentLiveness
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.controllers.claims import (
    EXPLAIN_AFTER_S,
    EXPLAIN_PAUSE_S,
    EXPLAINERS,
    SLOW_BIND_S,
    ClaimController,
)
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from tests.support.scheduler_harness import World, gone
from tests.support.scheduler_objects import claim, node, pod
from tests.support.scripted_transport import Scripted, refusal

pytestmark = pytest.mark.looptime

TINY_S = 0.01


class Accepting(Scripted):
    """Accepts every request; `phases` are those written so far, oldest first. `taken`: the claim that has
    the name of each new one; `reports` are what the controller reported."""

    taken: bytes = b""

    @property
    def reports(self) -> list[str]:
        found: list[str] = self.__dict__.setdefault("_reports", [])
        return found

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        self.requests.append(request)
        if self.taken and request.method == "POST":
            return refusal(409, "AlreadyExists")
        if self.taken and request.method == "GET":
            return Answer(200, self.taken, {})
        return Answer(200, b'{"metadata": {}, "spec": {}}', {})

    @property
    def statuses(self) -> list[dict[str, Any]]:
        bodies = [msgspec.json.decode(each.body or b"{}") for each in self.requests]
        return [each["status"] for each in bodies if "status" in each]

    @property
    def phases(self) -> list[str]:
        return [each["phase"] for each in self.statuses]


@asynccontextmanager
async def controlled(
    world: World, metrics: Metrics | None = None
) -> AsyncIterator[tuple[ClaimController, Accepting]]:
    """Run a claim controller for this world."""
    server, clock, coordinator = Accepting(), asyncio.get_running_loop().time, world.coordinator
    agents = AgentLiveness(clock, lambda: datetime.now(UTC))
    releaser = Releaser(
        None,
        Store(),
        agents,
        leases_of=lambda _: [],
        has_stopped=gone,
        freed=coordinator.freed,
        clock=clock,
        wait_s=30.0,
        agent_s=15.0,
    )
    writer = ClaimWriter(Client(server))
    controller = ClaimController(
        writer,
        coordinator,
        releaser,
        metrics=metrics or Metrics(),
        pacer=Pacer(clock),
        now=lambda: "now",
        report=lambda pod, why: server.reports.append(why),
    )
    running = asyncio.create_task(controller.run())
    yield controller, server
    running.cancel()


async def test_claim_of_a_pod_that_is_bound_within_a_second_is_not_written() -> None:
    world = World()
    async with controlled(world) as (controller, server):
        world.claim(claim("c", count=1))
        world.pod(pod("p", claim="c"))
        assert "p" in world.executor.refused
        controller.check("default/c")
        await asyncio.sleep(EXPLAIN_AFTER_S / 2)
        world.node(node("a", 1))
        assert [job.pod.metadata.name for job in world.executor.jobs] == ["p"]
        await asyncio.sleep(SLOW_BIND_S - EXPLAIN_AFTER_S / 2 - TINY_S)
        assert server.phases == []


async def test_bind_that_takes_long_shows_in_its_claim() -> None:
    world = World(node("a", 1))
    async with controlled(world) as (_, server):
        world.claim(claim("c", count=1))
        world.pod(pod("p", claim="c"))
        await asyncio.sleep(2 * SLOW_BIND_S + EXPLAIN_AFTER_S + TINY_S)
        assert server.phases == ["Reserved"]


async def test_claim_shows_what_its_pod_holds_and_not_what_its_annotation_says() -> None:
    world = World(node("a", 2))
    async with controlled(world) as (controller, server):
        world.claim(claim("c", count=1))
        world.pod(pod("p", claim="c"))
        world.bind(world.executor.jobs[0])
        world.pod(pod("p", claim="c", node="a", allocated="a:0,1"))
        world.claim(claim("c", count=1, reserved_for="uid-p"))
        controller.check("default/c")
        await asyncio.sleep(EXPLAIN_AFTER_S + TINY_S)
        assert [(each["allocated"], each["gpuIds"]) for each in server.statuses] == [("a:0", [0])]


async def test_many_waiting_claims_are_written_slowly() -> None:
    """At most so many a second, however many wait; the first within moments."""
    world, count, seconds = World(), 500, 5
    async with controlled(world) as (controller, server):
        for number in range(count):
            world.claim(claim(f"c{number}", count=1))
            world.pod(pod(f"p{number}", claim=f"c{number}"))
            controller.check(f"default/c{number}")
        await asyncio.sleep(EXPLAIN_AFTER_S + TINY_S)
        assert 1 <= len(server.phases) <= EXPLAINERS
        await asyncio.sleep(seconds)
        most = EXPLAINERS * (seconds / EXPLAIN_PAUSE_S + 2)
        assert most / 2 < len(server.phases) <= most < count
        assert set(server.phases) == {"Pending"}


async def test_reason_that_another_scheduler_writes_is_not_answered() -> None:
    """It sees other reasons than we do; each would write its own again and again."""
    world = World()
    async with controlled(world) as (controller, server):
        world.claim(claim("c", count=1))
        world.pod(pod("p", claim="c"))
        theirs = claim("c", count=1, status={"phase": "Pending", "message": "pod p waits: theirs"})
        for old, new in world.claims.put(theirs):
            controller.on_claim(old, new)
        await asyncio.sleep(10 * EXPLAIN_AFTER_S)
        assert server.phases == []


async def test_refusal_of_a_pod_without_a_claim_writes_none() -> None:
    world = World()
    async with controlled(world) as (controller, server):
        waiting = pod("p", gpus=1)
        world.pod(waiting)
        controller.refused(waiting)
        await asyncio.sleep(2 * EXPLAIN_AFTER_S)
        assert server.requests == []


async def test_refusals_of_many_pods_that_name_one_claim_look_at_these_pods_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, looks, look = World(), list[str](), Store.by

    def observe(store: Store[Any], index: str, value: str) -> list[Any]:
        looks.append(value)
        return look(store, index, value)

    async with controlled(world) as (controller, server):
        world.claim(claim("c", count=1))
        waiting = [pod(f"p{number}", claim="c") for number in range(20)]
        for each in waiting:
            world.pod(each)
        monkeypatch.setattr(Store, "by", observe)
        for each in waiting:
            controller.refused(each)
        await asyncio.sleep(EXPLAIN_AFTER_S + TINY_S)
        assert server.phases == ["Pending"]
        assert looks.count("default/c") <= 2


async def test_wait_is_not_written_into_a_claim_that_is_to_be_reserved() -> None:
    world = World(node("a", 1))
    async with controlled(world) as (controller, server):
        world.claim(claim("c", count=1))
        world.pod(
            pod(
                "first",
                claim="c",
                meta={"creationTimestamp": "2026-01-01T00:00:00Z"},
                nodeSelector={"x": "y"},
            )
        )
        world.pod(pod("user", claim="c", node="a", meta={"creationTimestamp": "2026-01-02T00:00:00Z"}))
        controller.refused(world.coordinator.our_pods["uid-first"])
        await asyncio.sleep(EXPLAIN_AFTER_S + TINY_S)
        assert server.phases == []


async def test_pod_that_breaks_our_code_does_not_keep_the_claims_of_others_from_being_written() -> None:
    world, metrics = World(node("a", 2)), Metrics()
    async with controlled(world, metrics) as (controller, server):
        for number in range(2):
            world.claim(claim(f"c{number}", count=1))
            world.pod(pod(f"p{number}", claim=f"c{number}"))
        broken = world.coordinator.our_pods["uid-p0"]
        structs.force_setattr(broken.metadata, "annotations", None)
        controller.refused(broken)
        await asyncio.sleep(2 * SLOW_BIND_S + EXPLAIN_AFTER_S + TINY_S)
        assert server.phases == ["Reserved"]
        errors = metrics.registry.get_sample_value("gpu_scheduler_errors_total", {"part": "claim"})
        assert errors == 2  # the refusal, and the bind that takes long


async def test_claim_with_the_name_of_a_child_is_told_and_tried_ever_more_rarely() -> None:
    world = World(node("a", 2))
    async with controlled(world) as (controller, server):
        server.taken = msgspec.json.encode(claim("p-uid-p"))
        world.claim(claim("t", count=1))
        world.pod(pod("p", claim_template="t"))
        world.bind(world.executor.jobs[0])
        world.pod(pod("p", claim_template="t", node="a", allocated="a:0"))
        controller.check("default/p-uid-p")
        await asyncio.sleep(3600)
        tries = [each for each in server.requests if each.method == "POST"]
        assert 30 < len(tries) < 400
        assert set(server.reports) == {"GpuClaim p-uid-p exists and is not this pod's; delete it"}


async def test_claim_that_names_a_pod_of_another_namespace_learns_nothing_of_it() -> None:
    world = World(node("a", 2))
    async with controlled(world) as (controller, server):
        world.pod(pod("p", gpus=1))
        world.bind(world.executor.jobs[0])
        world.pod(pod("p", gpus=1, node="a", allocated="a:0"))
        found = claim("c", count=1, reserved_for="uid-p")
        meta = msgspec.structs.replace(found.metadata, namespace="other")
        world.claim(msgspec.structs.replace(found, metadata=meta))
        controller.check("other/c")
        await asyncio.sleep(EXPLAIN_AFTER_S + TINY_S)
        assert set(server.phases) == {"Released"}
        assert not any(each.get("allocated") or each.get("nodeName") for each in server.statuses)
