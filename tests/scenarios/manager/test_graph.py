"""A graph of tasks whose workers are killed at random: every node runs to one committed result, in order."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support import nemesis
from tests.support.fleet import fleet
from tests.support.nemesis import WORKER_OPTIONS, Nemesis
from tests.support.scale import Scale

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
Figure = Callable[[str], None]
DEEP = 10
OPTIONS = (*WORKER_OPTIONS, "--function", "node=tests.support.worker_functions:node")


async def test_every_node_of_a_graph_has_one_result_in_order(
    tmp_path: Path, scale: Scale, figure: Figure, executor: str
) -> None:
    rng, wide, seconds = Random(7), scale(test=6, accept=100), scale(test=0.05, accept=0.3)
    async with fleet(tmp_path, EXECUTOR=executor) as manager:
        for name in ("a", "b", "c"):
            await manager.worker(name, *OPTIONS)
        faults = Nemesis(manager, rng, OPTIONS)
        killing = asyncio.create_task(kill(faults, scale(test=3, accept=30), scale(test=0.4, accept=1.0)))
        layers: list[list[str]] = []
        before: dict[str, list[str]] = {}
        for deep in range(DEEP):
            bodies = [body(rng, f"{deep}.{number}", seconds, layers) for number in range(wide)]
            ids = await nemesis.submit_until_accepted(manager, bodies)
            before |= {name: each["depends_on"] for name, each in zip(ids, bodies, strict=True)}
            layers.append(ids)
        shown: dict[str, Any] = {
            name: await nemesis.ended(manager, name) for layer in layers for name in layer
        }
        await killing
        assert {each["status"] for each in shown.values()} == {"completed"}
        for name, needed in before.items():
            assert all(shown[each]["completed_at"] <= shown[name]["started_at"] for each in needed), name
            taken = shown[name]["result"]["first"]
            assert taken == (shown[needed[0]]["result"] if needed else None), name
        _, status = await manager.call("GET", "/cluster/status")
        assert status["committed"] == len(shown), "each result was committed once"
        again = sum(each["attempt"] > 1 for each in shown.values())
        figure(f"{len(shown)} tasks, {DEEP} deep, {len(faults.faults)} kills: {again} of them ran again")


async def kill(faults: Nemesis, count: int, pause_s: float) -> None:
    for number in range(count):
        await asyncio.sleep(pause_s)
        await (faults.kill_worker() if number % 2 else faults.kill_runner())
        faults.faults.append("kill")


def body(rng: Random, name: str, seconds: float, layers: list[list[str]]) -> dict[str, Any]:
    """Return a task that waits for some of the layer before and takes the result of the first of them."""
    needed = rng.sample(layers[-1], rng.randint(1, 3)) if layers else []
    first = {"first": {"$result": needed[0]}} if needed else {}
    parameters = {"function": "node", "arguments": {"name": name, "seconds": seconds, **first}}
    return {
        "task_type": "python",
        "parameters": parameters,
        "resources": {"gpus": 0},
        "depends_on": needed,
        "max_retries": 50,
        "max_lost_workers": 50,
        "idempotency_key": name,
    }
