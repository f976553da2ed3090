"""Thousands of tasks under random faults: none is lost or committed twice, and nothing is left behind."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.support import nemesis
from tests.support.fleet import Fleet, eventually, fleet
from tests.support.nemesis import WORKER_OPTIONS, Nemesis
from tests.support.scale import Scale

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
BATCH = 50
Figure = Callable[[str], None]


def bodies(rng: Random, first: int, count: int) -> list[dict[str, object]]:
    """Return small tasks with and without GPU memory, each with its own result."""
    made: list[dict[str, object]] = []
    for number in range(first, first + count):
        sleeps = rng.random() < 0.3
        parameters = {"seconds": round(rng.uniform(0.01, 0.3), 3)} if sleeps else {"number": number}
        memory = {"gpu_memory": rng.choice(("2GB", "6GB", "15GB"))} if rng.random() < 0.3 else {"gpus": 0}
        made.append(
            {
                "task_type": "sleep" if sleeps else "echo",
                "parameters": parameters,
                "resources": memory,
                "priority": rng.choice(("low", "normal", "high")),
                "max_retries": 50,
                "idempotency_key": f"n-{number}",
            }
        )
    return made


def seeds(metafunc: pytest.Metafunc) -> list[int]:
    return [1] if metafunc.config.getoption("--scale") == "test" else [1, 2, 3]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds(metafunc))


def check_ends(submitted: list[dict[str, object]], final: list[dict[str, object]]) -> None:
    """Check that each task completed with its own result, or is dead because two workers died running it."""
    for body, end in zip(submitted, final, strict=True):
        if end["status"] == "dead":
            deaths: list[dict[str, str]] = end["deaths"]  # type: ignore[assignment]
            assert len({each["worker"] for each in deaths if each["kind"] == "worker"}) >= 2, end
        else:
            assert end["status"] == "completed", end
            if body["task_type"] == "echo":
                assert end["result"] == body["parameters"]


async def check_counts(manager: Fleet, states: Counter[str]) -> None:
    """Check that as many tasks were committed as completed, and that every device and slot is free again."""
    await asyncio.sleep(1.5)  # /cluster/status may be a second old
    _, shown = await manager.call("GET", "/cluster/status")
    assert {name: n for name, n in shown["tasks"].items() if n} == dict(states)
    assert shown["committed"] == states["completed"]
    for worker in ("a", "b", "c"):
        await manager.back(worker)

    async def all_free() -> bool:
        _, shown = await manager.call("GET", "/workers")
        reserved = sum(gpu["memory_reserved_bytes"] for each in shown["workers"] for gpu in each["gpu_info"])
        return reserved == 0 and all(each["current_tasks"] == 0 for each in shown["workers"])

    await eventually(all_free, nemesis.LIMIT_S)
    whole: list[dict[str, object]] = [
        {"task_type": "echo", "resources": {"gpus": 2}, "idempotency_key": f"w-{n}"} for n in range(9)
    ]
    for name in await nemesis.submit_until_accepted(manager, whole):
        assert (await nemesis.ended(manager, name))["status"] == "completed"


async def test_no_task_is_lost_or_counted_twice_under_random_faults(
    tmp_path: Path, scale: Scale, figure: Figure, seed: int, executor: str
) -> None:
    rng, count = Random(seed), scale(test=600, accept=5000)
    async with fleet(tmp_path, EXECUTOR=executor) as manager:
        for name in ("a", "b", "c"):
            await manager.worker(name, *WORKER_OPTIONS)
        faults = Nemesis(manager, rng)
        injecting = asyncio.create_task(faults.inject(scale(test=8, accept=60), scale(test=1.5, accept=2.5)))
        submitted = bodies(rng, 0, count)
        names: list[str] = []
        for first in range(0, count, BATCH):
            names += await nemesis.submit_until_accepted(manager, submitted[first : first + BATCH])
            await asyncio.sleep(1.0)
        await injecting
        final = [await nemesis.ended(manager, name) for name in names]
        states = Counter(str(each["status"]) for each in final)
        figure(
            f"{executor}, seed {seed}: {count} tasks, {dict(states)}, faults: {dict(Counter(faults.faults))}"
        )
        assert len(set(names)) == count
        check_ends(submitted, final)
        await check_counts(manager, states)
