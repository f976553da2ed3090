"""Whatever stands in annotations, labels, quantities and lease names: every object is taken in and swept
without an error, and an honest pod is placed."""

import random
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import Lease, Node
from tests.apps.scheduler.test_sweep import Swept
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import claim, node, pod, report

pytestmark = pytest.mark.looptime

TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "1e9",
    "9" * 5000,
    "٣",
    "²",
    "NaN",
    "a:0",
    "a:0,1",
    "b:1",
    "a:" + "9" * 5000,
    "a:" + "0," * 3000,
    ":::",
    "a:٣",
    "shared",
    "c",
    "\x00",
    "\ud800",
    "null",
    "[]",
    "{}",
    "[" * 3000 + "]" * 3000,
    '[{"uid": "uid-p0", "share": -1}]',
    '[{"uid": "uid-p0", "share": 300}]',
    "x" * 60_000,
)
LONG = ("9" * 5000, "a:" + "9" * 5000, "b:0," + "9" * 5000)
QUANTITIES = ("1", "0", "", "-1", "1e99", "9" * 5000, "1Zi", "٣", "0.0000000000000001", "n")
ANNOTATIONS = (
    *names.ASKING_ANNOTATIONS,
    *names.ANSWERING_ANNOTATIONS,
    names.STRATEGY,
    *names.GANG_ANNOTATIONS,
)
LEASES = ("gpu-a-0", "gpu-b-1", "gpu-a-" + "9" * 200, "gpu-a-٣", "gpu-", "gpu-agent-a", "gpu-a-1024", "x")


class Writer:
    """Shows a world objects with such texts."""

    def __init__(self, seed: int, world: World) -> None:
        self.rng, self.world = random.Random(seed), world

    def text(self) -> str:
        return self.rng.choice(TEXTS if self.rng.random() < 0.7 else LONG)

    def some(self, keys: tuple[str, ...]) -> dict[str, str]:
        return {key: self.text() for key in self.rng.sample(keys, self.rng.randrange(len(keys)))}

    def pod(self) -> None:
        amounts = {key: self.rng.choice(QUANTITIES) for key in ("cpu", "memory", "nvidia.com/gpu")}
        found: dict[str, Any] = msgspec.to_builtins(
            pod(
                f"p{self.rng.randrange(8)}",
                node=self.rng.choice(["", "a", "b", self.text()]),
                containers=[{"resources": {"requests": amounts}}] if self.rng.random() < 0.3 else [],
            )
        )
        found["metadata"] |= {"annotations": self.some(ANNOTATIONS), "labels": self.some(("app", "x"))}
        self.world.pod(msgspec.convert(found, type(pod("p"))))

    def lease(self) -> None:
        about = self.some((names.LEASE_NODE, names.LEASE_POD, names.LEASE_NAMESPACE, names.LEASE_HOLDERS))
        if self.rng.random() < 0.5:
            about[names.LEASE_NODE] = self.rng.choice(["a", "b"])
        body = {
            "metadata": {
                "name": self.rng.choice(LEASES),
                "namespace": "system",
                "uid": "lease",
                "resourceVersion": "1",
                "labels": {names.MANAGED: self.rng.choice(["true", "true", self.text()])},
                "annotations": about,
            },
            "spec": {
                "holderIdentity": self.rng.choice(["uid-p0", "uid-p1", "shared", self.text()]),
                "renewTime": self.text(),
                "acquireTime": self.text(),
            },
        }
        self.world.lease(msgspec.convert(body, Lease))

    def claim(self) -> None:
        self.world.claim(claim(self.rng.choice(["c", "shared"]), reserved_for=self.text()))

    def node(self) -> None:
        found: dict[str, Any] = msgspec.to_builtins(node("b", 2))
        found["status"]["allocatable"] |= {"cpu": self.rng.choice(QUANTITIES)}
        found["metadata"] |= {
            "annotations": self.some((names.NODE_DEVICES,)),
            "labels": self.some(("a", "b")),
        }
        self.world.node(msgspec.convert(found, Node))

    def report(self) -> None:
        used = [self.rng.choice(["uid-p0", "uid-p1", "uid-x", "x" * 128])]  # the schema bounds these
        self.world.report(report("b", {"id": 0, "inUseBy": used}, {"id": 1}))


@pytest.mark.parametrize("seed", range(10))
async def test_no_text_breaks_a_handler_or_the_sweep(seed: int) -> None:
    world = World(node("a", 2), node("b", 2), node("honest", 1, labels={"for": "honest"}), opened=False)
    writer, swept = Writer(seed, world), Swept(world)
    shows = (writer.pod, writer.pod, writer.lease, writer.claim, writer.node, writer.report)
    for turn in range(240):
        writer.rng.choice(shows)()
        if turn == 40:
            world.coordinator.open()
        if turn % 40 == 39:
            await swept.sweep.once()
    world.pod(pod("honest", gpus=1, nodeSelector={"for": "honest"}))
    assert world.executor.jobs[-1].placement.node == "honest"
    assert "gpu_scheduler_errors_total" not in {
        sample.name for metric in swept.metrics.registry.collect() for sample in metric.samples
    }
